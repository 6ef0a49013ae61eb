//! Rebind jobs, as their D-Bus objects show them, and the one that runs.

use std::time::Instant;

use stelia_api::Reason;
use stelia_cpus::CpuSet;
use stelia_decide::rebind::{Move, RebindScope};
use stelia_record::Record;
use stelia_text::named;

/// The phase of a job, named as in Koordinator's RebindResource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    Pending,
    /// No move would be an improvement any more.
    Succeed,
    /// A move failed and was taken back, or the deadline passed. Moves made before stay.
    Failed,
    /// The daemon ended before the job did.
    Unknown,
}

named!(JobPhase {
    Pending = "Pending",
    Succeed = "Succeed",
    Failed = "Failed",
    Unknown = "Unknown"
});

/// A move that is planned or was made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobMove {
    pub pod: String,
    pub from: CpuSet,
    pub to: CpuSet,
    pub gain: String,
}

impl JobMove {
    pub(super) fn of(step: &Move) -> Self {
        Self {
            pod: step.pod.to_string(),
            from: step.from.clone(),
            to: step.to.clone(),
            gain: step.gain.clone(),
        }
    }
}

/// A job, as its D-Bus object shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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

/// Every job that is remembered, and the one that runs.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) list: Vec<Job>,
    pub(super) running: Option<(RebindScope, Instant)>,
    /// The move that is being made.
    pub(super) pending: Option<PendingMove>,
    pub(super) began: Option<Instant>,
}

impl Jobs {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The deadline of the job that runs.
    pub(super) fn next(&self) -> Option<Instant> {
        self.running
            .as_ref()
            .map(|(_, deadline)| *deadline)
            .filter(|deadline| *deadline > Instant::now())
    }
}

/// A move that is being made, or taken back.
#[derive(Debug)]
pub(super) struct PendingMove {
    pub(super) step: Move,
    pub(super) former: Record,
    /// The reasons of degradation from before the move, which do not count against it.
    pub(super) before: Vec<Reason>,
    /// Why it is taken back.
    pub(super) cause: Option<String>,
}
