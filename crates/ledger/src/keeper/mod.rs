//! What of a look is worth an entry.
//!
//! A seat on which nothing ran that matters is read at each look and written once an hour, with all the others: nothing is lost by that, because the
//! counters go on. What matters is written at once, and while it goes on ever more rarely: a VM with a noisy neighbour must not push the other VMs'
//! entries out of the ring.

mod bound;
mod events;
mod pace;
#[cfg(test)]
mod tests;
mod vm;

use std::collections::{BTreeMap, BTreeSet};

use bound::BoundThreads;
use events::{intruded, opened, set_by, states, why_closed};
use pace::Pace;
pub use pace::hours_between;
pub use vm::Vm;

use crate::account::{Account, Folded};
use crate::day::day;
use crate::entry::{Closed, Entry, Event};
use crate::look::{Counters, Look, Seat};
use crate::standing::{Between, Known, Standing};

/// All seats are written this often, microseconds, or at a multiple of it: [`hours_between`].
const HEARTBEAT: u64 = 3_600_000_000;

/// An entry that is not kept yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    pub entry: Entry,
    /// [`Event::Intruded`] all; they are in the entry, too.
    pub intrusions: Vec<Event>,
    /// VMs whose pace changes.
    disturbed: BTreeSet<String>,
    heartbeat: bool,
}

/// Decides what is written. What it knows of the past is what the ring has.
#[derive(Debug, Clone, Default)]
pub struct Keeper {
    standing: Standing,
    boot: String,
    notes: Vec<Event>,
    missed: Option<(u64, String)>,
    /// The key in use, told at the beginning of each segment.
    key: String,
    /// Of the last look: `at` and `up`.
    looked: Option<(u64, u64)>,
    /// When all seats were written last.
    heartbeat: Option<(u64, u64)>,
    /// What the ring may hold, bytes, and how many hours are between two entries of all seats.
    room: u64,
    every: u64,
    paces: BTreeMap<String, Pace>,
    bound: BoundThreads,
    /// What the last look says of open seats that it was not written of: the end of those that are closed by the next one.
    latest: BTreeMap<u64, Known>,
}

impl Keeper {
    /// Goes on from what the ring has. Counters of another boot are not compared with this one's.
    pub fn resume(standing: Standing, boot_id: &str, version: &str) -> Self {
        let same_boot = standing.boot == boot_id;
        let mut notes = Vec::new();
        if !same_boot {
            notes.push(Event::Boot { id: boot_id.to_owned() });
        }
        notes.push(Event::Started {
            version: version.to_owned(),
        });
        Self {
            looked: same_boot.then_some((standing.at, standing.up)),
            key: standing.key.clone(),
            standing,
            boot: boot_id.to_owned(),
            notes,
            room: u64::MAX,
            every: 1,
            ..Self::default()
        }
    }

    /// What is to be looked at.
    pub fn wants(&self, vms: &BTreeMap<String, Vm>) -> BTreeSet<Seat> {
        vms.values().flat_map(Vm::looked_at).cloned().collect()
    }

    /// How many bytes the ring may hold.
    pub fn use_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// The key in use from now on, base64.
    pub fn use_key(&mut self, key: &str) {
        if self.key != key || self.standing.key != key {
            key.clone_into(&mut self.key);
            self.notes.push(Event::Key { key: key.to_owned() });
        }
    }

    /// Something happened outside: kept with the next entry, which it is reason enough for.
    pub fn note(&mut self, event: Event) {
        self.notes.push(event);
    }

    /// A look, or an entry of one, was not kept. The counters go on, so only the time in between is coarser.
    pub fn missed(&mut self, why: &str) {
        let looks = self.missed.as_ref().map_or(0, |(looks, _)| *looks);
        self.missed = Some((looks + 1, why.to_owned()));
    }

