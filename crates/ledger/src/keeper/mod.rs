//! What of a look is worth an entry.
//!
//! A seat on which nothing ran that matters is read at each look and written once an hour, with all the others: nothing is lost by that, because the
//! counters go on. What matters is written at once, and while it goes on ever more rarely: a VM with a noisy neighbour must not push the other VMs'
//! entries out of the ring.

mod bound;
mod events;
mod pace;
mod page;
#[cfg(test)]
mod tests;
mod vm;

use std::collections::{BTreeMap, BTreeSet};

use bound::BoundThreads;
use events::{set_by, states, why_closed};
use pace::Pace;
pub use pace::hours_between;
use page::{Found, Page, Read};
pub use vm::Vm;

use crate::account::{Account, Coverage, Folded};
use crate::day::day;
use crate::entry::{Closed, Entry, Event};
use crate::look::{Counters, Look, Seat};
use crate::standing::{Between, Known, Open, Standing};

/// All seats are written this often, microseconds, or at a multiple of it: [`hours_between`].
const HEARTBEAT: u64 = 3_600_000_000;

/// So many reasons of looks that could not be kept are told; others are told together.
const REASONS: usize = 4;

/// An entry that is not kept yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    pub entry: Entry,
    /// [`Event::Intruded`] all; they are in the entry, too.
    pub intrusions: Vec<Event>,
    /// VMs whose pace changes.
    disturbed: BTreeSet<String>,
    heartbeat: bool,
    /// How many notes are in it.
    noted: usize,
}

/// What a look comes to.
struct Drafted {
    draft: Option<Draft>,
    /// Of seats that stand, whether they are written or not.
    latest: Vec<(u64, Known)>,
    /// Seats that end.
    closed: BTreeMap<u64, Closed>,
}

