//! How often all VMs are written, and how often a VM whose CPUs are disturbed repeatedly.

/// The first and the longest pause between two entries of a disturbed VM, in microseconds.
const FIRST_PAUSE_US: u64 = 60_000_000;
const MAX_PAUSE_US: u64 = 3_600_000_000;

/// The pause between entries of a disturbed VM: the first is written at once, then the pause doubles. A quiet hour resets it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// When it was written last, and the pause after that. 0: never.
    written: u64,
    rest: u64,
}

impl Pace {
    pub(super) fn is_due(self, up: u64) -> bool {
        self.rest == 0 || up >= self.written.saturating_add(self.rest)
    }

    pub(super) fn written(&mut self, up: u64) {
        self.rest = match self.rest {
            0 => FIRST_PAUSE_US,
            _ if self.is_quiet(up) => FIRST_PAUSE_US,
            rest => (rest * 2).min(MAX_PAUSE_US),
        };
        self.written = up;
    }

    /// Nothing was written for a pause and an hour, so nothing ran for that long.
    pub(super) fn is_quiet(self, up: u64) -> bool {
        up > self.written.saturating_add(self.rest).saturating_add(MAX_PAUSE_US)
    }
}

/// Interval of entries of all seats, in hours, so that 31 days of them fit into three quarters of the ring. The last quarter is for events.
/// Every number divides a day, so that each day begins with such an entry.
pub fn hours_between(entry_bytes: u64, ring_bytes: u64) -> u64 {
    let fits = |hours: &u64| entry_bytes.saturating_mul(31 * 24 / hours) <= ring_bytes / 4 * 3;
    [1, 2, 3, 4, 6, 8, 12].into_iter().find(fits).unwrap_or(24)
}
