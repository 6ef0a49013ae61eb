//! Sums over consecutive windows of one seat.

use super::Range;
use crate::replay::{FullReading, ReadingDelta};

/// Switch-ins summed over consecutive windows of a seat. Only the uncertainty of the first and the last reading counts: each reading in
/// between ends one window and begins the next, so its error cancels out.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowSum {
    first: Endpoint,
    last: Endpoint,
    switches: u64,
    /// Switch-ins of bound threads, lower and upper bound. The lower one may be negative.
    bound: (i128, i128),
    windows: u64,
    /// The sum of the windows' own bounds. It is tighter if some of them were limited by 0.
    summed: Range,
}

/// The values of a reading by which two windows are recognised as consecutive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Endpoint {
    up: u64,
    switches: u64,
    own: (u64, u64),
}

impl Endpoint {
    fn of(reading: &FullReading) -> Self {
        Self {
            up: reading.up,
            switches: reading.counters.switches,
            own: reading.counters.own,
        }
    }
}

impl WindowSum {
    pub(super) fn starting_at(before: &FullReading) -> Self {
        Self {
            first: Endpoint::of(before),
            last: Endpoint::of(before),
            ..Self::default()
        }
    }

    /// Whether a window that begins with this reading follows the last one. If not, it must not be added.
    pub(super) fn is_continued_by(&self, before: &FullReading) -> bool {
        self.last == Endpoint::of(before)
    }

    pub(super) fn add(&mut self, delta: &ReadingDelta, now: &FullReading) {
        self.last = Endpoint::of(now);
        self.switches = self.switches.saturating_add(delta.switches);
        let telescoped = &delta.telescoped;
        let first_uncertainty = if self.windows > 0 {
            telescoped.first_uncertainty
        } else {
            0
        };
        self.bound.0 += telescoped.least + first_uncertainty;
        self.bound.1 += telescoped.most - first_uncertainty;
        self.windows += 1;
        self.summed.add(delta.other);
    }

    /// How often the seat's own threads ran.
    pub(super) fn own(&self) -> Range {
        Range {
            least: self.last.own.0.saturating_sub(self.first.own.1),
            most: self.last.own.1.saturating_sub(self.first.own.0),
        }
    }

    pub(super) fn other(&self) -> Range {
        let own = self.own();
        let others = |own: u64, bound: i128| {
            let others = i128::from(self.switches) - i128::from(own) - bound;
            u64::try_from(others.max(0)).unwrap_or(u64::MAX)
        };
        Range {
            least: others(own.most, self.bound.1).max(self.summed.least),
            most: others(own.least, self.bound.0).min(self.summed.most),
        }
    }
}

impl Range {
    pub(crate) fn add(&mut self, other: Self) {
        self.least = self.least.saturating_add(other.least);
        self.most = self.most.saturating_add(other.most);
    }
}
