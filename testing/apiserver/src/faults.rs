//! What goes wrong on request.

use std::time::Duration;

use tokio::time::Instant;

use crate::resources::Target;

/// For the next `times` requests that match, `answer` instead of what the server would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    verb: String,
    resource: String,
    times: u32,
    answer: Answer,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// This HTTP status, with a `Status` object of that code.
    Status(u16),
    /// The connection closes without an answer; the request had no effect.
    Close,
    /// The request takes effect, and the connection closes without an answer.
    Lost,
    /// The request waits so long, then it is served.
    Delay(Duration),
}

/// Faults that wait for their request, and an outage of the whole server.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) waiting: Vec<Fault>,
    pub(crate) down_until: Option<Instant>,
}

impl Faults {
    pub(crate) fn is_down(&self) -> bool {
        self.down_until.is_some_and(|end| Instant::now() < end)
    }

    /// The first that matches; it is used up by it.
    pub(crate) fn take(&mut self, verb: &str, target: &Target) -> Option<Answer> {
        let resource = target.resource();
        let found = self.waiting.iter_mut().find(|fault| {
            let is_verb = fault.verb.is_empty() || fault.verb == verb;
            is_verb && fault.resource == resource
        })?;
        found.times -= 1;
        let answer = found.answer.clone();
        self.waiting.retain(|fault| fault.times > 0);
        Some(answer)
    }
}

impl Fault {
    /// For requests of this verb (`get`, `list`, `watch`, `create`, `update`, `patch` or `delete`; empty: any) and resource, as roles name
    /// it: `nodes`, `pods/status`.
    pub fn of(verb: &str, resource: &str, times: u32, answer: Answer) -> Self {
        Self {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            times,
            answer,
        }
    }
}
