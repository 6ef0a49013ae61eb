//! The journal's messages about the file.

use crate::journal;
use crate::lasting_problem::LastingProblem;

/// Logs why the file cannot be written.
pub(super) fn failed(lasting: &mut LastingProblem, problem: &str) {
    if lasting.begins(problem) {
        tracing::warn!(
            MESSAGE_ID = journal::NOT_PUBLISHED,
            STELIA_REASON = problem,
            "the cluster's publisher is not told how things are: {problem}"
        );
    }
}

/// Logs that the file can be written again.
pub(super) fn works(lasting: &mut LastingProblem) {
    if lasting.ends() {
        tracing::info!(
            MESSAGE_ID = journal::PUBLISHED,
            "the cluster's publisher is told how things are again"
        );
    }
}