    /// The entry that this look is worth, or none. `starts_segment`: it is the first of a segment, so it says everything.
    pub fn looked(&mut self, look: &Look, vms: &BTreeMap<String, Vm>, starts_segment: bool) -> Option<Draft> {
        self.bound.take_in(look, &self.standing);
        let mut draft = Draft {
            heartbeat: starts_segment || self.is_heartbeat(look),
            ..Draft::default()
        };
        let mut events = Vec::new();
        if let Some(by) = self.looked.and_then(|before| set_by(before, look)) {
            events.push(Event::Clock { by });
        }
        self.looked = Some((look.at_us, look.up_us));
        if let Some((looks, why)) = &self.missed {
            events.push(Event::Missed {
                looks: *looks,
                why: why.clone(),
            });
        }
        let fresh = self.standing.boot != self.boot;
        let empty = BTreeMap::new();
        let open = if fresh { &empty } else { &self.standing.seats };
        states(
            &mut events,
            if fresh { None } else { Some(&self.standing.states) },
            vms,
            starts_segment,
        );

        let by_seat: BTreeMap<(&str, &Seat), u64> = open
            .iter()
            .map(|(number, open)| ((open.vm.as_str(), &open.seat), *number))
            .collect();
        let mut readings = Vec::new();
        let (mut still, mut newest) = (BTreeSet::new(), Vec::new());
        let mut next = self.standing.next_seat;
        for (uid, vm) in vms {
            let disturbed_before = events.len();
            let mut due = draft.heartbeat;
            let mut of_vm = Vec::new();
            for seat in vm.looked_at() {
                let Some(counters) = look.seats.get(seat) else { continue };
                let known = by_seat
                    .get(&(uid.as_str(), seat))
                    .map(|number| (*number, &open[number]));
                let now = Known {
                    at: look.at_us,
                    up: look.up_us,
                    counters: counters.clone(),
                    gone: BTreeSet::new(),
                };
                let Some((number, known)) = known else {
                    events.push(opened(next, uid, vm, seat));
                    of_vm.push((next, None, self.bound.completed(seat, now)));
                    next += 1;
                    due = true;
                    continue;
                };
                still.insert(number);
                let Some(last) = &known.last else {
                    of_vm.push((number, None, self.bound.completed(seat, now)));
                    continue;
                };
                let now = self.bound.completed(seat, now);
                match Between::new(known, last, &now) {
                    Ok(between) => {
                        intruded(&mut events, uid, seat, &between);
                        let before = if starts_segment { None } else { Some(last) };
                        if starts_segment {
                            events.push(opened(number, uid, vm, seat));
                        }
                        newest.push((number, now.clone()));
                        of_vm.push((number, before, now));
                    }
                    Err(_) => {
                        events.push(Event::Closed {
                            seat: number,
                            why: Closed::Contradicted,
                            last: None,
                        });
                        events.push(opened(next, uid, vm, seat));
                        of_vm.push((next, None, now));
                        next += 1;
                        due = true;
                    }
                }
            }
            let intrusions = events[disturbed_before..]
                .iter()
                .filter(|event| matches!(event, Event::Intruded { .. }));
            let intrusions: Vec<Event> = intrusions.cloned().collect();
            let disturbed = of_vm.iter().any(|(number, before, now)| {
                let seat = open.get(number);
                let between = seat
                    .zip(*before)
                    .and_then(|(seat, before)| Between::new(seat, before, now).ok());
                between.is_some_and(|between| between.is_disturbed())
            }) || !intrusions.is_empty();
            if disturbed {
                due |= self.paces.entry(uid.clone()).or_default().is_due(look.up_us);
            }
            if !due {
                // Not now: what ran stays in the counters.
                let keep: Vec<Event> = events
                    .drain(disturbed_before..)
                    .filter(|event| !matches!(event, Event::Intruded { .. }))
                    .collect();
                events.extend(keep);
                continue;
            }
            if disturbed {
                draft.disturbed.insert(uid.clone());
                draft.intrusions.extend(intrusions);
            }
            readings.extend(of_vm);
        }
        for (number, known) in open {
            if !still.contains(number) {
                let why = why_closed(known, vms);
                events.push(Event::Closed {
                    seat: *number,
                    why,
                    last: None,
                });
            }
        }
        // An empty node writes nothing.
        let nothing = readings.is_empty() && events.is_empty() && self.notes.is_empty();
        if !nothing || starts_segment && !vms.is_empty() {
            draft.entry = self.entry(look, starts_segment, events, &readings);
        }
        self.latest.extend(newest);
        (draft.entry != Entry::default()).then_some(draft)
    }

