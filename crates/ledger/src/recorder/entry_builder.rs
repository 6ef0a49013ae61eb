//! Adds one seat's part of a sample to the next entry.

use std::collections::{BTreeMap, BTreeSet};

use super::events::{add_intrusions, opened};
use super::{EntryRecorder, RecordedVm};
use crate::entry::{Closed, Event};
use crate::replay::{FullReading, OpenSeat, ReadingDelta};
use crate::sample::{CounterSample, Seat};

/// A seat's number, its previous reading, and the new one.
pub(super) type SeatReading<'a> = (u64, Option<&'a FullReading>, FullReading);

/// An entry under construction.
pub(super) struct EntryBuilder<'a> {
    pub(super) sample: &'a CounterSample,
    pub(super) starts_segment: bool,
    /// The next seat's number.
    pub(super) next_seat: u64,
    pub(super) events: Vec<Event>,
    pub(super) readings: Vec<SeatReading<'a>>,
    /// The readings of open seats, whether they are written or not.
    pub(super) latest: Vec<(u64, FullReading)>,
    /// Seats that stay open.
    pub(super) still_open: BTreeSet<u64>,
    /// Seats that are closed, and why.
    pub(super) closed: BTreeMap<u64, Closed>,
}

/// The readings and intrusions of one VM's seats.
#[derive(Default)]
pub(super) struct VmReadings<'a> {
    pub(super) readings: Vec<SeatReading<'a>>,
    pub(super) intrusions: Vec<Event>,
    pub(super) is_disturbed: bool,
    /// Whether a seat is new or changed.
    pub(super) is_changed: bool,
}

impl EntryRecorder {
    /// Adds one seat. `known`: its number and state, if it is open.
    pub(super) fn add_seat<'a>(
        &self,
        builder: &mut EntryBuilder<'a>,
        vm_readings: &mut VmReadings<'a>,
        (uid, vm): (&str, &RecordedVm),
        seat: &Seat,
        known: Option<(u64, &'a OpenSeat)>,
    ) {
        let read = builder.sample.seats.get(seat).filter(|_| !self.settling.contains(uid));
        let Some(counters) = read else {
            return self.add_unread(builder, vm_readings, (uid, vm), seat, known);
        };
        let now = self.bound.complete(builder.sample, seat, counters);
        let Some((number, known)) = known else {
            return builder.open_seat(vm_readings, (uid, vm), seat, now);
        };
        let (now, is_earlier) = self.before_ended_interrupts(number, known, now);
        vm_readings.is_changed |= is_earlier;
        let devices = vm.own_devices.iter();
        let changed = (!devices.eq(&known.own_devices) || known.name != vm.name).then(|| OpenSeat {
            own_devices: vm.own_devices.iter().cloned().collect(),
            ..known.clone()
        });
        let delta = match &known.last {
            Some(last) => ReadingDelta::new(changed.as_ref().unwrap_or(known), last, &now).map(Some),
            None => Ok(None),
        };
        let Some(delta) = delta.ok().filter(|_| !self.closing.contains_key(&number)) else {
            self.close(builder, number, Closed::Contradicted);
            return builder.open_seat(vm_readings, (uid, vm), seat, now);
        };
        builder.still_open.insert(number);
        if builder.starts_segment || changed.is_some() {
            builder.events.push(opened(number, uid, vm, seat));
            vm_readings.is_changed |= changed.is_some();
        }
        if let Some(delta) = delta {
            vm_readings.is_disturbed |= delta.is_disturbed();
            add_intrusions(&mut vm_readings.intrusions, uid, seat, &delta);
        }
        let last = known.last.as_ref();
        // The first reading is where the first window begins.
        vm_readings.is_changed |= last.is_none();
        builder.latest.push((number, now.clone()));
        vm_readings
            .readings
            .push((number, last.filter(|_| !builder.starts_segment), now));
    }

    /// Adds a seat that was not read, because its VM settles, its CPU is offline, or its container has too many tasks. It is opened all the
    /// same, so that the time is a gap.
    fn add_unread(
        &self,
        builder: &mut EntryBuilder<'_>,
        vm_readings: &mut VmReadings<'_>,
        (uid, vm): (&str, &RecordedVm),
        seat: &Seat,
        known: Option<(u64, &OpenSeat)>,
    ) {
        let has_too_many = builder.sample.too_many_tasks.contains(seat);
        match known {
            None => builder.open_unread(vm_readings, (uid, vm), seat),
            // The gap that begins has the reason, and the seat that is opened for it keeps it.
            Some((number, _)) if has_too_many && !self.too_many.contains(&number) => {
                self.close(builder, number, Closed::TooManyTasks);
                builder.open_unread(vm_readings, (uid, vm), seat);
            }
            Some((number, open)) if open.last.is_none() && !self.closing.contains_key(&number) => {
                builder.still_open.insert(number);
                let devices = vm.own_devices.iter();
                if builder.starts_segment || !devices.eq(&open.own_devices) || open.name != vm.name {
                    builder.events.push(opened(number, uid, vm, seat));
                }
            }
            // Its next reading must not be compared with the earlier one.
            Some((number, _)) if self.settling.contains(uid) => self.close(builder, number, Closed::NotRead),
            // It is closed later, with all seats that were not read.
            Some(_) => {}
        }
    }

    /// Closes a seat, for this reason or for the one for which it could not be closed before.
    pub(super) fn close(&self, builder: &mut EntryBuilder<'_>, number: u64, why: Closed) {
        let why = self.closing.get(&number).copied().unwrap_or(why);
        let (seat, last) = (number, None);
        builder.events.push(Event::Closed { seat, why, last });
        builder.closed.insert(number, why);
    }
}

impl<'a> EntryBuilder<'a> {
    /// Opens a seat that is new, or that was closed because its counters contradicted each other.
    fn open_seat(
        &mut self,
        vm_readings: &mut VmReadings<'a>,
        (uid, vm): (&str, &RecordedVm),
        seat: &Seat,
        now: FullReading,
    ) {
        self.events.push(opened(self.next_seat, uid, vm, seat));
        vm_readings.readings.push((self.next_seat, None, now));
        vm_readings.is_changed = true;
        self.next_seat = self.next_seat.saturating_add(1);
    }

    fn open_unread(&mut self, vm_readings: &mut VmReadings<'_>, (uid, vm): (&str, &RecordedVm), seat: &Seat) {
        self.events.push(opened(self.next_seat, uid, vm, seat));
        vm_readings.is_changed = true;
        self.next_seat = self.next_seat.saturating_add(1);
    }
}
