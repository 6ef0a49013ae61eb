//! The Node's UID: the object's owner, so that it goes when the Node does; and what keeps us from writing to another Node of the name.

use std::time::Duration;

use serde_json::Value;

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::intervals::REAPPLY_INTERVAL;

#[derive(Debug, Clone, Default)]
enum UidState {
    #[default]
    NotAsked,
    Uid(String),
    /// There is no such Node yet, or any more.
    Missing,
    /// It cannot be asked for: no owner, and no UID in what is written.
    Unknown,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct NodeUid {
    known: UidState,
    rest: RetryPause,
}

impl NodeUid {
    pub(crate) fn was_asked(&self) -> bool {
        !matches!(self.known, UidState::NotAsked)
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.known, UidState::Missing)
    }

    pub(crate) fn uid(&self) -> Option<&str> {
        match &self.known {
            UidState::Uid(uid) => Some(uid),
            _ => None,
        }
    }

    pub(crate) fn due(&self) -> Duration {
        self.rest.until()
    }

    /// Something that was written says that the Node is another one.
    pub(crate) fn is_doubtful(&mut self, now: Duration) {
        if self.rest.failures() == 0 {
            self.rest.succeeded_until(now);
        }
    }

    /// Returns what is wrong with the answer.
    pub(crate) fn answered(&mut self, body: &[u8], now: Duration, random: &mut Random) -> Option<String> {
        self.rest.succeeded_until(now + random.around(REAPPLY_INTERVAL));
        let node: serde_json::Result<Value> = serde_json::from_slice(body);
        let read = node.map(|node| node["metadata"]["uid"].as_str().map(str::to_owned));
        let (known, problem) = match read {
            Ok(Some(uid)) => (UidState::Uid(uid), None),
            Ok(None) => (UidState::Unknown, Some("the Node as it was read has no UID".to_owned())),
            Err(cause) => (UidState::Unknown, Some(format!("the Node as it was read: {cause}"))),
        };
        self.known = known;
        problem
    }

    pub(crate) fn failed(&mut self, failure: &ApiFailure, now: Duration, random: &mut Random) {
        match failure.kind {
            // Rights are given once, or not: the next look is the next check.
            FailureKind::Forbidden | FailureKind::Refused => {
                self.known = UidState::Unknown;
                return self.rest.succeeded_until(now + random.around(REAPPLY_INTERVAL));
            }
            FailureKind::Missing => self.known = UidState::Missing,
            _ if !self.was_asked() => self.known = UidState::Unknown,
            _ => {}
        }
        self.rest.failed_for_now(now, failure.retry_after, random);
    }
}
