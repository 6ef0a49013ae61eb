//! Intervals of entries: of all VMs, and of a VM whose CPUs are disturbed repeatedly.

/// Interval at which all seats are written, in microseconds, or a multiple of it: [`heartbeat_hours`].
pub(super) const HEARTBEAT_INTERVAL_US: u64 = 3_600_000_000;
/// The first and the longest pause between two entries of a disturbed VM, in microseconds.
const FIRST_PAUSE_US: u64 = 60_000_000;
const MAX_PAUSE_US: u64 = 3_600_000_000;

/// The pause between entries of a disturbed VM: the first is written at once, then the pause doubles. A quiet hour resets it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// `up` of the last entry.
    last_written: u64,
    /// The pause after that, in microseconds; 0: no entry was written.
    pause: u64,
}

impl Pace {
    pub(super) fn is_due(self, up: u64) -> bool {
        self.pause == 0 || up >= self.last_written.saturating_add(self.pause)
    }

    pub(super) fn written(&mut self, up: u64) {
        self.pause = match self.pause {
            0 => FIRST_PAUSE_US,
            _ if self.is_quiet(up) => FIRST_PAUSE_US,
            pause => (pause * 2).min(MAX_PAUSE_US),
        };
        self.last_written = up;
    }

    /// Whether no entry was written for an hour after the pause, so that the VM was not disturbed for that long.
    pub(super) fn is_quiet(self, up: u64) -> bool {
        up > self
            .last_written
            .saturating_add(self.pause)
            .saturating_add(MAX_PAUSE_US)
    }
}

/// The interval of entries of all seats, in hours, with which 31 days of them fit into three quarters of the ring. The last quarter is for
/// other entries. The interval divides a day, so that each day begins with such an entry.
pub fn heartbeat_hours(entry_bytes: u64, ring_bytes: u64) -> u64 {
    let fits = |hours: &u64| entry_bytes.saturating_mul(31 * 24 / hours) <= ring_bytes / 4 * 3;
    [1, 2, 3, 4, 6, 8, 12].into_iter().find(fits).unwrap_or(24)
}
