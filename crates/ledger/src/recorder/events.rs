//! Derives events from the differences between a sample and the recorded state.

use std::collections::BTreeMap;

use super::RecordedVm;
use crate::entry::{Class, Closed, Event};
use crate::replay::{ENDED_STATE, OpenSeat, ReadingDelta};
use crate::sample::{CounterSample, Seat};

/// The realtime clock was set if it differs from CLOCK_BOOTTIME's progress by more than this, in microseconds.
const MIN_CLOCK_STEP_US: u64 = 1_000_000;

/// By how many microseconds the realtime clock was set since the last sample.
pub(super) fn clock_step((at, up): (u64, u64), sample: &CounterSample) -> Option<i64> {
    let expected = at.saturating_add(sample.up_us.saturating_sub(up));
    let by = i64::try_from(i128::from(sample.at_us) - i128::from(expected)).ok()?;
    (by.unsigned_abs() > MIN_CLOCK_STEP_US).then_some(by)
}

/// The changes of states; with `all`, every state.
pub(super) fn add_states(
    events: &mut Vec<Event>,
    before: Option<&BTreeMap<String, String>>,
    vms: &BTreeMap<String, RecordedVm>,
    all: bool,
) {
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
            state: ENDED_STATE.to_owned(),
        });
    }
}

pub(super) fn opened(number: u64, uid: &str, vm: &RecordedVm, seat: &Seat) -> Event {
    Event::Opened {
        seat: number,
        vm: uid.to_owned(),
        name: vm.name.clone(),
        cpus: seat.cpus.clone(),
        threads: seat.threads.clone(),
        cgroup: seat.cgroup.clone(),
        own_devices: vm.own_devices.iter().cloned().collect(),
    }
}

/// The seats that were opened in place of those whose containers had too many tasks.
pub(super) fn opened_unread(events: &[Event]) -> impl Iterator<Item = u64> {
    let pairs = events.iter().zip(events.iter().skip(1));
    pairs.filter_map(|(first, second)| match (first, second) {
        (
            Event::Closed {
                why: Closed::TooManyTasks,
                ..
            },
            Event::Opened { seat, .. },
        ) => Some(*seat),
        _ => None,
    })
}

/// An interval that begins with 0 is no intrusion: where tasks of a container end all the time, that would be one at every audit.
pub(super) fn add_intrusions(events: &mut Vec<Event>, uid: &str, seat: &Seat, delta: &ReadingDelta) {
    let mut add = |class, name: &str, count| {
        events.push(Event::Intruded {
            vm: uid.to_owned(),
            cpus: seat.cpus.to_string(),
            class,
            name: name.to_owned(),
            count,
        });
    };
    if delta.other.least > 0 {
        add(Class::OtherTasks, "", (delta.other.least, delta.other.most));
    }
    for (name, count) in &delta.totals.devices {
        add(Class::Devices, name, (*count, *count));
    }
}

pub(super) fn why_closed(known: &OpenSeat, vms: &BTreeMap<String, RecordedVm>) -> Closed {
    let Some(vm) = vms.get(&known.vm) else {
        return Closed::Ended;
    };
    if vm.sampled_seats().next().is_none() {
        return Closed::NotIsolated;
    }
    if vm.seats.contains(&known.seat) {
        // The sample lacks the seat: one of its CPUs is offline, or the container was not read.
        return Closed::Offline;
    }
    let elsewhere = |thread| vm.seats.iter().any(|seat| seat.threads.contains(thread));
    if known.seat.threads.is_empty() || known.seat.threads.iter().any(elsewhere) {
        Closed::Moved
    } else {
        Closed::Ended
    }
}
