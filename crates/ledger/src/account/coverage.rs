//! Which part of the time in which a VM had CPUs of its own lies in windows. What no window covers is a gap.
//!
//! The time begins and ends with the VM's states. Its CPUs are those of its seats, which are opened before they are first read.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use crate::entry::Closed;
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
    pub(super) fn of(known: &FullReading) -> Self {
        let (at, up) = (known.at, known.up);
        Self { at, up }
    }
}

/// A time without windows that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uncovered {
    pub vm: String,
    /// Empty: the ring does not tell which CPUs the VM had, because it was never read.
    pub cpus: CpuSet,
    pub from: Moment,
    pub until: Moment,
    pub why: Closed,
}

/// Since when a CPU is in no window.
#[derive(Debug, Clone, Copy)]
struct Pending {
    from: Moment,
    why: Closed,
    /// It was read since the VM has it. Else that is the reason, whatever ends it.
    is_read: bool,
}

impl Pending {
    fn unread(from: Moment) -> Self {
        let (why, is_read) = (Closed::NotRead, false);
        Self { from, why, is_read }
    }
}

/// A VM that has CPUs of its own.
#[derive(Debug, Clone, Default)]
struct Promise {
    since: Moment,
    /// No state says so, only that a seat was opened. Such a time ends with its windows, and with the reason why the last seat is closed.
    is_implied: bool,
    /// The entry at hand says that the VM has them no longer.
    ended: Option<Moment>,
    /// The number of the entry that first named some of its CPUs.
    named_by: Option<u64>,
    cpus: BTreeMap<u32, Pending>,
    /// Open seats.
    seats: BTreeMap<u64, CpuSet>,
}

/// All VMs that have CPUs of their own, from entry to entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    vms: BTreeMap<String, Promise>,
    /// The current entry: its index, its time, and whether it says that samples before it were not recorded.
    number: u64,
    now: Moment,
    missed: bool,
    found: Vec<Uncovered>,
}

impl Coverage {
    /// What a ring leaves to go on from.
    pub(crate) fn of(replay: &LedgerState) -> Self {
        let mut coverage = Self {
            now: Moment {
                at: replay.at,
                up: replay.up,
            },
            ..Self::default()
        };
        let states = replay.states.iter().filter(|(_, state)| promises(state));
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
        coverage.found.clear();
        coverage
    }

    /// The next entry; what the one before ended is among what was found.
    pub(super) fn entry(&mut self, now: Moment) {
        self.settle();
        self.number += 1;
        self.now = now;
        self.missed = false;
    }

    /// Looks before this entry were not kept.
    pub(super) fn missed(&mut self) {
        self.missed = true;
    }

    /// The VM has this state from now on.
    pub(super) fn state(&mut self, vm: &str, state: &str) {
        if promises(state) {
            self.begin(vm, false).is_implied = false;
        } else if let Some(promise) = self.vms.get_mut(vm) {
            promise.ended = Some(self.now);
        }
    }

    fn begin(&mut self, vm: &str, is_implied: bool) -> &mut Promise {
        let since = self.now;
        self.vms.entry(vm.to_owned()).or_insert_with(|| Promise {
            since,
            is_implied,
            ..Promise::default()
        })
    }

    /// In a ring whose first states were overwritten, only its seats show a VM.
    pub(super) fn opened(&mut self, vm: &str, seat: u64, cpus: &CpuSet) {
        let (now, number) = (self.now, self.number);
        let promise = self.begin(vm, true);
        if promise.is_implied {
            promise.ended = None;
        }
        promise.seats.insert(seat, cpus.clone());
        // Those that are named first are the VM's since its state says so.
        let from = match *promise.named_by.get_or_insert(number) == number {
            true => promise.since,
            false => now,
        };
        for cpu in cpus.iter() {
            promise.cpus.entry(cpu).or_insert(Pending::unread(from));
        }
    }

