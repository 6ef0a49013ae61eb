//! What a caller is told of a fault of the system.

use stelia_api::{Kind, Refusal};

use crate::cgroup::CgroupError;
use crate::systemd::SystemdError;

// With the node's particulars, until somebody says whose they are ([`Refusal::of`]).
impl From<CgroupError> for Refusal {
    fn from(error: CgroupError) -> Self {
        Kind::Failed.because(error.to_string())
    }
}

impl From<SystemdError> for Refusal {
    fn from(error: SystemdError) -> Self {
        Kind::Failed.because(error.to_string())
    }
}
