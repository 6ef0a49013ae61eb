//! Decides which samples are written as entries.
//!
//! A seat on which only its own threads and kernel upkeep ran is written once an hour, together with all others: nothing is lost, because
//! counters continue. A disturbance is written at once, and less often while it continues, so that a VM that is disturbed all the time does
//! not push other VMs' entries out of the ring.

mod bound;
mod ended_interrupts;
mod entry_builder;
mod events;
mod located;
mod pace;
mod vm;

use std::collections::{BTreeMap, BTreeSet};

use bound::BoundThreads;
use entry_builder::{EntryBuilder, SeatReading, VmReadings};
use events::{add_states, clock_step, opened_unread, why_closed};
use pace::Pace;
pub use pace::heartbeat_hours;
pub use vm::RecordedVm;
pub(crate) use vm::is_sampled;

use crate::account::{Account, AccountBuilder, Coverage};
use crate::day::day;
use crate::entry::{Closed, Entry, Event};
use crate::replay::{FullReading, LedgerState, OpenSeat, ReadingDelta};
use crate::sample::{CounterSample, Counters, Seat};

/// Limit of the distinct reasons why samples could not be recorded; further ones are counted together.
const MAX_MISSED_REASONS: usize = 4;

/// An entry that is not in the ring yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    pub entry: Entry,
    /// The events [`Event::Intruded`] of the entry.
    pub intrusions: Vec<Event>,
    /// VMs whose pause between entries changes, because their disturbance is in this entry.
    disturbed: BTreeSet<String>,
    is_heartbeat: bool,
    starts_segment: bool,
    /// How many of the recorder's pending events it contains.
    pending: usize,
}

/// The result of comparing a sample with the recorded state.
struct DraftOutcome {
    draft: Option<Draft>,
    /// The readings of open seats, whether they are written or not.
    latest: Vec<(u64, FullReading)>,
    /// Seats that are closed, and why.
    closed: BTreeMap<u64, Closed>,
}

/// Decides what is written. Its state of the past is that of the ring.
#[derive(Debug, Clone, Default)]
pub struct EntryRecorder {
    replay: LedgerState,
    boot: String,
    /// Events to be written with the next entry.
    pending: Vec<Event>,
    /// The number of missed samples by reason.
    missed: Vec<(u64, String)>,
    /// The key in use, written at the beginning of each segment.
    key: String,
    /// `at` and `up` of the last sample.
    last_sample: Option<(u64, u64)>,
    /// `at` and `up` of the last entry of all seats.
    last_heartbeat: Option<(u64, u64)>,
    /// Limit of the ring, in bytes.
    ring_bytes: u64,
    /// Hours between two entries of all seats.
    heartbeat_hours: u64,
    paces: BTreeMap<String, Pace>,
    bound: BoundThreads,
    /// The readings of the last sample that were not written. If the next sample closes the seat, they are its last reading.
    latest: BTreeMap<u64, FullReading>,
    /// Seats whose end could not be written yet. They count as new when they return, so runs in between belong to no VM.
    closing: BTreeMap<u64, Closed>,
    /// VMs whose seats are open but not read yet.
    settling: BTreeSet<String>,
    /// Open seats that are not read because their container has too many tasks.
    too_many: BTreeSet<u64>,
    /// The coverage of the written entries.
    coverage: Coverage,
}

impl EntryRecorder {
    /// Continues from the state of the ring. Counters of another boot are not compared with this one's, nor the sums of a container's tasks
    /// that another daemon read: which of the tasks ended meanwhile is not known.
    pub fn resume(replay: LedgerState, boot_id: &str, version: &str) -> Self {
        let same_boot = replay.boot == boot_id;
        let mut pending = Vec::new();
        if !same_boot {
            pending.push(Event::Boot { id: boot_id.to_owned() });
        }
        pending.push(Event::Started {
            version: version.to_owned(),
        });
        let containers = open_seats(&replay, boot_id)
            .iter()
            .filter(|(_, open)| open.seat.cgroup.is_some() && open.last.is_some());
        Self {
            closing: containers.map(|(number, _)| (*number, Closed::Restarted)).collect(),
            last_sample: same_boot.then_some((replay.at, replay.up)),
            key: replay.key.clone(),
            coverage: Coverage::resume(&replay),
            replay,
            boot: boot_id.to_owned(),
            pending,
            ring_bytes: u64::MAX,
            heartbeat_hours: 1,
            ..Self::default()
        }
    }

