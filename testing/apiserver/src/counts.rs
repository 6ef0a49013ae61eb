//! What was asked of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// A request that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Since the server started, by tokio's clock.
    pub at: Duration,
    pub verb: &'static str,
    /// As roles name it: `nodes`, `pods/status`.
    pub resource: String,
    pub name: String,
    /// The answer's; 0: there was none.
    pub code: u16,
    /// Sizes of the request's body and of the answer's.
    pub bytes: (usize, usize),
}

/// Totals of one verb and resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub requests: u64,
    /// Answers below 400.
    pub succeeded: u64,
    /// Requests without an answer.
    pub unanswered: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) by: BTreeMap<(&'static str, String), Count>,
    pub(crate) recorded: Option<Vec<LoggedRequest>>,
}

impl Counts {
    pub(crate) fn add(&mut self, asked: LoggedRequest) {
        let count = self.by.entry((asked.verb, asked.resource.clone())).or_default();
        count.requests += 1;
        count.succeeded += u64::from((1..400).contains(&asked.code));
        count.unanswered += u64::from(asked.code == 0);
        count.received_bytes += asked.bytes.0 as u64;
        count.sent_bytes += asked.bytes.1 as u64;
        if let Some(recorded) = &mut self.recorded {
            recorded.push(asked);
        }
    }
}
