//! Sums over windows of one seat that stand side by side.

use super::{Range, Totals};
use crate::replay::{FullReading, ReadingDelta};

/// What is left of the rises of a seat's counters, for as long as its windows follow each other. How uncertain a reading is counts only at the
/// two ends: in between it is the same reading that ends one window and begins the next.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    first: Point,
    last: Point,
    switches: u64,
    /// Switch-ins of bound threads, lower and upper bound; below 0 if a reading is that uncertain.
    bound: (i128, i128),
    windows: u64,
    /// The windows' own bounds, summed: tighter where one of them is 0.
    summed: Range,
}

/// A reading, as far as the next window has to begin with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Point {
    up: u64,
    switches: u64,
    own: (u64, u64),
}

impl Point {
    fn of(known: &FullReading) -> Self {
        Self {
            up: known.up,
            switches: known.counters.switches,
            own: known.counters.own,
        }
    }
}

impl Chain {
    pub(super) fn from(before: &FullReading) -> Self {
        Self {
            first: Point::of(before),
            last: Point::of(before),
            ..Self::default()
        }
    }

    /// Whether a window that begins with this reading follows. Where not, something between is missing, and nothing may be said of both.
    pub(super) fn goes_on_from(&self, before: &FullReading) -> bool {
        self.last == Point::of(before)
    }

    pub(super) fn add(&mut self, between: &ReadingDelta, now: &FullReading) {
        self.last = Point::of(now);
        self.switches = self.switches.saturating_add(between.switches);
        let telescoped = &between.telescoped;
        let joint = if self.windows > 0 { telescoped.joint } else { 0 };
        self.bound.0 += telescoped.least + joint;
        self.bound.1 += telescoped.most - joint;
        self.windows += 1;
        self.summed.add(between.other);
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
        let left = |own: u64, bound: i128| {
            let left = i128::from(self.switches) - i128::from(own) - bound;
            u64::try_from(left.max(0)).unwrap_or(u64::MAX)
        };
        Range {
            least: left(own.most, self.bound.1).max(self.summed.least),
            most: left(own.least, self.bound.0).min(self.summed.most),
        }
    }
}

impl Range {
    pub(super) fn add(&mut self, other: Self) {
        self.least = self.least.saturating_add(other.least);
        self.most = self.most.saturating_add(other.most);
    }
}

impl Totals {
    /// All but how often tasks ran, which a [`Chain`] sums.
    pub(super) fn add(&mut self, between: &ReadingDelta) {
        for (sums, counts) in [
            (&mut self.devices, &between.devices),
            (&mut self.upkeep, &between.upkeep),
            (&mut self.softirqs, &between.softirqs),
            (&mut self.own_interrupts, &between.own_interrupts),
        ] {
            for (name, count) in counts {
                let sum = sums.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        for (name, ran) in &between.kernel_threads {
            let sum = self.kernel_threads.entry(name.clone()).or_default();
            sum.count = sum.count.saturating_add(ran.count);
            sum.ns = sum.ns.saturating_add(ran.ns);
        }
        self.own.ns = self.own.ns.saturating_add(between.run_ns);
        self.delay_ns = self.delay_ns.saturating_add(between.delay_ns);
        self.steal_ns = self.steal_ns.saturating_add(between.steal_ns);
    }
}