/// Decides what is written. What it knows of the past is what the ring has.
#[derive(Debug, Clone, Default)]
pub struct Keeper {
    standing: Standing,
    boot: String,
    notes: Vec<Event>,
    /// How many looks for which reason.
    missed: Vec<(u64, String)>,
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
    /// Seats whose end could not be kept yet. They are new when they come again: what ran meanwhile is nobody's.
    closing: BTreeMap<u64, Closed>,
    /// VMs whose seats are opened and not read yet.
    settling: BTreeSet<String>,
    /// Of what was kept.
    coverage: Coverage,
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
            coverage: Coverage::of(&standing),
            standing,
            boot: boot_id.to_owned(),
            notes,
            room: u64::MAX,
            every: 1,
            ..Self::default()
        }
    }

    /// From now on the seats of these VMs are opened and not read, until it is called again: what runs there meanwhile is not booked as
    /// others', and the time is a gap.
    pub fn settle(&mut self, vms: BTreeSet<String>) {
        self.settling = vms;
    }

    /// What is to be looked at.
    pub fn wants(&self, vms: &BTreeMap<String, Vm>) -> BTreeSet<Seat> {
        let read = vms.iter().filter(|(vm, _)| !self.settling.contains(*vm));
        read.flat_map(|(_, vm)| vm.looked_at()).cloned().collect()
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
        let why = match self.missed.len() {
            REASONS.. if !self.missed.iter().any(|(_, known)| known == why) => "other reasons",
            _ => why,
        };
        match self.missed.iter_mut().find(|(_, known)| known == why) {
            Some((looks, _)) => *looks = looks.saturating_add(1),
            None => self.missed.push((1, why.to_owned())),
        }
    }

    /// The entry that this look is worth, or none. `starts_segment`: it is the first of a segment, so it says everything.
    pub fn looked(&mut self, look: &Look, vms: &BTreeMap<String, Vm>, starts_segment: bool) -> Option<Draft> {
        // A note, so that it is told later where this entry cannot be kept.
        if let Some(by) = self.looked.and_then(|before| set_by(before, look)) {
            self.notes.push(Event::Clock { by });
        }
        self.looked = Some((look.at_us, look.up_us));
        self.bound.take_in(look, open_seats(&self.standing, &self.boot));
        let Drafted { draft, latest, closed } = self.draft(look, vms, starts_segment);
        self.latest.extend(latest);
        self.closing = closed;
        draft
    }

    fn draft(&self, look: &Look, vms: &BTreeMap<String, Vm>, starts_segment: bool) -> Drafted {
        let mut draft = Draft {
            heartbeat: starts_segment || self.is_heartbeat(look),
            noted: self.notes.len(),
            ..Draft::default()
        };
        let mut page = Page {
            look,
            starts_segment,
            next: self.standing.next_seat,
            events: Vec::new(),
            readings: Vec::new(),
            latest: Vec::new(),
            still: BTreeSet::new(),
            closed: BTreeMap::new(),
        };
        page.events.extend(self.missed.iter().map(|(looks, why)| Event::Missed {
            looks: *looks,
            why: why.clone(),
        }));
        let before = (self.standing.boot == self.boot).then_some(&self.standing.states);
        states(&mut page.events, before, vms, starts_segment);
        let open = open_seats(&self.standing, &self.boot);
        let by_seat: BTreeMap<(&str, &Seat), u64> = open
            .iter()
            .map(|(number, open)| ((open.vm.as_str(), &open.seat), *number))
            .collect();
        for (uid, vm) in vms {
            let mut found = Found::default();
            for seat in vm.looked_at() {
                let known = by_seat.get(&(uid.as_str(), seat));
                let known = known.and_then(|number| Some((*number, open.get(number)?)));
                self.seat(&mut page, &mut found, (uid, vm), seat, known);
            }
            let mut due = draft.heartbeat || found.changed;
            if found.disturbed {
                due |= self.paces.get(uid).copied().unwrap_or_default().is_due(look.up_us);
            }
            // If not: what ran stays in the counters.
            if due {
                if found.disturbed {
                    draft.disturbed.insert(uid.clone());
                }
                page.events.extend(found.intrusions.iter().cloned());
                page.readings.extend(found.readings);
                draft.intrusions.extend(found.intrusions);
            }
        }
        for (number, known) in open {
            if !page.still.contains(number) && !page.closed.contains_key(number) {
                self.close(&mut page, *number, why_closed(known, vms));
            }
        }
        let nothing = page.readings.is_empty() && page.events.is_empty() && self.notes.is_empty();
        // An empty node writes nothing either.
        let writes = !nothing || starts_segment && !vms.is_empty();
        if writes {
            let events = self.noted(starts_segment, page.events);
            draft.entry = self.entry((look.at_us, look.up_us), events, &page.readings);
        }
        Drafted {
            draft: writes.then_some(draft),
            latest: page.latest,
            closed: page.closed,
        }
    }

    /// What waited to be told, and these events.
    fn noted(&self, starts_segment: bool, events: Vec<Event>) -> Vec<Event> {
        let mut all = self.notes.clone();
        if starts_segment {
            all.retain(|event| !matches!(event, Event::Boot { .. } | Event::Key { .. }));
            let key = Event::Key { key: self.key.clone() };
            let boot = Event::Boot { id: self.boot.clone() };
            all.splice(0..0, [boot].into_iter().chain((!self.key.is_empty()).then_some(key)));
        }
        all.extend(events);
        all
    }

    fn entry(&self, (at, up): (u64, u64), mut events: Vec<Event>, readings: &[Read<'_>]) -> Entry {
        let closing = |event: &Event| match event {
            Event::Closed { seat, .. } => Some((*seat, self.latest.get(seat)?, self.standing.seats.get(seat)?)),
            _ => None,
        };
        let names = |of: fn(&Counters) -> &BTreeMap<String, u32>| -> Vec<String> {
            let ends = events.iter().filter_map(closing).map(|(_, latest, _)| latest);
            let written = readings.iter().map(|(_, _, now)| now).chain(ends);
            let used = written.flat_map(|now| of(&now.counters));
            let used: BTreeSet<&String> = used.filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
            used.into_iter().cloned().collect()
        };
        let mut entry = Entry {
            at,
            up,
            upkeep: names(|counters| &counters.upkeep),
            softirqs: names(|counters| &counters.softirqs),
            ..Entry::default()
        };
        for event in &mut events {
            let end = closing(event).map(|(seat, latest, open)| latest.reading(seat, open.last.as_ref(), &entry));
            if let Event::Closed { last, .. } = event {
                *last = end.map(Box::new);
            }
        }
        entry.events = events;
        entry.readings = readings
            .iter()
            .map(|(number, before, now)| now.reading(*number, *before, &entry))
            .collect();
        entry
    }

    /// Readings of all seats as they are now, to end an account with; it is not for the ring, so whoever asks, and however often, fills
    /// nothing.
    pub fn provisional(&mut self, look: &Look, vms: &BTreeMap<String, Vm>) -> Entry {
        let open = open_seats(&self.standing, &self.boot);
        self.bound.take_in(look, open);
        let mut readings = Vec::new();
        for (number, open) in open {
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
                if !self.closing.contains_key(number) && Between::new(open, last, &now).is_ok() {
                    self.latest.insert(*number, now.clone());
                    readings.push((*number, Some(last), now));
                }
            }
        }
        let mut entry = self.entry((look.at_us, look.up_us), Vec::new(), &readings);
        entry.seq = self.standing.seq.saturating_add(1);
        entry
    }

    /// The ring has it, in so many bytes, and has given it its number. Answers what it booked, by VM: the windows that end with it, and gaps.
    pub fn kept(&mut self, draft: Draft, bytes: u64) -> BTreeMap<String, Account> {
        let Draft {
            entry,
            disturbed,
            heartbeat,
            noted,
            ..
        } = draft;
        self.notes.drain(..noted.min(self.notes.len()));
        self.missed.clear();
        self.closing.clear();
        for vm in disturbed {
            self.paces.entry(vm).or_default().written(entry.up);
        }
        if heartbeat {
            self.heartbeat = Some((entry.at, entry.up));
            self.every = hours_between(bytes, self.room);
            self.paces.retain(|_, pace| !pace.is_quiet(entry.up));
        }
        // It follows from what stands: it was made of it.
        let mut folded = Folded::behind(std::mem::take(&mut self.coverage));
        let _ = self.standing.follow(&entry, &mut folded);
        let open = &self.standing.seats;
        self.latest.retain(|seat, _| open.contains_key(seat));
        for reading in &entry.readings {
            self.latest.remove(&reading.seat);
            if let Some(open) = open.get(&reading.seat) {
                self.bound.written(&open.seat);
            }
        }
        let (booked, coverage) = folded.booked();
        self.coverage = coverage;
        booked
    }

    /// The last entry of a daemon that was told to end, with its last look; none where it would have to begin a segment, which is for
    /// the next one's.
    pub fn stopped(&mut self, at_us: u64, up_us: u64, starts_segment: bool) -> Option<Entry> {
        if starts_segment {
            return None;
        }
        let mut events = std::mem::take(&mut self.notes);
        events.push(Event::Stopped {});
        let open = open_seats(&self.standing, &self.boot);
        let readings: Vec<Read<'_>> = open
            .iter()
            .filter_map(|(number, open)| Some((*number, open.last.as_ref(), self.latest.get(number)?.clone())))
            .collect();
        Some(self.entry((at_us, up_us), events, &readings))
    }

    /// The first look of each hour since boot, and of each UTC day, is of all seats.
    fn is_heartbeat(&self, look: &Look) -> bool {
        let hour = |up: u64| up / (HEARTBEAT * self.every.max(1));
        self.heartbeat
            .is_none_or(|(at, up)| hour(up) != hour(look.up_us) || day(at) != day(look.at_us))
    }
}

/// Those whose counters go on: none where the last entry is of another boot.
fn open_seats<'a>(standing: &'a Standing, boot: &str) -> &'a BTreeMap<u64, Open> {
    static NONE: BTreeMap<u64, Open> = BTreeMap::new();
    if standing.boot == boot { &standing.seats } else { &NONE }
}
