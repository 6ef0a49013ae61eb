//! The rebind jobs that are remembered, and the one that runs.

use std::time::Instant;

use stelia_api::Reason;
use stelia_decide::rebind::{Move, RebindScope};
use stelia_model::record::Record;
use stelia_model::{Job, JobMove};

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

pub(super) fn job_move(step: &Move) -> JobMove {
    JobMove {
        pod: step.pod.to_string(),
        from: step.from.clone(),
        to: step.to.clone(),
        gain: step.gain.clone(),
    }
}
