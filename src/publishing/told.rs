//! What the journal is told of the file.

use crate::journal;

/// In the journal once, as long as it is for the same reason.
#[derive(Debug, Default)]
pub(super) struct Told {
    problem: Option<String>,
}

impl Told {
    pub(super) fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    pub(super) fn failed(&mut self, problem: String) {
        if self.problem.as_ref() == Some(&problem) {
            return;
        }
        tracing::warn!(
            MESSAGE_ID = journal::NOT_PUBLISHED,
            STELIA_REASON = problem,
            "the cluster's publisher is not told how things are: {problem}"
        );
        self.problem = Some(problem);
    }

    pub(super) fn works(&mut self) {
        if self.problem.take().is_some() {
            tracing::info!(
                MESSAGE_ID = journal::PUBLISHED,
                "the cluster's publisher is told how things are again"
            );
        }
    }
}
