//! What goes wrong on request.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::resources::Target;

/// For the next `times` requests that match, `answer` instead of what the server would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`; empty: any.
    #[serde(default)]
    pub verb: String,
    /// As roles name it: `nodes`, `pods/status`; empty: any.
    #[serde(default)]
    pub resource: String,
    /// The object's name; empty: any.
    #[serde(default)]
    pub name: String,
    #[serde(default = "once")]
    pub times: u32,
    pub answer: Answer,
}

fn once() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// An HTTP status, with a `Status` object of that code.
    Status {
        code: u16,
        /// The header `Retry-After`, seconds.
        #[serde(default)]
        retry_after: Option<u64>,
        /// Instead of a usual one.
        #[serde(default)]
        message: Option<String>,
    },
    /// The connection closes without an answer; the request had no effect.
    Close,
    /// The request takes effect, and the connection closes without an answer.
    Lost,
    /// The request waits for this many milliseconds, then it is served.
    Delay(u64),
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
        let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
        let resource = target.resource();
        let at = self.waiting.iter().position(|fault| {
            fault.times > 0
                && fits(&fault.verb, verb)
                && fits(&fault.resource, &resource)
                && fits(&fault.name, &target.name)
        })?;
        let fault = self.waiting.get_mut(at)?;
        fault.times -= 1;
        let answer = fault.answer.clone();
        self.waiting.retain(|fault| fault.times > 0);
        Some(answer)
    }
}

impl Fault {
    /// For requests of this verb and resource.
    pub fn of(verb: &str, resource: &str, times: u32, answer: Answer) -> Self {
        Self {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
            times,
            answer,
        }
    }
}

impl Answer {
    /// A refusal without `Retry-After`.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            retry_after: None,
            message: None,
        }
    }

    pub fn delay(time: Duration) -> Self {
        Self::Delay(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}
