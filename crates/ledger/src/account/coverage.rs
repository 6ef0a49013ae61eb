//! Finds the gaps of an account: times in which a VM had CPUs of its own and that no window covers.
//!
//! Such a time begins and ends with the VM's states. Its CPUs are those of its seats, which are opened before they are first
//! read.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use crate::entry::Closed;
use crate::recorder::is_sampled;
use crate::replay::{FullReading, LedgerState};

/// One time on both clocks, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// The realtime clock. It may jump.
    pub at: u64,
    /// `CLOCK_BOOTTIME`.
    pub up: u64,
}

impl Moment {
    pub(super) fn of(reading: &FullReading) -> Self {
        Self {
            at: reading.at,
            up: reading.up,
        }
    }
}

/// A gap that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uncovered {
    pub vm: String,
    /// Empty: the VM had no seat, so its CPUs are not in the ring.
    pub cpus: CpuSet,
    pub from: Moment,
    pub until: Moment,
    pub why: Closed,
}

/// The time since the last window of a CPU.
#[derive(Debug, Clone, Copy)]
struct Pending {
    from: Moment,
    why: Closed,
    /// Whether it was read since the VM has it. If not, the reason stays [`Closed::NotRead`].
    is_read: bool,
}

impl Pending {
    fn unread(from: Moment) -> Self {
        let (why, is_read) = (Closed::NotRead, false);
        Self { from, why, is_read }
    }
}

/// The gaps of one VM that has CPUs of its own.
#[derive(Debug, Clone, Default)]
struct VmCoverage {
    since: Moment,
    /// No entry has the VM's state: that it has CPUs follows only from an open seat. The time then ends with the last window, or when
    /// the last seat is closed.
    is_implied: bool,
    /// When the VM lost its CPUs, if the current entry says so.
    ended: Option<Moment>,
    /// The index of the entry that first named some of its CPUs.
    named_by: Option<u64>,
    cpus: BTreeMap<u32, Pending>,
    /// The open seats by number.
    seats: BTreeMap<u64, CpuSet>,
}

/// The gaps of all VMs that have CPUs of their own, from entry to entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    vms: BTreeMap<String, VmCoverage>,
    /// The current entry: its index, its time, and whether it says that samples before it were not recorded.
    index: u64,
    now: Moment,
    missed: bool,
    /// The gaps that have ended.
    uncovered: Vec<Uncovered>,
}

impl Coverage {
    /// Continues from the state of a ring.
    pub(crate) fn resume(replay: &LedgerState) -> Self {
        let mut coverage = Self {
            now: Moment {
                at: replay.at,
                up: replay.up,
            },
            ..Self::default()
        };
        let states = replay.states.iter().filter(|(_, state)| is_sampled(state));
        for vm in states.map(|(vm, _)| vm) {
            coverage.begin(vm, false);
        }
        for (number, open) in &replay.seats {
            coverage.opened(&open.vm, *number, &open.seat.cpus);
            if let Some(last) = &open.last {
                let last = Moment::of(last);
                coverage.covered(&open.vm, &open.seat.cpus, last, last);
            }
        }
        coverage.uncovered.clear();
        coverage
    }

    /// Begins the next entry.
    pub(super) fn entry(&mut self, now: Moment) {
        self.end_gaps();
        self.index += 1;
        self.now = now;
        self.missed = false;
    }

    /// Samples before this entry were not recorded.
    pub(super) fn missed(&mut self) {
        self.missed = true;
    }

    /// The VM has this state from now on.
    pub(super) fn state(&mut self, vm: &str, state: &str) {
        if is_sampled(state) {
            self.begin(vm, false).is_implied = false;
        } else if let Some(coverage) = self.vms.get_mut(vm) {
            coverage.ended = Some(self.now);
        }
    }

    fn begin(&mut self, vm: &str, is_implied: bool) -> &mut VmCoverage {
        let since = self.now;
        self.vms.entry(vm.to_owned()).or_insert_with(|| VmCoverage {
            since,
            is_implied,
            ..VmCoverage::default()
        })
    }

    /// A VM is also added here: if its states were in segments that the ring has removed, only its seats show that it has CPUs.
    pub(super) fn opened(&mut self, vm: &str, seat: u64, cpus: &CpuSet) {
        let (now, index) = (self.now, self.index);
        let coverage = self.begin(vm, true);
        if coverage.is_implied {
            coverage.ended = None;
        }
        coverage.seats.insert(seat, cpus.clone());
        // The VM has had the CPUs that are named first since its state says so.
        let is_first = *coverage.named_by.get_or_insert(index) == index;
        let from = if is_first { coverage.since } else { now };
        for cpu in cpus.iter() {
            coverage.cpus.entry(cpu).or_insert(Pending::unread(from));
        }
    }

