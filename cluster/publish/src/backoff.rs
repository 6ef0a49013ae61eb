//! When something that failed is tried again: back-off with jitter. Times are durations since the publisher's start.

use std::time::Duration;

use stelia_cpus::rate::Backoff;

use crate::answer::ApiFailure;

/// The pauses of what is tried again soon.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));
/// The pause after an error that somebody has to fix first: rights, a CRD, a second writer.
pub(crate) const LONG_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Lower limit of a pause: full jitter may choose 0, and a server that answers at once must not be asked in a loop.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// splitmix64 (Steele, Lea and Flood, 2014): numbers that differ between nodes, of no use for secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from nothing to `limit`.
    pub(crate) fn below(&mut self, limit: Duration) -> Duration {
        // 53 bits: what an f64 holds exactly.
        limit.mul_f64((self.number() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// `middle`, up to a tenth less or more.
    pub(crate) fn around(&mut self, middle: Duration) -> Duration {
        middle - middle / 10 + self.below(middle / 5)
    }
}

/// When something that failed may be tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RetryPause {
    failures: u32,
    until: Duration,
}

impl RetryPause {
    pub(crate) fn until(&self) -> Duration {
        self.until
    }

    /// It failed: a random part of what [`BACKOFF`] gives ("full jitter"), because clients that failed together must not come back together.
    /// `retry_after` is what the server asked for: at least that long.
    pub(crate) fn failed_for_now(&mut self, now: Duration, retry_after: Option<Duration>, random: &mut Random) {
        let pause = random.below(BACKOFF.pause(self.failures)).max(MIN_PAUSE);
        self.pause(now, pause, retry_after);
    }

    /// It failed, and if somebody has to change something first, [`LONG_PAUSE`], a tenth more or less. A tenth of that the first time: an
    /// API server that has just started may refuse for a moment, or not know of the CRD yet.
    pub(crate) fn failed(&mut self, now: Duration, failure: &ApiFailure, random: &mut Random) {
        if !failure.kind.lasts() {
            return self.failed_for_now(now, failure.retry_after, random);
        }
        let first = self.failures == 0;
        let pause = if first { LONG_PAUSE / 10 } else { LONG_PAUSE };
        self.pause(now, random.around(pause), failure.retry_after);
    }

    fn pause(&mut self, now: Duration, pause: Duration, retry_after: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        self.until = now + retry_after.unwrap_or_default() + pause;
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// It succeeded, and is due again then.
    pub(crate) fn succeeded_until(&mut self, until: Duration) {
        *self = Self { failures: 0, until };
    }

    /// It is tried again now, and what follows counts on.
    pub(crate) fn at_once(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.until = now;
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}
