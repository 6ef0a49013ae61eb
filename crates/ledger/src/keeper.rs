//! What of a look is worth an entry: pure, without a clock and without files.
//!
//! A seat's reading is kept when it is opened, when something else ran on it, once an hour, and at the beginning of each segment. What
//! changes nothing in between is in the next reading: the kernel's counters only rise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::entry::{Class, Closed, Device, Entry, Event, Reading};
use crate::look::{Bound, Counters, Look, Seat, Thread};
use crate::standing::{GONE, Numbers, Open, Standing};

/// After so long a reading is kept whatever it says, microseconds: it shows that somebody looked.
const HEARTBEAT: u64 = 3600 * 1_000_000;
/// Where something else runs all the time it is kept this often, microseconds, or a month would not fit.
const AGAIN: u64 = 600 * 1_000_000;
/// The realtime clock was set if it is off by more than this, microseconds: small steps are an NTP daemon's.
const SET: u64 = 1_000_000;
/// Events that wait for the next entry.
const NOTES: usize = 1024;

/// A VM as the daemon sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vm {
    /// `namespace/name`; empty where it is not known.
    pub name: String,
    /// As D-Bus has it.
    pub state: String,
    /// Its CPUs; empty unless they are its own now.
    pub seats: BTreeSet<Seat>,
    /// PCI addresses.
    pub own_devices: BTreeSet<String>,
}

/// VMs by pod UID.
pub type Vms = BTreeMap<String, Vm>;

/// Why was looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is the audit's time.
    Audit,
    /// Something of the VMs changed.
    Change,
    /// Somebody asks: all is read, for an answer and not for the ring.
    Query,
}

/// An entry that is to be kept, or shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Without a number: the ring has it.
    pub entry: Entry,
    /// Those of its events that are [`Event::Intruded`].
    pub intrusions: Vec<Event>,
    /// How many of the events that waited are in it.
    noted: usize,
}

/// Decides what is kept, and knows what was.
#[derive(Debug, Default)]
pub struct Keeper {
    standing: Standing,
    waiting: VecDeque<Event>,
    /// Bound threads as they were last read: a look leaves them out where they did not run.
    bound: BTreeMap<Seat, BTreeMap<Thread, Bound>>,
}

impl Keeper {
    /// Go on from what entries left.
    pub fn resume(standing: Standing, boot_id: &str, version: &str) -> Self {
        let mut keeper = Self {
            standing,
            ..Self::default()
        };
        if keeper.standing.boot != boot_id {
            for seat in keeper.standing.seats.keys() {
                keeper.waiting.push_back(Event::Closed {
                    seat: *seat,
                    why: Closed::Boot,
                });
            }
            keeper.waiting.push_back(Event::Boot { id: boot_id.to_owned() });
        }
        keeper.waiting.push_back(Event::Started {
            version: version.to_owned(),
        });
        keeper
    }

    /// This public key signs from now on.
    pub fn use_key(&mut self, key: &str) {
        if self.standing.key != key {
            self.note(Event::Key { key: key.to_owned() });
        }
    }

    /// What is to be looked at.
    pub fn wants(&self, vms: &Vms) -> BTreeSet<Seat> {
        vms.values().flat_map(|vm| vm.seats.iter().cloned()).collect()
    }

    /// What the entries that were kept leave.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Have this kept with the next entry.
    pub fn note(&mut self, event: Event) {
        if self.waiting.len() < NOTES {
            self.waiting.push_back(event);
        }
    }

    /// A look was not kept.
    pub fn missed(&mut self, reason: &str) {
        if let Some(Event::Missed { looks, why }) = self.waiting.back_mut()
            && why == reason
        {
            *looks = looks.saturating_add(1);
            return;
        }
        self.note(Event::Missed {
            looks: 1,
            why: reason.to_owned(),
        });
    }