    pub(super) fn closed(&mut self, vm: &str, seat: u64, why: Closed) {
        let now = self.now;
        let Some(coverage) = self.vms.get_mut(vm) else { return };
        let cpus = coverage.seats.remove(&seat).unwrap_or_default();
        if coverage.is_implied && coverage.seats.is_empty() && matches!(why, Closed::Ended | Closed::NotIsolated) {
            coverage.ended = Some(now);
        }
        for cpu in cpus.iter() {
            if let Some(pending) = coverage.cpus.get_mut(&cpu)
                && (pending.is_read || matches!(why, Closed::Offline | Closed::TooManyTasks))
            {
                pending.why = why;
            }
        }
    }

    /// Counts a window of a seat as covered. The first reading begins the first window: both times are the same then.
    pub(super) fn covered(&mut self, vm: &str, cpus: &CpuSet, begins: Moment, ends: Moment) {
        let missed = self.missed;
        let Some(coverage) = self.vms.get_mut(vm) else { return };
        for cpu in cpus.iter() {
            let Some(pending) = coverage.cpus.get_mut(&cpu) else {
                continue;
            };
            let now = Pending {
                is_read: true,
                ..Pending::unread(ends)
            };
            let before = std::mem::replace(pending, now);
            if before.from.up < begins.up {
                add_uncovered(&mut self.uncovered, vm, Some(cpu), before, begins, missed);
            }
        }
    }

    /// The host booted: no VM has CPUs until the next states.
    pub(super) fn booted(&mut self) {
        let now = self.now;
        for (vm, mut coverage) in std::mem::take(&mut self.vms) {
            for pending in coverage.cpus.values_mut() {
                pending.why = Closed::Boot;
            }
            self.end_all_gaps(&vm, &coverage, now);
        }
    }

    /// Ends the gaps that the current entry ends: of VMs that have no CPUs any more, and of CPUs that a VM has lost.
    pub(super) fn end_gaps(&mut self) {
        let (now, missed) = (self.now, self.missed);
        for (vm, coverage) in &mut self.vms {
            let is_read = |cpu: u32| coverage.seats.values().any(|cpus| cpus.contains(cpu));
            let has_seats = !coverage.seats.is_empty() && coverage.ended.is_none();
            let lost: Vec<u32> = coverage
                .cpus
                .iter()
                .filter(|(cpu, pending)| {
                    has_seats
                        && matches!(
                            pending.why,
                            Closed::Ended | Closed::Moved | Closed::NotRead | Closed::TooManyTasks | Closed::Restarted
                        )
                        && !is_read(**cpu)
                })
                .map(|(cpu, _)| *cpu)
                .collect();
            for cpu in lost {
                if let Some(pending) = coverage.cpus.remove(&cpu) {
                    add_uncovered(&mut self.uncovered, vm, Some(cpu), pending, now, missed);
                }
            }
        }
        let ended: Vec<String> = self
            .vms
            .iter()
            .filter(|(_, coverage)| coverage.ended.is_some())
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in ended {
            if let Some(coverage) = self.vms.remove(&vm) {
                let until = coverage.ended.unwrap_or(now);
                self.end_all_gaps(&vm, &coverage, until);
            }
        }
    }

    /// Ends all gaps at the account's end.
    pub(super) fn end(&mut self, until: Moment) {
        self.end_gaps();
        let all = std::mem::take(&mut self.vms).into_iter();
        for (vm, coverage) in all.filter(|(_, coverage)| !coverage.is_implied) {
            self.end_all_gaps(&vm, &coverage, until);
        }
    }

    fn end_all_gaps(&mut self, vm: &str, coverage: &VmCoverage, until: Moment) {
        let missed = self.missed && until == self.now;
        for (cpu, pending) in &coverage.cpus {
            add_uncovered(&mut self.uncovered, vm, Some(*cpu), *pending, until, missed);
        }
        if coverage.cpus.is_empty() && coverage.named_by.is_none() {
            let pending = Pending::unread(coverage.since);
            add_uncovered(&mut self.uncovered, vm, None, pending, until, missed);
        }
    }

    pub(super) fn take_uncovered(&mut self) -> Vec<Uncovered> {
        std::mem::take(&mut self.uncovered)
    }
}

/// CPUs with the same gap are reported together.
fn add_uncovered(all: &mut Vec<Uncovered>, vm: &str, cpu: Option<u32>, pending: Pending, until: Moment, missed: bool) {
    let Pending { from, why, .. } = pending;
    if from == until {
        return;
    }
    let why = if missed { Closed::NotKept } else { why };
    let same = |one: &&mut Uncovered| one.vm == vm && (one.from, one.until, one.why) == (from, until, why);
    match all.iter_mut().find(same) {
        Some(one) => cpu.into_iter().for_each(|cpu| one.cpus.insert(cpu)),
        None => all.push(Uncovered {
            vm: vm.to_owned(),
            cpus: cpu.into_iter().collect(),
            from,
            until,
            why,
        }),
    }
}