    /// Seats of these VMs are opened and not read until the next call: runs there are not counted as other tasks, and the time is a gap.
    pub fn set_settling(&mut self, vms: BTreeSet<String>) {
        self.settling = vms;
    }

    /// The seats that the next sample has to read.
    pub fn seats_to_read(&self, vms: &BTreeMap<String, RecordedVm>) -> BTreeSet<Seat> {
        let read = vms.iter().filter(|(vm, _)| !self.settling.contains(*vm));
        read.flat_map(|(_, vm)| vm.sampled_seats()).cloned().collect()
    }

    /// Sets the limit of the ring, in bytes.
    pub fn set_ring_bytes(&mut self, bytes: u64) {
        self.ring_bytes = bytes;
    }

    /// Sets the key in use, base64.
    pub fn set_key(&mut self, key: &str) {
        if self.key != key || self.replay.key != key {
            key.clone_into(&mut self.key);
            self.pending.push(Event::Key { key: key.to_owned() });
        }
    }

    /// Adds an event, which is written with the next sample.
    pub fn add_event(&mut self, event: Event) {
        self.pending.push(event);
    }

    /// Notes that a sample or its entry was not recorded. Counters continue, so only the resolution in time suffers.
    pub fn missed(&mut self, why: &str) {
        let why = match self.missed.len() {
            MAX_MISSED_REASONS.. if !self.missed.iter().any(|(_, known)| known == why) => "other reasons",
            _ => why,
        };
        match self.missed.iter_mut().find(|(_, known)| known == why) {
            Some((looks, _)) => *looks = looks.saturating_add(1),
            None => self.missed.push((1, why.to_owned())),
        }
    }

    /// The entry to write for this sample, if any. `starts_segment`: it is the first of a segment, so it contains everything.
    pub fn take_sample(
        &mut self,
        sample: &CounterSample,
        vms: &BTreeMap<String, RecordedVm>,
        starts_segment: bool,
    ) -> Option<Draft> {
        // Pending, so that it is written later if this entry cannot be.
        if let Some(by) = self.last_sample.and_then(|before| clock_step(before, sample)) {
            self.pending.push(Event::Clock { by });
        }
        self.last_sample = Some((sample.at_us, sample.up_us));
        self.bound.add(sample, open_seats(&self.replay, &self.boot));
        let DraftOutcome { draft, latest, closed } = self.draft(sample, vms, starts_segment);
        self.latest.extend(latest);
        self.closing = closed;
        draft
    }

