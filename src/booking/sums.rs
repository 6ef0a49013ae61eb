//! What entries add up to since the daemon began to keep them, for the metrics.

use std::collections::BTreeMap;

use stelia_api::ledger::LedgerVm;
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::standing::{Between, Follow, Known, Open, Standing};

/// By pod UID.
pub(super) type Sums = BTreeMap<String, LedgerVm>;

/// What one entry adds: the windows that end with it, and what its seats were without readings before they were closed. `before`: what stood.
pub(super) fn add(sums: &mut Sums, before: &Standing, entry: &Entry) {
    let mut adding = Adding {
        sums,
        before: (before.at, before.up),
    };
    // What does not follow counts for nothing.
    let _ = before.clone().follow(entry, &mut adding);
}

struct Adding<'a> {
    sums: &'a mut Sums,
    before: (u64, u64),
}

impl Follow for Adding<'_> {
    fn event(&mut self, entry: &Entry, event: &Event, open: Option<&Open>) {
        match (event, open) {
            (Event::Closed { .. }, Some(open)) => {
                // Of another boot nothing is compared: the wall clock says how long it was.
                let (at, up) = open.last.as_ref().map_or(self.before, |last| (last.at, last.up));
                let us = match entry.up.checked_sub(up) {
                    Some(us) => us,
                    None => entry.at.saturating_sub(at),
                };
                let sum = self.sums.entry(open.vm.clone()).or_default();
                sum.promised_us = sum
                    .promised_us
                    .saturating_add(us.saturating_mul(open.seat.cpus.len() as u64));
            }
            (Event::Intruded { vm, .. }, _) => {
                let sum = self.sums.entry(vm.clone()).or_default();
                sum.intruded = sum.intruded.saturating_add(1);
            }
            _ => {}
        }
    }

    fn reading(&mut self, _: u64, open: &Open, now: &Known) {
        let Some(Ok(between)) = open.last.as_ref().map(|last| Between::new(open, last, now)) else {
            return;
        };
        let sum = self.sums.entry(open.vm.clone()).or_default();
        let us = between.us.saturating_mul(open.seat.cpus.len() as u64);
        sum.promised_us = sum.promised_us.saturating_add(us);
        sum.covered_us = sum.covered_us.saturating_add(us);
        sum.other_tasks_least = sum.other_tasks_least.saturating_add(between.other.least);
        sum.other_tasks_most = sum.other_tasks_most.saturating_add(between.other.most);
        sum.devices = between
            .devices
            .values()
            .fold(sum.devices, |sum, count| sum.saturating_add(*count));
        sum.delay_ns = sum.delay_ns.saturating_add(between.delay_ns);
    }
}
