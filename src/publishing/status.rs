//! The journal's messages about the file, and the problem that the view shows.

use crate::journal;

/// Why the file cannot be written; logged once, until the reason changes.
#[derive(Debug, Default)]
pub(super) struct Status {
    problem: Option<String>,
}

impl Status {
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
