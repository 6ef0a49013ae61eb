//! Rebind jobs, as their D-Bus objects show them.

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
use stelia_cpus::text::named;

named! {
    /// The phase of a job, named as in Koordinator's RebindResource.
    pub enum JobPhase {
        Pending = "Pending",
        /// No move would be an improvement any more.
        Succeed = "Succeed",
        /// A move failed and was taken back, or the deadline passed. Moves made before stay.
        Failed = "Failed",
        /// The daemon ended before the job did.
        Unknown = "Unknown",
    }
}

/// A move that is planned or was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMove {
    pub pod: String,
    pub from: CpuSet,
    pub to: CpuSet,
    pub gain: String,
}

/// A job, as its D-Bus object shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: u32,
    /// What may be moved: `node`, or a pod's UID.
    pub scope: String,
    pub phase: JobPhase,
    pub reason: String,
    pub moves: Vec<JobMove>,
    /// When it began, microseconds since the epoch.
    pub began_us: u64,
    /// When it ended; 0 before.
    pub ended_us: u64,
}
