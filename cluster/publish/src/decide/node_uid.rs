//! The Node's UID: the object's owner, so that it goes when the Node does; and what keeps us from writing to another Node of the name.

use std::time::Duration;

use serde::Deserialize;

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Pause, Random, RetryPause};
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
    check_at: Duration,
    rest: RetryPause,
}

#[derive(Deserialize)]
struct Partial {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
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
        self.check_at.max(self.rest.until())
    }

    /// Something that was written says that the Node is another one.
    pub(crate) fn is_doubtful(&mut self, now: Duration) {
        self.check_at = now;
    }

    /// Returns what is wrong with the answer.
    pub(crate) fn answered(&mut self, body: &[u8], now: Duration, random: &mut Random) -> Option<String> {
        self.rest.succeeded();
        self.check_at = now + random.around(REAPPLY_INTERVAL);
        match serde_json::from_slice::<Partial>(body) {
            Ok(node) => {
                self.known = UidState::Uid(node.metadata.uid);
                None
            }
            Err(error) => {
                self.known = UidState::Unknown;
                Some(format!("the Node as it was read: {error}"))
            }
        }
    }

    pub(crate) fn failed(&mut self, failure: &ApiFailure, now: Duration, random: &mut Random) {
        match failure.kind {
            FailureKind::Missing => {
                self.known = UidState::Missing;
                self.rest.failed(now, Pause::Growing, failure.retry_after, random);
            }
            // Rights are given once, or not: the next look is the next check.
            FailureKind::Forbidden | FailureKind::Refused => {
                self.known = UidState::Unknown;
                self.rest.succeeded();
                self.check_at = now + random.around(REAPPLY_INTERVAL);
            }
            _ => {
                if !self.was_asked() {
                    self.known = UidState::Unknown;
                }
                self.rest.failed(now, Pause::Growing, failure.retry_after, random);
            }
        }
    }
}
