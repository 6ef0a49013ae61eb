//! The file for the cluster's publisher in the answer of Describe.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publishing {
    /// The setting `publish`; `None`: off.
    pub profile: Option<String>,
    /// Why the file is not up to date; `None` where it is.
    pub problem: Option<String>,
    /// When the file was last written, microseconds since the epoch; 0: not by this daemon.
    pub written_us: u64,
}
