//! What one look makes of one seat.

use std::collections::{BTreeMap, BTreeSet};

use super::events::{intruded, opened};
use super::{Keeper, Vm};
use crate::entry::{Closed, Event};
use crate::look::{Look, Seat};
use crate::standing::{Between, Known, Open};

/// A seat's reading that may be written: after that reading, or as the first one.
pub(super) type Read<'a> = (u64, Option<&'a Known>, Known);

/// An entry that is being made.
pub(super) struct Page<'a> {
    pub(super) look: &'a Look,
    pub(super) starts_segment: bool,
    /// The next seat's number.
    pub(super) next: u64,
    pub(super) events: Vec<Event>,
    pub(super) readings: Vec<Read<'a>>,
    /// Of seats that stand, whether they are written or not.
    pub(super) latest: Vec<(u64, Known)>,
    /// Seats that are still looked at.
    pub(super) still: BTreeSet<u64>,
    /// Those that are not, and why.
    pub(super) closed: BTreeMap<u64, Closed>,
}

/// What was found on the seats of one VM.
#[derive(Default)]
pub(super) struct Found<'a> {
    pub(super) readings: Vec<Read<'a>>,
    pub(super) intrusions: Vec<Event>,
    pub(super) disturbed: bool,
    /// A seat began, or something of it changed.
    pub(super) changed: bool,
}

impl Keeper {
    /// One seat that is to be looked at.
    pub(super) fn seat<'a>(
        &self,
        page: &mut Page<'a>,
        found: &mut Found<'a>,
        (uid, vm): (&str, &Vm),
        seat: &Seat,
        known: Option<(u64, &'a Open)>,
    ) {
        let read = page.look.seats.get(seat).filter(|_| !self.settling.contains(uid));
        let Some(counters) = read else {
            return self.unread(page, found, (uid, vm), seat, known);
        };
        let now = self.bound.completed(
            seat,
            Known {
                at: page.look.at_us,
                up: page.look.up_us,
                counters: counters.clone(),
                gone: BTreeSet::new(),
            },
        );
        let Some((number, known)) = known else {
            return page.open(found, (uid, vm), seat, now);
        };
        let devices = vm.own_devices.iter();
        let renewed = (!devices.eq(&known.own_devices) || known.name != vm.name).then(|| Open {
            own_devices: vm.own_devices.iter().cloned().collect(),
            ..known.clone()
        });
        let between = match &known.last {
            Some(last) => Between::new(renewed.as_ref().unwrap_or(known), last, &now).map(Some),
            None => Ok(None),
        };
        let Some(between) = between.ok().filter(|_| !self.closing.contains_key(&number)) else {
            self.close(page, number, Closed::Contradicted);
            return page.open(found, (uid, vm), seat, now);
        };
        page.still.insert(number);
        if page.starts_segment || renewed.is_some() {
            page.events.push(opened(number, uid, vm, seat));
            found.changed |= renewed.is_some();
        }
        if let Some(between) = between {
            found.disturbed |= between.is_disturbed();
            intruded(&mut found.intrusions, uid, seat, &between);
        }
        let last = known.last.as_ref();
        // The first reading is where the first window begins.
        found.changed |= last.is_none();
        page.latest.push((number, now.clone()));
        found
            .readings
            .push((number, last.filter(|_| !page.starts_segment), now));
    }

    /// One that is the VM's and was not read: it settles, or its CPU is offline. Its time counts, so it is opened.
    fn unread(
        &self,
        page: &mut Page<'_>,
        found: &mut Found<'_>,
        (uid, vm): (&str, &Vm),
        seat: &Seat,
        known: Option<(u64, &Open)>,
    ) {
        match known {
            None => {
                page.events.push(opened(page.next, uid, vm, seat));
                found.changed = true;
                page.next = page.next.saturating_add(1);
            }
            Some((number, open)) if open.last.is_none() && !self.closing.contains_key(&number) => {
                page.still.insert(number);
                let devices = vm.own_devices.iter();
                if page.starts_segment || !devices.eq(&open.own_devices) || open.name != vm.name {
                    page.events.push(opened(number, uid, vm, seat));
                }
            }
            // What it was read as before is not compared with what will be read.
            Some((number, _)) if self.settling.contains(uid) => self.close(page, number, Closed::NotRead),
            // It is closed with all that were not there.
            Some(_) => {}
        }
    }

    /// It is not looked at any more, for this reason or one from before.
    pub(super) fn close(&self, page: &mut Page<'_>, number: u64, why: Closed) {
        let why = self.closing.get(&number).copied().unwrap_or(why);
        let (seat, last) = (number, None);
        page.events.push(Event::Closed { seat, why, last });
        page.closed.insert(number, why);
    }
}

impl<'a> Page<'a> {
    /// A seat that is new, or was contradicted before.
    fn open(&mut self, found: &mut Found<'a>, (uid, vm): (&str, &Vm), seat: &Seat, now: Known) {
        self.events.push(opened(self.next, uid, vm, seat));
        found.readings.push((self.next, None, now));
        found.changed = true;
        self.next = self.next.saturating_add(1);
    }
}
