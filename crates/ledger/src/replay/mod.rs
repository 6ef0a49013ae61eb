//! Computes the state after a sequence of entries: the open seats and the last reading of each. The entries of one segment suffice.

mod delta;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use delta::{Contradiction, ReadingDelta};
use stelia_cpus::located::Located;

use crate::entry::{Closed, Device, Entry, Event, Reading};
use crate::sample::{Bound, Counters, Fired, Seat, TaskId};

/// The state of the ledger after an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerState {
    /// Boot id; empty before the first entry.
    pub boot: String,
    /// Times of the last entry, microseconds.
    pub at: u64,
    pub up: u64,
    pub seq: u64,
    /// The next seat's number.
    pub next_seat: u64,
    pub seats: BTreeMap<u64, OpenSeat>,
    /// The last recorded state by pod UID, without VMs that ended.
    pub states: BTreeMap<String, String>,
    /// Where the parts of VMs are by the last record, by pod UID.
    pub located: BTreeMap<String, Vec<Located>>,
    /// The public key in use; empty before the first.
    pub key: String,
}

/// A seat that is being read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenSeat {
    /// Pod UID.
    pub vm: String,
    pub name: String,
    pub seat: Seat,
    /// PCI addresses.
    pub own_devices: Vec<String>,
    /// `None` before its first reading.
    pub last: Option<FullReading>,
}

/// A seat's reading with all counters, including those that did not change since the previous one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FullReading {
    /// Times, microseconds.
    pub at: u64,
    pub up: u64,
    pub counters: Counters,
    /// Bound kernel threads that ended since the previous reading, including those that started after it, and `ENDED_TASKS`. One may have
    /// run once more after the CPU was read; that run is in the next window.
    pub gone: BTreeSet<TaskId>,
}

/// Why an entry does not follow from those before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("entry {seq} comes after entry {after}")]
    Order { seq: u64, after: u64 },
    #[error("entry {seq} has a reading of seat {seat}, which is not open")]
    Seat { seq: u64, seat: u64 },
    #[error("entry {seq} has a reading of seat {seat} whose columns are not the entry's")]
    Columns { seq: u64, seat: u64 },
}

/// Receives what each entry changes, in order.
pub trait ReplayVisitor {
    /// Called before the entry's changes.
    fn entry(&mut self, _entry: &Entry) {}

    /// `open` is the seat before the event; `None` for an event that is not about a seat.
    fn event(&mut self, _entry: &Entry, _event: &Event, _open: Option<&OpenSeat>) {}

    /// `open` is the seat before the reading.
    fn reading(&mut self, _number: u64, _open: &OpenSeat, _now: &FullReading) {}
}

impl ReplayVisitor for () {}

