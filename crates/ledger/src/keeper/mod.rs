//! What of a look is worth an entry.
//!
//! A seat on which nothing ran that matters is read at each look and written once an hour, with all the others: nothing is lost by that, because the
//! counters go on. What matters is written at once, and while it goes on ever more rarely: a VM with a noisy neighbour must not push the other VMs'
//! entries out of the ring.

mod pace;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use pace::Pace;

use crate::account::{Account, Folded};
use crate::day::day;
use crate::entry::{Class, Closed, Entry, Event};
use crate::look::{Bound, Counters, Look, Seat, Thread};
use crate::standing::{Between, GONE, Known, Open, Standing};

/// All seats are written this often, microseconds.
const HEARTBEAT: u64 = 3_600_000_000;

/// The realtime clock was set if it went on by so much more or less than the other one, microseconds.
const JUMP: u64 = 1_000_000;

/// What the daemon knows of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vm {
    /// `namespace/name`; may be empty.
    pub name: String,
    /// As D-Bus has it.
    pub state: String,
    /// Looked at in the states `isolated` and `contained`.
    pub seats: BTreeSet<Seat>,
    /// PCI addresses.
    pub own_devices: BTreeSet<String>,
}

impl Vm {
    fn looked_at(&self) -> impl Iterator<Item = &Seat> {
        let promises = matches!(self.state.as_str(), "isolated" | "contained");
        self.seats.iter().filter(move |_| promises)
    }
}

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
    paces: BTreeMap<String, Pace>,
    bound: BTreeMap<Seat, BoundThreads>,
}