    fn draft(&self, sample: &CounterSample, vms: &BTreeMap<String, RecordedVm>, starts_segment: bool) -> DraftOutcome {
        let mut draft = Draft {
            is_heartbeat: starts_segment || self.is_heartbeat(sample),
            starts_segment,
            pending: self.pending.len(),
            ..Draft::default()
        };
        let mut builder = EntryBuilder {
            sample,
            starts_segment,
            next_seat: self.replay.next_seat,
            events: Vec::new(),
            readings: Vec::new(),
            latest: Vec::new(),
            still_open: BTreeSet::new(),
            closed: BTreeMap::new(),
        };
        builder
            .events
            .extend(self.missed.iter().map(|(looks, why)| Event::Missed {
                looks: *looks,
                why: why.clone(),
            }));
        let before = (self.replay.boot == self.boot).then_some(&self.replay.states);
        add_states(&mut builder.events, before, vms, starts_segment);
        let open = open_seats(&self.replay, &self.boot);
        let by_seat: BTreeMap<(&str, &Seat), u64> = open
            .iter()
            .map(|(number, open)| ((open.vm.as_str(), &open.seat), *number))
            .collect();
        for (uid, vm) in vms {
            let mut vm_readings = VmReadings::default();
            for seat in vm.sampled_seats() {
                let known = by_seat.get(&(uid.as_str(), seat));
                let known = known.and_then(|number| Some((*number, open.get(number)?)));
                self.add_seat(&mut builder, &mut vm_readings, (uid, vm), seat, known);
            }
            let mut is_due = draft.is_heartbeat || vm_readings.is_changed;
            if vm_readings.is_disturbed {
                is_due |= self.paces.get(uid).copied().unwrap_or_default().is_due(sample.up_us);
            }
            // If it is not due, the runs stay in the counters until the next entry.
            if is_due {
                if vm_readings.is_disturbed {
                    draft.disturbed.insert(uid.clone());
                }
                builder.events.extend(vm_readings.intrusions.iter().cloned());
                builder.readings.extend(vm_readings.readings);
                draft.intrusions.extend(vm_readings.intrusions);
            }
        }
        for (number, known) in open {
            if !builder.still_open.contains(number) && !builder.closed.contains_key(number) {
                self.close(&mut builder, *number, why_closed(known, vms));
            }
        }
        let is_empty = builder.readings.is_empty() && builder.events.is_empty() && self.pending.is_empty();
        // A node without VMs writes no entry only because a segment begins.
        let is_written = !is_empty || starts_segment && !vms.is_empty();
        if is_written {
            let events = self.with_pending(starts_segment, builder.events);
            draft.entry = self.entry((sample.at_us, sample.up_us), events, &builder.readings);
        }
        DraftOutcome {
            draft: is_written.then_some(draft),
            latest: builder.latest,
            closed: builder.closed,
        }
    }

    /// The pending events, then these; at the beginning of a segment with the boot and the key in front.
    fn with_pending(&self, starts_segment: bool, events: Vec<Event>) -> Vec<Event> {
        let mut all = self.pending.clone();
        if starts_segment {
            all.retain(|event| !matches!(event, Event::Boot { .. } | Event::Key { .. }));
            let key = Event::Key { key: self.key.clone() };
            let boot = Event::Boot { id: self.boot.clone() };
            all.splice(0..0, [boot].into_iter().chain((!self.key.is_empty()).then_some(key)));
        }
        all.extend(events);
        all
    }

