//! Sums over windows of one seat that stand side by side.

use super::{Range, Totals};
use crate::standing::{Between, Known};

/// What is left of the rises of a seat's counters, for as long as its windows follow each other. How uncertain a reading is counts only at the
/// two ends: in between it is the same reading that ends one window and begins the next.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    /// The own threads' switch-ins as the first reading has them.
    first: (u64, u64),
    last: (u64, u64),
    switches: u64,
    bound: Range,
    /// The windows' own bounds, summed: tighter where one of them is 0.
    windows: Range,
}

impl Chain {
    pub(super) fn from(before: &Known) -> Self {
        Self {
            first: before.counters.own,
            last: before.counters.own,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, between: &Between, now: &Known) {
        self.last = now.counters.own;
        self.switches = self.switches.saturating_add(between.switches);
        self.bound.add(between.bound);
        self.windows.add(between.other);
    }

    /// How often the seat's own threads ran.
    pub(super) fn own(&self) -> Range {
        Range {
            least: self.last.0.saturating_sub(self.first.1),
            most: self.last.1.saturating_sub(self.first.0),
        }
    }

    pub(super) fn other(&self) -> Range {
        let own = self.own();
        let left = |own: u64, bound: u64| self.switches.saturating_sub(own).saturating_sub(bound);
        Range {
            least: left(own.most, self.bound.most).max(self.windows.least),
            most: left(own.least, self.bound.least).min(self.windows.most),
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
    pub(super) fn add(&mut self, between: &Between) {
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
