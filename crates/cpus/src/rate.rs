//! How often something may be done, and how long something that failed rests. Times are passed in.

use std::time::Duration;

/// As many at once as a burst, then one in each interval. Times are durations since one moment, the user's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    burst: u32,
    interval: Duration,
    /// When a whole burst is possible again; a time that has passed says that it is.
    full_at: Duration,
}

impl RateLimit {
    /// A burst is possible at once.
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self {
            burst,
            interval,
            full_at: Duration::ZERO,
        }
    }

    /// When the next one may be done.
    pub fn ready_at(&self) -> Duration {
        self.full_at.saturating_sub(self.interval * (self.burst - 1))
    }

    /// Counts one.
    pub fn take(&mut self, now: Duration) {
        self.full_at = self.full_at.max(now) + self.interval;
    }

    /// Whether nothing was done lately: a new limit says the same.
    pub fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }
}

/// Pauses that double with every failure in a row, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// `first` is the pause after the first failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after one failure more than `failures`.
    pub fn pause(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let pauses = [0, 1, 2, 5, 6, 31, 32, u32::MAX].map(|failures| backoff.pause(failures).as_millis());
        assert_eq!(pauses, [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000, 30_000]);
    }
}