    pub(super) fn closed(&mut self, vm: &str, seat: u64, why: Closed) {
        let now = self.now;
        let Some(promise) = self.vms.get_mut(vm) else { return };
        let cpus = promise.seats.remove(&seat).unwrap_or_default();
        if promise.is_implied && promise.seats.is_empty() && matches!(why, Closed::Ended | Closed::NotIsolated) {
            promise.ended = Some(now);
        }
        for cpu in cpus.iter() {
            if let Some(pending) = promise.cpus.get_mut(&cpu)
                && (pending.is_read || why == Closed::Offline)
            {
                pending.why = why;
            }
        }
    }

    /// A reading of a seat with which a window begins: its first one.
    pub(super) fn read(&mut self, vm: &str, cpus: &CpuSet, at: Moment) {
        self.covered(vm, cpus, at, at);
    }

    /// A window of a seat.
    pub(super) fn covered(&mut self, vm: &str, cpus: &CpuSet, begins: Moment, ends: Moment) {
        let missed = self.missed;
        let Some(promise) = self.vms.get_mut(vm) else { return };
        for cpu in cpus.iter() {
            let Some(pending) = promise.cpus.get_mut(&cpu) else {
                continue;
            };
            let now = Pending {
                is_read: true,
                ..Pending::unread(ends)
            };
            let before = std::mem::replace(pending, now);
            if before.from.up < begins.up {
                found(&mut self.found, vm, Some(cpu), before, begins, missed);
            }
        }
    }

    /// The host booted: nobody has a CPU any more, until states say so again.
    pub(super) fn booted(&mut self) {
        let now = self.now;
        for (vm, mut promise) in std::mem::take(&mut self.vms) {
            for pending in promise.cpus.values_mut() {
                pending.why = Closed::Boot;
            }
            self.rest(&vm, &promise, now);
        }
    }

    /// What the entry at hand ended: VMs that have no CPUs any more, and CPUs that a VM has no longer.
    pub(super) fn settle(&mut self) {
        let (now, missed) = (self.now, self.missed);
        for (vm, promise) in &mut self.vms {
            let is_read = |cpu: u32| promise.seats.values().any(|cpus| cpus.contains(cpu));
            let others = !promise.seats.is_empty() && promise.ended.is_none();
            let left: Vec<u32> = promise
                .cpus
                .iter()
                .filter(|(cpu, pending)| {
                    others && matches!(pending.why, Closed::Ended | Closed::Moved | Closed::NotRead) && !is_read(**cpu)
                })
                .map(|(cpu, _)| *cpu)
                .collect();
            for cpu in left {
                if let Some(pending) = promise.cpus.remove(&cpu) {
                    found(&mut self.found, vm, Some(cpu), pending, now, missed);
                }
            }
        }
        let ended: Vec<String> = self
            .vms
            .iter()
            .filter(|(_, promise)| promise.ended.is_some())
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in ended {
            if let Some(promise) = self.vms.remove(&vm) {
                let until = promise.ended.unwrap_or(now);
                self.rest(&vm, &promise, until);
            }
        }
    }

    /// All that no window covers until then.
    pub(super) fn end(&mut self, until: Moment) {
        self.settle();
        let all = std::mem::take(&mut self.vms).into_iter();
        for (vm, promise) in all.filter(|(_, promise)| !promise.is_implied) {
            self.rest(&vm, &promise, until);
        }
    }

    fn rest(&mut self, vm: &str, promise: &Promise, until: Moment) {
        let missed = self.missed && until == self.now;
        for (cpu, pending) in &promise.cpus {
            found(&mut self.found, vm, Some(*cpu), *pending, until, missed);
        }
        if promise.cpus.is_empty() && promise.named_by.is_none() {
            let pending = Pending::unread(promise.since);
            found(&mut self.found, vm, None, pending, until, missed);
        }
    }

    pub(super) fn take_uncovered(&mut self) -> Vec<Uncovered> {
        std::mem::take(&mut self.found)
    }
}

/// CPUs with the same gap are reported together.
fn found(all: &mut Vec<Uncovered>, vm: &str, cpu: Option<u32>, pending: Pending, until: Moment, missed: bool) {
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

/// States in which a VM has CPUs to itself.
fn promises(state: &str) -> bool {
    matches!(state, "isolated" | "contained")
}
