//! How long a request that failed rests before it is sent again.

use std::time::Duration;

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