    /// What is to be kept of a look; `None`: nothing. Nothing is decided before [`kept`](Self::kept): if the entry cannot be written
    /// the next look has all of it.
    pub fn looked(&mut self, look: &Look, vms: &Vms, why: Why, starts_segment: bool) -> Option<Draft> {
        self.remember(look);
        let mut after = self.standing.clone();
        let mut events: Vec<Event> = self.waiting.iter().cloned().collect();
        events.iter().for_each(|event| after.happened(event));
        events.extend(self.clock(look));
        let mut changes = states(&after.states, vms);
        changes.extend(closed(&after, look, vms));
        let (mut full, mut readings, mut intrusions) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        for (seat, open) in &after.seats {
            if changes
                .iter()
                .any(|event| matches!(event, Event::Closed { seat: closed, .. } if closed == seat))
            {
                continue;
            }
            let Some(now) = self.numbers(look, &open.seat) else {
                continue;
            };
            let Some(last) = &open.last else {
                full.insert(*seat);
                readings.insert(*seat, now);
                continue;
            };
            let Some(foreign) = now.foreign(last) else {
                changes.push(Event::Closed {
                    seat: *seat,
                    why: Closed::Contradicted,
                });
                continue;
            };
            let found = intruded(open, &now, last, foreign);
            let age = now.up.saturating_sub(last.up);
            let worth = !found.is_empty() && (!open.intruded || age >= AGAIN) || age >= HEARTBEAT;
            if worth || starts_segment || why == Why::Query {
                intrusions.extend(found);
                readings.insert(*seat, now);
            }
        }
        changes.iter().for_each(|event| after.happened(event));
        for (vm, seat) in vms
            .iter()
            .flat_map(|(uid, vm)| vm.seats.iter().map(move |seat| ((uid, vm), seat)))
        {
            let (uid, vm) = vm;
            let known = |open: &Open| open.vm == *uid && open.seat == *seat;
            if let (false, Some(now)) = (after.seats.values().any(known), self.numbers(look, seat)) {
                let number = after.next;
                let opened = opened(number, uid, vm, seat);
                after.happened(&opened);
                changes.push(opened);
                full.insert(number);
                readings.insert(number, now);
            }
        }
        events.extend(changes);
        events.extend(intrusions.iter().cloned());
        if events.is_empty() && readings.is_empty() {
            return None;
        }
        if starts_segment {
            events = declared(&after, events);
            full.extend(readings.keys());
        }
        let mut entry = Entry {
            at: look.at_us,
            up: look.up_us,
            events,
            ..Entry::default()
        };
        write(&mut entry, readings, &after, &full);
        Some(Draft {
            entry,
            intrusions,
            noted: self.waiting.len(),
        })
    }

    /// The entry is in the ring.
    pub fn kept(&mut self, draft: &Draft) {
        self.standing.apply(&draft.entry);
        self.waiting.drain(..draft.noted.min(self.waiting.len()));
    }

    /// The daemon was told to end. Without a look nothing can begin a segment.
    pub fn stopped(&mut self, at_us: u64, up_us: u64, starts_segment: bool) -> Option<Draft> {
        if starts_segment {
            return None;
        }
        let waiting = self.waiting.iter().cloned();
        Some(Draft {
            entry: Entry {
                at: at_us,
                up: up_us,
                events: waiting.chain([Event::Stopped {}]).collect(),
                ..Entry::default()
            },
            intrusions: Vec::new(),
            noted: self.waiting.len(),
        })
    }

    fn remember(&mut self, look: &Look) {
        self.bound.retain(|seat, _| look.seats.contains_key(seat));
        for (seat, counters) in look.seats.iter().filter(|(_, counters)| counters.bound_read) {
            self.bound.insert(seat.clone(), counters.bound.clone());
        }
    }

    fn numbers(&self, look: &Look, seat: &Seat) -> Option<Numbers> {
        let counters = look.seats.get(seat)?;
        let before = self.standing.seats.values().find(|open| open.seat == *seat);
        let before = || {
            before
                .and_then(|open| open.last.as_ref())
                .map(|last| last.bound.clone())
        };
        let bound = self.bound.get(seat).cloned().or_else(before);
        Some(numbers(look, counters, bound.unwrap_or_default()))
    }

    fn clock(&self, look: &Look) -> Option<Event> {
        let (at, up) = (self.standing.at, self.standing.up);
        if at == 0 || up == 0 || look.up_us < up {
            return None;
        }
        let expected = at.saturating_add(look.up_us - up);
        let by = i64::try_from(i128::from(look.at_us) - i128::from(expected)).ok()?;
        (by.unsigned_abs() > SET).then_some(Event::Clock { by })
    }
}

fn numbers(look: &Look, counters: &Counters, bound: BTreeMap<Thread, Bound>) -> Numbers {
    let (least, most) = counters.own;
    let device = |(number, fired): (&u32, &crate::look::Fired)| (*number, Device(fired.name.clone(), fired.count));
    Numbers {
        at: look.at_us,
        up: look.up_us,
        numbers: [
            counters.switches,
            least,
            most.saturating_sub(least),
            counters.run_ns,
            counters.delay_ns,
            counters.steal,
        ],
        upkeep: counters.upkeep.clone(),
        softirqs: counters.softirqs.clone(),
        devices: counters.devices.iter().map(device).collect(),
        bound,
    }
}

fn states(known: &BTreeMap<String, String>, vms: &Vms) -> Vec<Event> {
    let changed = vms.iter().filter(|(uid, vm)| known.get(*uid) != Some(&vm.state));
    let changed = changed.map(|(uid, vm)| (uid, vm.state.clone()));
    let gone = known.keys().filter(|uid| !vms.contains_key(*uid));
    let all = changed.chain(gone.map(|uid| (uid, GONE.to_owned())));
    all.map(|(vm, state)| Event::State { vm: vm.clone(), state }).collect()
}

