//! The journal's messages about kubelet's file: it cannot be used, or can be used again.

use stelia_kubelet::CpuManagerState;

use super::state::EngineState;
use crate::journal;

impl EngineState {
    /// Log how the file that was read now differs from the one before.
    pub(super) fn log_kubelet(&self, before: &Result<CpuManagerState, String>) {
        match (before, &self.picture.snapshot.kubelet) {
            (_, Err(problem)) => tracing::warn!(
                MESSAGE_ID = journal::KUBELET_REFUSED,
                STELIA_REASON = problem,
                "kubelet's state cannot be used, floats keep their CPUs: {problem}"
            ),
            (Err(_), Ok(_)) if self.passes.count > 1 => {
                tracing::info!(MESSAGE_ID = journal::KUBELET_USABLE, "kubelet's state is usable again");
            }
            _ => {}
        }
    }
}