/// What a look says of bound kernel threads it says once: they are read only where something ran since the look before.
#[derive(Debug, Clone, Default)]
struct BoundThreads {
    /// As they were read last.
    now: BTreeMap<Thread, Bound>,
    /// Each that was there at a look since the seat was written.
    seen: BTreeSet<Thread>,
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
            ..Self::default()
        }
    }

    /// What is to be looked at.
    pub fn wants(&self, vms: &BTreeMap<String, Vm>) -> BTreeSet<Seat> {
        vms.values().flat_map(Vm::looked_at).cloned().collect()
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
        self.take_in(look);
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
        let mut still = BTreeSet::new();
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
                    of_vm.push((next, None, self.completed(seat, now)));
                    next += 1;
                    due = true;
                    continue;
                };
                still.insert(number);
                let Some(last) = &known.last else {
                    of_vm.push((number, None, self.completed(seat, now)));
                    continue;
                };
                let now = self.completed(seat, now);
                match Between::new(known, last, &now) {
                    Ok(between) => {
                        intruded(&mut events, uid, seat, &between);
                        let before = if starts_segment { None } else { Some(last) };
                        if starts_segment {
                            events.push(opened(number, uid, vm, seat));
                        }
                        of_vm.push((number, before, now));
                    }
                    Err(_) => {
                        events.push(Event::Closed {
                            seat: number,
                            why: Closed::Contradicted,
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
            if !still.contains(number) && !contradicted(&events, *number) {
                let why = why_closed(known, vms);
                events.push(Event::Closed { seat: *number, why });
            }
        }
        if readings.is_empty() && events.is_empty() && self.notes.is_empty() && !starts_segment {
            return None;
        }
        // Nobody to read and nothing that happened: an empty node writes nothing.
        if readings.is_empty() && events.is_empty() && self.notes.is_empty() && vms.is_empty() {
            return None;
        }
        draft.entry = self.entry(look, starts_segment, events, &readings);
        Some(draft)
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
        let names = |of: fn(&Counters) -> &BTreeMap<String, u32>| -> Vec<String> {
            let used = readings.iter().flat_map(|(_, _, now)| of(&now.counters));
            let used: BTreeSet<&String> = used.filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
            used.into_iter().cloned().collect()
        };
        let mut entry = Entry {
            at: look.at_us,
            up: look.up_us,
            upkeep: names(|counters| &counters.upkeep),
            softirqs: names(|counters| &counters.softirqs),
            events: all,
            ..Entry::default()
        };
        entry.readings = readings
            .iter()
            .map(|(number, before, now)| now.reading(*number, *before, &entry))
            .collect();
        entry
    }

    /// Readings of all seats as they are now, to end an account with; it is not for the ring, so whoever asks, and however often, fills
    /// nothing.
    pub fn provisional(&mut self, look: &Look, vms: &BTreeMap<String, Vm>) -> Entry {
        self.take_in(look);
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
                readings.push((*number, Some(last), self.completed(&open.seat, now)));
            }
        }
        let mut entry = self.entry(look, false, Vec::new(), &readings);
        entry.events.clear();
        entry.seq = self.standing.seq + 1;
        entry
    }

    /// The ring has it, and has given it its number. Answers what it booked, by VM: the windows that end with it, and gaps.
    pub fn kept(&mut self, draft: Draft) -> BTreeMap<String, Account> {
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
            self.paces.retain(|_, pace| !pace.is_quiet(entry.up));
        }
        // It follows from what stands: it was made of it.
        let mut folded = Folded::new(0, 0, None);
        let _ = self.standing.follow(&entry, &mut folded);
        for reading in &entry.readings {
            let open = self.standing.seats.get(&reading.seat);
            if let Some(bound) = open.and_then(|open| self.bound.get_mut(&open.seat)) {
                bound.seen = bound.now.keys().copied().collect();
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

    /// Each look counts, whether it is written or not.
    fn take_in(&mut self, look: &Look) {
        self.bound.retain(|seat, _| look.seats.contains_key(seat));
        for (seat, counters) in &look.seats {
            if let Some(known) = self.bound.get_mut(seat)
                && !counters.bound_read
            {
                known.seen.extend(known.now.keys().copied());
                continue;
            }
            let known = self.bound.entry(seat.clone()).or_default();
            known.now.clone_from(&counters.bound);
            known.seen.extend(counters.bound.keys().copied());
        }
        // What the ring has of them was seen as well.
        for open in self.standing.seats.values() {
            if let (Some(known), Some(last)) = (self.bound.get_mut(&open.seat), &open.last) {
                known.seen.extend(last.counters.bound.keys().copied());
            }
        }
    }

    /// With the bound threads as they are known, and those that are gone.
    fn completed(&self, seat: &Seat, mut now: Known) -> Known {
        if let Some(known) = self.bound.get(seat) {
            now.counters.bound.clone_from(&known.now);
            now.gone = known
                .seen
                .iter()
                .filter(|thread| !known.now.contains_key(thread))
                .copied()
                .collect();
        }
        now.counters.bound_read = true;
        now
    }

    /// The first look of each hour since boot, and of each UTC day, is of all seats.
    fn is_heartbeat(&self, look: &Look) -> bool {
        let hour = |up: u64| up / HEARTBEAT;
        self.heartbeat
            .is_none_or(|(at, up)| hour(up) != hour(look.up_us) || day(at) != day(look.at_us))
    }
}

fn contradicted(events: &[Event], number: u64) -> bool {
    let is = |event: &Event| matches!(event, Event::Closed { seat, .. } if *seat == number);
    events.iter().any(is)
}

/// By how much the realtime clock was set.
fn set_by((at, up): (u64, u64), look: &Look) -> Option<i64> {
    let expected = at.saturating_add(look.up_us.saturating_sub(up));
    let by = i64::try_from(i128::from(look.at_us) - i128::from(expected)).ok()?;
    (by.unsigned_abs() > JUMP).then_some(by)
}

fn states(events: &mut Vec<Event>, before: Option<&BTreeMap<String, String>>, vms: &BTreeMap<String, Vm>, all: bool) {
    let empty = BTreeMap::new();
    let before = before.unwrap_or(&empty);
    for (vm, now) in vms {
        if all || before.get(vm) != Some(&now.state) {
            events.push(Event::State {
                vm: vm.clone(),
                state: now.state.clone(),
            });
        }
    }
    for vm in before.keys().filter(|vm| !vms.contains_key(*vm)) {
        events.push(Event::State {
            vm: vm.clone(),
            state: GONE.to_owned(),
        });
    }
}

fn opened(number: u64, uid: &str, vm: &Vm, seat: &Seat) -> Event {
    Event::Opened {
        seat: number,
        vm: uid.to_owned(),
        name: vm.name.clone(),
        cpus: seat.cpus.clone(),
        threads: seat.threads.clone(),
        own_devices: vm.own_devices.iter().cloned().collect(),
    }
}

fn intruded(events: &mut Vec<Event>, uid: &str, seat: &Seat, between: &Between) {
    let mut tell = |class, name: &str, count| {
        events.push(Event::Intruded {
            vm: uid.to_owned(),
            cpus: seat.cpus.to_string(),
            class,
            name: name.to_owned(),
            count,
        });
    };
    if between.other.least > 0 {
        tell(Class::OtherTasks, "", (between.other.least, between.other.most));
    }
    for (name, count) in &between.devices {
        tell(Class::Devices, name, (*count, *count));
    }
}

fn why_closed(known: &Open, vms: &BTreeMap<String, Vm>) -> Closed {
    let Some(vm) = vms.get(&known.vm) else {
        return Closed::Ended;
    };
    if vm.looked_at().next().is_none() {
        return Closed::NotIsolated;
    }
    if vm.seats.contains(&known.seat) {
        // It is to be looked at, and was not there.
        return Closed::Offline;
    }
    let elsewhere = |thread| vm.seats.iter().any(|seat| seat.threads.contains(thread));
    match known.seat.threads.is_empty() || known.seat.threads.iter().any(elsewhere) {
        true => Closed::Moved,
        false => Closed::Ended,
    }
}