fn closed(standing: &Standing, look: &Look, vms: &Vms) -> Vec<Event> {
    let why = |open: &Open| {
        let Some(vm) = vms.get(&open.vm) else {
            return Some(Closed::Ended);
        };
        if vm.seats.contains(&open.seat) {
            let lost = match open.seat.threads.is_empty() {
                true => Closed::Offline,
                false => Closed::Ended,
            };
            return (!look.seats.contains_key(&open.seat)).then_some(lost);
        }
        let elsewhere = |thread: &Thread| vm.seats.iter().any(|seat| seat.threads.contains(thread));
        Some(match () {
            () if vm.seats.is_empty() => Closed::NotIsolated,
            () if open.seat.threads.iter().any(elsewhere) => Closed::Moved,
            () => Closed::Ended,
        })
    };
    let closed = standing
        .seats
        .iter()
        .filter_map(|(seat, open)| Some((*seat, why(open)?)));
    closed.map(|(seat, why)| Event::Closed { seat, why }).collect()
}

fn opened(seat: u64, uid: &str, vm: &Vm, of: &Seat) -> Event {
    Event::Opened {
        seat,
        vm: uid.to_owned(),
        name: vm.name.clone(),
        cpus: of.cpus.clone(),
        threads: of.threads.clone(),
        own_devices: vm.own_devices.iter().cloned().collect(),
    }
}

fn intruded(open: &Open, now: &Numbers, last: &Numbers, (least, most): (u64, u64)) -> Vec<Event> {
    let event = |class, name: &str, count| Event::Intruded {
        vm: open.vm.clone(),
        cpus: open.seat.cpus.to_string(),
        class,
        name: name.to_owned(),
        count,
    };
    let tasks = (least > 0).then(|| event(Class::OtherTasks, "", (least, most)));
    let devices = now.fired(last, &open.own_devices).filter(|(_, _, own)| !own);
    tasks
        .into_iter()
        .chain(devices.map(|(name, count, _)| event(Class::Devices, name, (count, count))))
        .collect()
}

/// The events of an entry that begins a segment: all that is needed to read it alone comes first.
fn declared(after: &Standing, events: Vec<Event>) -> Vec<Event> {
    let is_said = |event: &Event| matches!(event, Event::Boot { .. } | Event::Key { .. } | Event::Opened { .. });
    let mut all = vec![Event::Boot { id: after.boot.clone() }];
    if !after.key.is_empty() {
        all.push(Event::Key { key: after.key.clone() });
    }
    let closed = |number: &u64| {
        events
            .iter()
            .any(|event| matches!(event, Event::Closed { seat, .. } if seat == number))
    };
    for (number, open) in after.seats.iter().filter(|(number, _)| !closed(number)) {
        let vm = Vm {
            name: open.name.clone(),
            own_devices: open.own_devices.clone(),
            ..Vm::default()
        };
        all.push(opened(*number, &open.vm, &vm, &open.seat));
    }
    let told = events.iter().filter_map(|event| match event {
        Event::State { vm, .. } => Some(vm.clone()),
        _ => None,
    });
    let told: BTreeSet<String> = told.collect();
    for (vm, state) in after.states.iter().filter(|(vm, _)| !told.contains(*vm)) {
        all.push(Event::State {
            vm: vm.clone(),
            state: state.clone(),
        });
    }
    all.extend(events.into_iter().filter(|event| !is_said(event)));
    all
}

/// The readings, with one order of names for all.
fn write(entry: &mut Entry, readings: BTreeMap<u64, Numbers>, after: &Standing, full: &BTreeSet<u64>) {
    let names = |of: fn(&Numbers) -> &BTreeMap<String, u32>| {
        let names: BTreeSet<String> = readings.values().flat_map(|now| of(now).keys().cloned()).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    (entry.upkeep, entry.softirqs) = (names(|now| &now.upkeep), names(|now| &now.softirqs));
    for (seat, now) in readings {
        let full = full.contains(&seat);
        let last = after
            .seats
            .get(&seat)
            .and_then(|open| open.last.as_ref())
            .filter(|_| !full);
        let counts = |names: &[String], of: &BTreeMap<String, u32>| {
            let counts = names.iter().map(|name| of.get(name).copied().unwrap_or_default());
            counts.collect::<Vec<_>>()
        };
        let differs = |number: &u32, device: &Device| last.is_none_or(|last| last.devices.get(number) != Some(device));
        let mut bound: Vec<(Thread, Option<Bound>)> = Vec::new();
        for (thread, ran) in &now.bound {
            if last.is_none_or(|last| last.bound.get(thread) != Some(ran)) {
                bound.push((*thread, Some(ran.clone())));
            }
        }
        let ended = last.into_iter().flat_map(|last| last.bound.keys());
        bound.extend(
            ended
                .filter(|thread| !now.bound.contains_key(thread))
                .map(|thread| (*thread, None)),
        );
        entry.readings.push(Reading {
            seat,
            numbers: now.numbers,
            upkeep: counts(&entry.upkeep, &now.upkeep),
            softirqs: counts(&entry.softirqs, &now.softirqs),
            devices: now
                .devices
                .into_iter()
                .filter(|(number, device)| differs(number, device))
                .collect(),
            bound,
            full,
        });
    }
}
