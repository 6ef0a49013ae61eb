//! How often a VM on whose CPUs something runs again and again is written.

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