impl LedgerState {
    /// Applies the next entry.
    ///
    /// # Errors
    /// The first reason why a part of it does not follow; the rest is applied. A seat whose reading does not follow is closed, and its
    /// time is a gap.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), ReplayError> {
        self.follow(entry, &mut ())
    }

    /// Like [`apply`](Self::apply), and reports each change to `visitor`.
    pub fn follow(&mut self, entry: &Entry, visitor: &mut impl ReplayVisitor) -> Result<(), ReplayError> {
        let mut error = None;
        if self.seq > 0 && entry.seq <= self.seq {
            return Err(ReplayError::Order {
                seq: entry.seq,
                after: self.seq,
            });
        }
        (self.seq, self.at, self.up) = (entry.seq, entry.at, entry.up);
        visitor.entry(entry);
        for event in &entry.events {
            // At the beginning of a segment the seat may be one of the previous segment, which need not exist any more.
            if let Event::Closed {
                seat, last: Some(last), ..
            } = event
                && last.seat == *seat
                && self.seats.contains_key(seat)
            {
                let applied = self.reading(entry, last, visitor);
                error = error.or(applied.err());
            }
            self.event(entry, event, visitor);
        }
        for reading in &entry.readings {
            if let Err(replay_error) = self.reading(entry, reading, visitor) {
                self.seats.remove(&reading.seat);
                error.get_or_insert(replay_error);
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn event(&mut self, entry: &Entry, event: &Event, visitor: &mut impl ReplayVisitor) {
        let open = match event {
            Event::Opened { seat, .. } | Event::Closed { seat, .. } => self.seats.get(seat),
            _ => None,
        };
        if let Event::Boot { id } = event
            && *id == self.boot
        {
            return;
        }
        visitor.event(entry, event, open);
        match event {
            Event::Boot { id } => {
                self.boot.clone_from(id);
                // Their counters ended with the boot.
                for (seat, open) in std::mem::take(&mut self.seats) {
                    let why = Closed::Boot;
                    let last = None;
                    visitor.event(entry, &Event::Closed { seat, why, last }, Some(&open));
                }
                self.states.clear();
                self.located.clear();
            }
            Event::Opened {
                seat,
                vm,
                name,
                cpus,
                threads,
                cgroup,
                own_devices,
            } => {
                self.next_seat = self.next_seat.max(seat.saturating_add(1));
                let mut open = OpenSeat {
                    vm: vm.clone(),
                    name: name.clone(),
                    seat: Seat {
                        cpus: cpus.clone(),
                        threads: threads.clone(),
                        cgroup: cgroup.clone(),
                    },
                    own_devices: own_devices.clone(),
                    last: None,
                };
                // Repeated at the beginning of a segment, or because the seat changed.
                let before = self.seats.remove(seat);
                let same = before.filter(|before| before.vm == open.vm && before.seat == open.seat);
                open.last = same.and_then(|same| same.last);
                self.seats.insert(*seat, open);
            }
            Event::Closed { seat, .. } => {
                self.seats.remove(seat);
            }
            Event::State { vm, state } if state == ENDED_STATE => {
                self.states.remove(vm);
                self.located.remove(vm);
            }
            Event::State { vm, state } => {
                self.states.insert(vm.clone(), state.clone());
            }
            Event::Located { vm, parts } if parts.is_empty() => {
                self.located.remove(vm);
            }
            Event::Located { vm, parts } => {
                self.located.insert(vm.clone(), parts.clone());
            }
            Event::Key { key } => self.key.clone_from(key),
            Event::Started { .. }
            | Event::Stopped {}
            | Event::Intruded { .. }
            | Event::Attributed { .. }
            | Event::Clock { .. }
            | Event::Missed { .. }
            | Event::Cut { .. }
            | Event::Head { .. }
            | Event::Newer => {}
        }
    }

    fn reading(
        &mut self,
        entry: &Entry,
        reading: &Reading,
        visitor: &mut impl ReplayVisitor,
    ) -> Result<(), ReplayError> {
        let (seq, seat) = (entry.seq, reading.seat);
        let open = self.seats.get_mut(&seat).ok_or(ReplayError::Seat { seq, seat })?;
        if reading.upkeep.len() != entry.upkeep.len() || reading.softirqs.len() != entry.softirqs.len() {
            return Err(ReplayError::Columns { seq, seat });
        }
        let now = FullReading::from_stored(entry, reading, open.last.as_ref());
        visitor.reading(seat, open, &now);
        open.last = Some(now);
        Ok(())
    }
}

/// Represents bound kernel threads that may have started and ended during a long pause between samples. It is written as a thread that
/// ended.
pub(crate) const UNOBSERVED_THREAD: TaskId = TaskId { id: 0, start: 0 };

/// Represents tasks of a container that ended or came from elsewhere, or may have done so unobserved. It is written as a thread that ended:
/// the same holds for it.
pub(crate) const ENDED_TASKS: TaskId = TaskId { id: 0, start: 1 };

/// The state of a VM that ended.
pub const ENDED_STATE: &str = "gone";

impl FullReading {
    /// A stored reading with the missing counters of the previous one.
    pub(crate) fn from_stored(entry: &Entry, reading: &Reading, before: Option<&Self>) -> Self {
        let [switches, own, own_width, run_ns, delay_ns, steal] = reading.numbers;
        let before = before.filter(|_| !reading.full).map(|reading| &reading.counters);
        let mut devices = before.map(|before| before.devices.clone()).unwrap_or_default();
        for (irq, Device(name, count)) in &reading.devices {
            let fired = Fired {
                name: name.clone(),
                count: *count,
            };
            devices.insert(*irq, fired);
        }
        let mut bound = before.map(|before| before.bound.clone()).unwrap_or_default();
        for (thread, now) in &reading.bound {
            match now {
                Some(now) => bound.insert(*thread, now.clone()),
                None => bound.remove(thread),
            };
        }
        let gone = reading
            .bound
            .iter()
            .filter(|(_, now)| now.is_none())
            .map(|(thread, _)| *thread);
        let (at, up) = reading.time.unwrap_or((entry.at, entry.up));
        let columns = |names: &[String], counts: &[u32]| names.iter().cloned().zip(counts.iter().copied()).collect();
        Self {
            at,
            up,
            gone: gone.collect(),
            counters: Counters {
                switches,
                own: (own, own.saturating_add(own_width)),
                own_incomplete: false,
                run_ns,
                delay_ns,
                bound,
                bound_read: true,
                devices,
                upkeep: columns(&entry.upkeep, &reading.upkeep),
                softirqs: columns(&entry.softirqs, &reading.softirqs),
                steal,
            },
        }
    }

    /// The reading as it is stored: counters that differ from the previous one, or all if there is none.
    pub(crate) fn to_stored(&self, seat: u64, before: Option<&Self>, entry: &Entry) -> Reading {
        let counters = &self.counters;
        let before = before.map(|reading| &reading.counters);
        let devices = counters
            .devices
            .iter()
            .filter(|(irq, now)| before.is_none_or(|before| before.devices.get(irq) != Some(now)));
        let devices = devices.map(|(irq, now)| (*irq, Device(now.name.clone(), now.count)));
        let mut bound: Vec<(TaskId, Option<Bound>)> = counters
            .bound
            .iter()
            .filter(|(thread, now)| before.is_none_or(|before| before.bound.get(thread) != Some(now)))
            .map(|(thread, now)| (*thread, Some(now.clone())))
            .collect();
        bound.extend(self.gone.iter().map(|thread| (*thread, None)));
        let column = |names: &[String], counts: &BTreeMap<String, u32>| {
            names
                .iter()
                .map(|name| counts.get(name).copied().unwrap_or(0))
                .collect()
        };
        Reading {
            seat,
            numbers: [
                counters.switches,
                counters.own.0,
                counters.own.1.saturating_sub(counters.own.0),
                counters.run_ns,
                counters.delay_ns,
                counters.steal,
            ],
            upkeep: column(&entry.upkeep, &counters.upkeep),
            softirqs: column(&entry.softirqs, &counters.softirqs),
            devices: devices.collect(),
            bound,
            full: before.is_none(),
            time: ((self.at, self.up) != (entry.at, entry.up)).then_some((self.at, self.up)),
        }
    }
}
