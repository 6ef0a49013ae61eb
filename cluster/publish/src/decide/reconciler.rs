//! One thing that is kept at the API server as it should be: what is wanted, what stands there, and when the next request is due.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::intervals::DEBOUNCE;

/// The hash of a request's body. It is all that is stored about what was written.
pub(crate) type Digest = [u8; 32];

pub(crate) fn digest(body: &[u8]) -> Digest {
    Sha256::digest(body).into()
}

#[derive(Debug, Clone)]
pub(crate) struct Reconciler {
    /// Between two writes.
    spacing: Duration,
    /// After which what stands is applied again.
    check: Option<Duration>,
    wanted: Option<Digest>,
    wanted_since: Duration,
    applied: Option<Digest>,
    /// Wanted, and refused for what it is.
    refused: Option<Digest>,
    written_at: Option<Duration>,
    check_at: Option<Duration>,
    rest: RetryPause,
}

impl Reconciler {
    pub(crate) fn new(spacing: Duration, check: Option<Duration>) -> Self {
        Self {
            spacing,
            check,
            wanted: None,
            wanted_since: Duration::ZERO,
            applied: None,
            refused: None,
            written_at: None,
            check_at: None,
            rest: RetryPause::default(),
        }
    }

    pub(crate) fn want(&mut self, wanted: Option<Digest>, now: Duration) {
        // A burst is counted from its first change: a node that never rests is written all the same.
        if self.wanted != wanted {
            if !self.is_pending() {
                self.wanted_since = now;
            }
            self.wanted = wanted;
        }
    }

    pub(crate) fn wanted(&self) -> Option<Digest> {
        self.wanted
    }

    /// Something was written, or may have been.
    pub(crate) fn was_tried(&self) -> bool {
        self.applied.is_some() || self.written_at.is_some()
    }

    /// What is wanted is not what stands, and may become so.
    pub(crate) fn is_pending(&self) -> bool {
        self.wanted.is_some() && self.wanted != self.applied && self.wanted != self.refused
    }

    /// What is wanted was refused for what it is.
    pub(crate) fn is_refused(&self) -> bool {
        self.wanted.is_some() && self.wanted == self.refused
    }

    /// When the next request is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.wanted?;
        let at = if self.is_pending() {
            let spaced = self.written_at.map_or(Duration::ZERO, |at| at + self.spacing);
            (self.wanted_since + DEBOUNCE).max(spaced)
        } else {
            self.check_at?
        };
        Some(at.max(self.rest.until()))
    }

    pub(crate) fn succeeded(&mut self, written: Digest, now: Duration, random: &mut Random) {
        self.rest.succeeded();
        self.applied = Some(written);
        self.refused = None;
        self.written_at = Some(now);
        self.wanted_since = now;
        self.check_at = self.check.map(|check| now + random.around(check));
    }

    /// The write failed by itself; see [`Reconciler::interrupted`] for a server that is away.
    pub(crate) fn failed(&mut self, written: Digest, failure: &ApiFailure, now: Duration, random: &mut Random) {
        self.written_at = Some(now);
        match failure.kind {
            FailureKind::Refused => {
                self.refused = Some(written);
                self.check_at = self.check.map(|check| now + random.around(check));
                return;
            }
            // It may have been carried out nevertheless.
            FailureKind::Failed => self.applied = None,
            _ => {}
        }
        self.rest.failed(now, failure, random);
    }

    /// No answer: whether it was carried out is not known, so not even what stood before stands for sure.
    pub(crate) fn interrupted(&mut self, now: Duration) {
        self.applied = None;
        self.written_at = Some(now);
    }
}