    fn entry(&self, (at, up): (u64, u64), mut events: Vec<Event>, readings: &[SeatReading<'_>]) -> Entry {
        let closing = |event: &Event| match event {
            Event::Closed { seat, .. } => Some((*seat, self.latest.get(seat)?, self.replay.seats.get(seat)?)),
            _ => None,
        };
        let names = |counts: fn(&Counters) -> &BTreeMap<String, u32>| -> Vec<String> {
            let ends = events.iter().filter_map(closing).map(|(_, latest, _)| latest);
            let written = readings.iter().map(|(_, _, now)| now).chain(ends);
            let used = written.flat_map(|now| counts(&now.counters));
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
            let end = closing(event).map(|(seat, latest, open)| latest.to_stored(seat, open.last.as_ref(), &entry));
            if let Event::Closed { last, .. } = event {
                *last = end.map(Box::new);
            }
        }
        entry.events = events;
        entry.readings = readings
            .iter()
            .map(|(number, before, now)| now.to_stored(*number, *before, &entry))
            .collect();
        entry
    }

    /// An entry with current readings of all seats, with which an account ends. It is not written: requests for accounts must not fill
    /// the ring.
    pub fn provisional(&mut self, sample: &CounterSample, vms: &BTreeMap<String, RecordedVm>) -> Entry {
        let open = open_seats(&self.replay, &self.boot);
        self.bound.add(sample, open);
        let mut readings = Vec::new();
        for (number, open) in open {
            let is_sampled = vms
                .get(&open.vm)
                .is_some_and(|vm| vm.sampled_seats().any(|seat| *seat == open.seat));
            if let (true, Some(last), Some(counters)) = (is_sampled, &open.last, sample.seats.get(&open.seat)) {
                let now = self.bound.complete(sample, &open.seat, counters);
                let (now, _) = self.before_ended_interrupts(*number, open, now);
                // Kept as the latest reading: a later account must not report less than this one.
                if !self.closing.contains_key(number) && ReadingDelta::new(open, last, &now).is_ok() {
                    self.latest.insert(*number, now.clone());
                    readings.push((*number, Some(last), now));
                }
            }
        }
        let mut entry = self.entry((sample.at_us, sample.up_us), Vec::new(), &readings);
        entry.seq = self.replay.seq.saturating_add(1);
        entry
    }

    /// Called when the ring has written the entry, in `bytes` bytes. Returns the accounts of the windows and gaps that end with it, by VM.
    pub fn committed(&mut self, draft: Draft, bytes: u64) -> BTreeMap<String, Account> {
        let Draft {
            entry,
            disturbed,
            is_heartbeat,
            starts_segment,
            pending,
            ..
        } = draft;
        self.pending.drain(..pending.min(self.pending.len()));
        self.missed.clear();
        self.closing.clear();
        for vm in disturbed {
            self.paces.entry(vm).or_default().written(entry.up);
        }
        if is_heartbeat {
            self.last_heartbeat = Some((entry.at, entry.up));
            // The first entry of a segment is longer than the others, because it has all state.
            if !starts_segment {
                self.heartbeat_hours = heartbeat_hours(bytes, self.ring_bytes);
            }
            self.paces.retain(|_, pace| !pace.is_quiet(entry.up));
        }
        // The entry was made from this state, so there is no error.
        let mut accounts = AccountBuilder::resume(std::mem::take(&mut self.coverage));
        let _ = self.replay.follow(&entry, &mut accounts);
        let open = &self.replay.seats;
        self.too_many.extend(opened_unread(&entry.events));
        self.too_many.retain(|seat| open.contains_key(seat));
        self.latest.retain(|seat, _| open.contains_key(seat));
        for reading in &entry.readings {
            self.latest.remove(&reading.seat);
            self.too_many.remove(&reading.seat);
            if let Some(open) = open.get(&reading.seat) {
                self.bound.written(&open.seat);
            }
        }
        let (accounts, coverage) = accounts.into_parts();
        self.coverage = coverage;
        accounts
    }

    /// The last entry of a daemon that is stopped, with its last sample; `None` if it would have to begin a segment: the next daemon
    /// begins it.
    pub fn stop(&mut self, at_us: u64, up_us: u64, starts_segment: bool) -> Option<Entry> {
        if starts_segment {
            return None;
        }
        let mut events = std::mem::take(&mut self.pending);
        events.push(Event::Stopped {});
        let open = open_seats(&self.replay, &self.boot);
        let readings: Vec<SeatReading<'_>> = open
            .iter()
            .filter_map(|(number, open)| Some((*number, open.last.as_ref(), self.latest.get(number)?.clone())))
            .collect();
        Some(self.entry((at_us, up_us), events, &readings))
    }

    /// Whether all seats are to be written: at the first sample of each interval since boot, and of each UTC day.
    pub fn is_heartbeat(&self, sample: &CounterSample) -> bool {
        let interval = |up: u64| up / (pace::HEARTBEAT_INTERVAL_US * self.heartbeat_hours.max(1));
        self.last_heartbeat
            .is_none_or(|(at, up)| interval(up) != interval(sample.up_us) || day(at) != day(sample.at_us))
    }
}

/// Seats whose counters continue: none if the last entry is from another boot.
fn open_seats<'a>(replay: &'a LedgerState, boot: &str) -> &'a BTreeMap<u64, OpenSeat> {
    static NONE: BTreeMap<u64, OpenSeat> = BTreeMap::new();
    if replay.boot == boot { &replay.seats } else { &NONE }
}
