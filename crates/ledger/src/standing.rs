//! What entries leave to go on from: the seats that are open, and the last numbers of each.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::{Device, Entry, Event, Reading};
use crate::look::{Bound, Seat, Thread};

/// What is known after an entry. Each segment says it anew, so the entries of the last one are enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// `/proc/sys/kernel/random/boot_id`; empty before the first entry.
    pub boot: String,
    /// The public key, base64.
    pub key: String,
    /// By number.
    pub seats: BTreeMap<u64, Open>,
    /// The last state of each VM that is there.
    pub states: BTreeMap<String, String>,
    /// One more than any number that a seat had.
    pub next: u64,
    /// The clocks of the last entry.
    pub at: u64,
    pub up: u64,
}

/// A seat that is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Open {
    /// Pod UID.
    pub vm: String,
    pub name: String,
    pub seat: Seat,
    pub own_devices: BTreeSet<String>,
    /// `None` until it was read.
    pub last: Option<Numbers>,
    /// Whether something else had run there at that reading.
    pub intruded: bool,
}

/// All numbers of one reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The clocks, microseconds.
    pub at: u64,
    pub up: u64,
    /// As [`Reading::numbers`].
    pub numbers: [u64; 6],
    pub upkeep: BTreeMap<String, u32>,
    pub softirqs: BTreeMap<String, u32>,
    pub devices: BTreeMap<u32, Device>,
    pub bound: BTreeMap<Thread, Bound>,
}

impl Standing {
    /// What is known after this entry, too. What cannot follow from entries that were written, such as a reading of a seat that was never
    /// opened, is left out.
    pub fn apply(&mut self, entry: &Entry) {
        for event in &entry.events {
            self.happened(event);
        }
        for reading in &entry.readings {
            if let Some(open) = self.seats.get_mut(&reading.seat) {
                open.last = Some(Numbers::read(open.last.take(), entry, reading));
                let list = open.seat.cpus.to_string();
                open.intruded = entry
                    .events
                    .iter()
                    .any(|event| matches!(event, Event::Intruded { vm, cpus, .. } if *vm == open.vm && *cpus == list));
            }
        }
        (self.at, self.up) = (entry.at, entry.up);
    }

    /// One event of an entry.
    pub fn happened(&mut self, event: &Event) {
        match event {
            Event::Boot { id } if *id != self.boot => {
                self.boot.clone_from(id);
                self.seats.clear();
                self.up = 0;
            }
            Event::Key { key } => self.key.clone_from(key),
            Event::Opened {
                seat,
                vm,
                name,
                cpus,
                threads,
                own_devices,
            } => {
                self.next = self.next.max(seat.saturating_add(1));
                let open = self.seats.entry(*seat).or_default();
                let now = Seat {
                    cpus: cpus.clone(),
                    threads: threads.clone(),
                };
                // Said again at the beginning of a segment.
                if open.seat != now {
                    open.last = None;
                }
                open.seat = now;
                open.vm.clone_from(vm);
                open.name.clone_from(name);
                open.own_devices = own_devices.iter().cloned().collect();
            }
            Event::Closed { seat, .. } => drop(self.seats.remove(seat)),
            Event::State { vm, state } if state == GONE => drop(self.states.remove(vm)),
            Event::State { vm, state } => drop(self.states.insert(vm.clone(), state.clone())),
            _ => {}
        }
    }
}

/// The state of a VM that is not there any more.
pub(crate) const GONE: &str = "gone";

impl Numbers {
    /// What the reading says, and for what it leaves out the reading before.
    pub fn read(before: Option<Self>, entry: &Entry, reading: &Reading) -> Self {
        let before = before.filter(|_| !reading.full).unwrap_or_default();
        let named = |names: &[String], counts: &[u32]| -> BTreeMap<String, u32> {
            names.iter().cloned().zip(counts.iter().copied()).collect()
        };
        let (mut devices, mut bound) = (before.devices, before.bound);
        devices.extend(reading.devices.iter().map(|(number, device)| (*number, device.clone())));
        for (thread, now) in &reading.bound {
            match now {
                Some(now) => drop(bound.insert(*thread, now.clone())),
                None => drop(bound.remove(thread)),
            }
        }
        Self {
            at: entry.at,
            up: entry.up,
            numbers: reading.numbers,
            upkeep: named(&entry.upkeep, &reading.upkeep),
            softirqs: named(&entry.softirqs, &reading.softirqs),
            devices,
            bound,
        }
    }

    /// Switch-ins on the CPUs since `before` that are neither the own threads' nor bound ones': at least, at most. `None`: the numbers
    /// contradict each other.
    pub fn foreign(&self, before: &Self) -> Option<(u64, u64)> {
        let [switches, own, more, run, ..] = self.numbers;
        let [switches_before, own_before, more_before, run_before, ..] = before.numbers;
        let all = switches.checked_sub(switches_before)?;
        run.checked_sub(run_before)?;
        // The fewest and the most that the own threads can have had.
        let least_own = own.saturating_sub(own_before.saturating_add(more_before));
        let most_own = own.saturating_add(more).checked_sub(own_before)?;
        let (mut least_bound, mut most_bound) = (0u64, 0u64);
        for (thread, now) in &self.bound {
            let (was, was_most) = before.bound.get(thread).map_or((0, 0), |before| before.switches);
            least_bound = least_bound.saturating_add(now.switches.0.saturating_sub(was_most));
            most_bound = most_bound.saturating_add(now.switches.1.saturating_sub(was));
        }
        let most = all.checked_sub(least_own.saturating_add(least_bound))?;
        // Nobody knows what a thread that ended did last: the others' may all be its.
        let ended = before.bound.keys().any(|thread| !self.bound.contains_key(thread));
        let least = match ended {
            true => 0,
            false => all.saturating_sub(most_own.saturating_add(most_bound)),
        };
        Some((least.min(most), most))
    }

    /// Interrupts of devices since `before`, by name, and whether these are the VM's own.
    pub fn fired<'a>(
        &'a self,
        before: &'a Self,
        own: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = (&'a str, u64, bool)> {
        self.devices.iter().filter_map(move |(number, Device(name, count))| {
            let was = before
                .devices
                .get(number)
                .filter(|was| was.0 == *name)
                .map_or(0, |was| was.1);
            let is_own = own.iter().any(|address| name.contains(address.as_str()));
            // The kernel's counters have 32 bits.
            Some((name.as_str(), u64::from(count.wrapping_sub(was)), is_own)).filter(|(_, rose, _)| *rose > 0)
        })
    }
}
