//! Rates with bursts: how much may be spent, and how long to wait for it.

use std::time::{Duration, Instant};

/// A token bucket that may owe. Time and rate are passed in.
#[derive(Debug)]
pub(super) struct Bucket {
    tokens: f64,
    filled: Instant,
}

/// Tokens a second, and how many a bucket holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    pub(super) a_second: f64,
    pub(super) burst: f64,
}

impl Bucket {
    pub(super) fn full(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            filled: now,
        }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * rate.a_second).min(rate.burst);
        self.filled = self.filled.max(now);
    }

    pub(super) fn spend(&mut self, cost: u32, rate: Rate, now: Instant) {
        self.refill(rate, now);
        self.tokens -= f64::from(cost);
    }

    pub(super) fn is_full(&mut self, rate: Rate, now: Instant) -> bool {
        self.refill(rate, now);
        self.tokens >= rate.burst
    }

    /// Whether it held tokens at its last refill.
    pub(super) fn has_tokens(&self) -> bool {
        self.tokens > 0.0
    }

    /// How long until nothing is owed.
    pub(super) fn wait(&mut self, rate: Rate, now: Instant) -> Duration {
        self.refill(rate, now);
        Duration::from_secs_f64((-self.tokens / rate.a_second).max(0.0))
    }
}
