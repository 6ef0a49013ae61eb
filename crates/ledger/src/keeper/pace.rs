//! How often all VMs are written, and one on whose CPUs something runs again and again.

/// The first rest between two entries, microseconds, and the longest.
const FIRST: u64 = 60_000_000;
const LONGEST: u64 = 3_600_000_000;

/// At once the first time, then with rests that double. A quiet hour makes it a first time again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// When it was written last, and the rest from there. 0: never.
    written: u64,
    rest: u64,
}

impl Pace {
    pub(super) fn is_due(self, up: u64) -> bool {
        self.rest == 0 || up >= self.written.saturating_add(self.rest)
    }

    pub(super) fn written(&mut self, up: u64) {
        self.rest = match self.rest {
            0 => FIRST,
            _ if self.is_quiet(up) => FIRST,
            rest => (rest * 2).min(LONGEST),
        };
        self.written = up;
    }

    /// Nothing was written for a rest and an hour: so long nothing ran.
    pub(super) fn is_quiet(self, up: u64) -> bool {
        up > self.written.saturating_add(self.rest).saturating_add(LONGEST)
    }
}

/// How often all seats are written, in hours, so that 31 days of such entries fit into three quarters of the ring. The last quarter is for what
/// happens. Every number divides a day, so that its first entry is one of these.
pub fn hours_between(entry_bytes: u64, ring_bytes: u64) -> u64 {
    let fits = |hours: &u64| entry_bytes.saturating_mul(31 * 24 / hours) <= ring_bytes / 4 * 3;
    [1, 2, 3, 4, 6, 8, 12].into_iter().find(fits).unwrap_or(24)
}