    fn entry(
        &self,
        look: &Look,
        starts_segment: bool,
        events: Vec<Event>,
        readings: &[(u64, Option<&Known>, Known)],
    ) -> Entry {
        let mut all = self.notes.clone();
        if starts_segment {
            all.retain(|event| !matches!(event, Event::Boot { .. } | Event::Key { .. }));
            let key = Event::Key { key: self.key.clone() };
            let boot = Event::Boot { id: self.boot.clone() };
            all.splice(0..0, [boot].into_iter().chain((!self.key.is_empty()).then_some(key)));
        }
        all.extend(events);
        let closing = |event: &Event| match event {
            Event::Closed { seat, .. } => Some((*seat, self.latest.get(seat)?, self.standing.seats.get(seat)?)),
            _ => None,
        };
        let names = |of: fn(&Counters) -> &BTreeMap<String, u32>| -> Vec<String> {
            let ends = all.iter().filter_map(closing).map(|(_, latest, _)| latest);
            let written = readings.iter().map(|(_, _, now)| now).chain(ends);
            let used = written.flat_map(|now| of(&now.counters));
            let used: BTreeSet<&String> = used.filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
            used.into_iter().cloned().collect()
        };
        let mut entry = Entry {
            at: look.at_us,
            up: look.up_us,
            upkeep: names(|counters| &counters.upkeep),
            softirqs: names(|counters| &counters.softirqs),
            ..Entry::default()
        };
        for event in &mut all {
            let end = closing(event).map(|(seat, latest, open)| latest.reading(seat, open.last.as_ref(), &entry));
            if let Event::Closed { last, .. } = event {
                *last = end.map(Box::new);
            }
        }
        entry.events = all;
        entry.readings = readings
            .iter()
            .map(|(number, before, now)| now.reading(*number, *before, &entry))
            .collect();
        entry
    }

    /// Readings of all seats as they are now, to end an account with; it is not for the ring, so whoever asks, and however often, fills
    /// nothing.
    pub fn provisional(&mut self, look: &Look, vms: &BTreeMap<String, Vm>) -> Entry {
        self.bound.take_in(look, &self.standing);
        let mut readings = Vec::new();
        for (number, open) in &self.standing.seats {
            let there = vms
                .get(&open.vm)
                .is_some_and(|vm| vm.looked_at().any(|seat| *seat == open.seat));
            if let (true, Some(last), Some(counters)) = (there, &open.last, look.seats.get(&open.seat)) {
                let now = Known {
                    at: look.at_us,
                    up: look.up_us,
                    counters: counters.clone(),
                    gone: BTreeSet::new(),
                };
                let now = self.bound.completed(&open.seat, now);
                // What was told of once is not less afterwards.
                if Between::new(open, last, &now).is_ok() {
                    self.latest.insert(*number, now.clone());
                    readings.push((*number, Some(last), now));
                }
            }
        }
        let mut entry = self.entry(look, false, Vec::new(), &readings);
        entry.events.clear();
        entry.seq = self.standing.seq + 1;
        entry
    }

    /// The ring has it, in so many bytes, and has given it its number. Answers what it booked, by VM: the windows that end with it, and gaps.
    pub fn kept(&mut self, draft: Draft, bytes: u64) -> BTreeMap<String, Account> {
        let Draft {
            entry,
            disturbed,
            heartbeat,
            ..
        } = draft;
        self.notes.clear();
        self.missed = None;
        for vm in disturbed {
            self.paces.entry(vm).or_default().written(entry.up);
        }
        if heartbeat {
            self.heartbeat = Some((entry.at, entry.up));
            self.every = hours_between(bytes, self.room);
            self.paces.retain(|_, pace| !pace.is_quiet(entry.up));
        }
        // It follows from what stands: it was made of it.
        let mut folded = Folded::new(0, 0, None);
        let _ = self.standing.follow(&entry, &mut folded);
        for reading in &entry.readings {
            self.latest.remove(&reading.seat);
        }
        let open = &self.standing.seats;
        self.latest.retain(|seat, _| open.contains_key(seat));
        for reading in &entry.readings {
            if let Some(open) = self.standing.seats.get(&reading.seat) {
                self.bound.written(&open.seat);
            }
        }
        folded.finish()
    }

    /// The last entry of a daemon that was told to end; none where it would have to begin a segment, which is for readings.
    pub fn stopped(&mut self, at_us: u64, up_us: u64, starts_segment: bool) -> Option<Entry> {
        if starts_segment {
            return None;
        }
        let mut entry = Entry {
            at: at_us,
            up: up_us,
            events: std::mem::take(&mut self.notes),
            ..Entry::default()
        };
        entry.events.push(Event::Stopped {});
        Some(entry)
    }

    /// The first look of each hour since boot, and of each UTC day, is of all seats.
    fn is_heartbeat(&self, look: &Look) -> bool {
        let hour = |up: u64| up / (HEARTBEAT * self.every.max(1));
        self.heartbeat
            .is_none_or(|(at, up)| hour(up) != hour(look.up_us) || day(at) != day(look.at_us))
    }
}
