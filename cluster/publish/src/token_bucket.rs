//! How often something may be done. Times are durations since the publisher's start.

use std::time::Duration;

/// As many at once as `size`, then one in `refill`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    size: u32,
    refill: Duration,
    /// When it is full again; a time that has passed says that it is.
    full_at: Duration,
}

impl Bucket {
    pub(crate) fn new(size: u32, refill: Duration) -> Self {
        Self {
            size,
            refill,
            full_at: Duration::ZERO,
        }
    }

    /// When the next one may be taken.
    pub(crate) fn ready_at(&self) -> Duration {
        self.full_at.saturating_sub(self.refill * (self.size - 1))
    }

    pub(crate) fn take(&mut self, now: Duration) {
        self.full_at = self.full_at.max(now) + self.refill;
    }

    /// Nothing was taken lately: a new one says the same.
    pub(crate) fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }
}
