use super::*;
use crate::account::{Range, Totals, accounts};

const VM: &str = "vm";

fn opened(seat: u64, threads: Vec<TaskId>) -> Event {
    Event::Opened {
        seat,
        vm: VM.into(),
        name: String::new(),
        cpus: "2".parse().unwrap(),
        threads,
        cgroup: None,
        own_devices: vec!["0000:3b:00.0".into()],
    }
}

fn entry(seq: u64, events: Vec<Event>, numbers: &[[u64; 6]]) -> Entry {
    let readings = numbers.iter().map(|numbers| Reading {
        numbers: *numbers,
        upkeep: vec![9],
        ..Reading::default()
    });
    Entry {
        seq,
        at: 1_790_000_000_000_000 + seq * 1_000_000,
        up: seq * 1_000_000,
        upkeep: vec!["LOC".into()],
        events,
        readings: readings.collect(),
        ..Entry::default()
    }
}

fn first() -> Entry {
    let boot = Event::Boot { id: "boot".into() };
    entry(1, vec![boot, opened(0, Vec::new())], &[[10, 0, 0, 0, 0, 0]])
}

fn other(entries: &[Entry]) -> Option<Range> {
    let entries = entries.iter().cloned().map(|entry| (entry, "hash".into()));
    Some(accounts(entries, 0, 0, Some(VM)).remove(VM)?.totals.other_tasks)
}

#[test]
fn an_entry_that_does_not_come_later_changes_nothing() {
    let mut replay = LedgerState::default();
    replay.apply(&first()).unwrap();
    let before = replay.clone();
    let again = entry(1, vec![opened(7, Vec::new())], &[[90, 0, 0, 0, 0, 0]]);
    assert_eq!(replay.apply(&again), Err(ReplayError::Order { seq: 1, after: 1 }));
    assert_eq!(replay, before);
}

#[test]
fn nothing_is_counted_from_a_seat_that_is_not_open_or_whose_columns_differ() {
    let mut unknown = entry(2, Vec::new(), &[[20, 0, 0, 0, 0, 0]]);
    unknown.readings[0].seat = 5;
    let mut replay = LedgerState::default();
    replay.apply(&first()).unwrap();
    assert_eq!(replay.apply(&unknown), Err(ReplayError::Seat { seq: 2, seat: 5 }));
    let mut columns = entry(3, Vec::new(), &[[30, 0, 0, 0, 0, 0]]);
    columns.upkeep.push("RES".into());
    assert_eq!(replay.apply(&columns), Err(ReplayError::Columns { seq: 3, seat: 0 }));
    assert!(replay.seats.is_empty());
    let after = entry(4, Vec::new(), &[[40, 0, 0, 0, 0, 0]]);
    assert_eq!(replay.apply(&after), Err(ReplayError::Seat { seq: 4, seat: 0 }));
    assert_eq!(other(&[first(), columns, after]), None);
}

#[test]
fn a_seat_that_is_opened_again_for_another_thread_begins_anew() {
    let another = opened(0, vec![TaskId { id: 8, start: 8 }]);
    let changed = entry(2, vec![another], &[[50, 0, 0, 0, 0, 0]]);
    let after = entry(3, Vec::new(), &[[51, 0, 0, 0, 0, 0]]);
    assert_eq!(other(&[first(), changed, after]), Some(Range { least: 1, most: 1 }));
    let same = entry(2, vec![opened(0, Vec::new())], &[[50, 0, 0, 0, 0, 0]]);
    assert_eq!(other(&[first(), same]), Some(Range { least: 40, most: 40 }));
}

#[test]
fn a_window_that_something_is_missing_before_is_not_joined_to_the_one_before_that() {
    let second = entry(2, Vec::new(), &[[20, 5, 0, 0, 0, 0]]);
    // The seat was not open meanwhile; its thread and others ran.
    let mut wrong = entry(3, Vec::new(), &[[0; 6]]);
    wrong.upkeep.clear();
    let third = entry(4, vec![opened(0, Vec::new())], &[[900, 700, 0, 0, 0, 0]]);
    let last = entry(5, Vec::new(), &[[907, 703, 0, 0, 0, 0]]);
    let told = other(&[first(), second, wrong, third, last]);
    assert_eq!(told, Some(Range { least: 9, most: 5 + 4 }));
}

#[test]
fn the_last_reading_of_a_seat_that_is_closed_ends_its_account() {
    let (seat, why) = (0, Closed::Ended);
    let mut end = entry(3, Vec::new(), &[[13, 0, 0, 0, 0, 0]]);
    let mut last = end.readings.remove(0);
    last.time = Some((end.at - 400_000, end.up - 400_000));
    let last = Some(Box::new(last));
    end.events.push(Event::Closed { seat, why, last });
    let entries = [(first(), String::new()), (end.clone(), String::new())];
    let account = accounts(entries, 0, 0, None).remove(VM).unwrap();
    assert_eq!(account.totals.other_tasks, Range { least: 3, most: 3 });
    assert_eq!((account.covered_us, account.promised_us), (1_600_000, 2_000_000));
    // At the beginning of what there is nobody knows that seat, which is no fault.
    assert_eq!(LedgerState::default().apply(&end), Ok(()));
}

#[test]
fn numbers_of_any_size_make_an_account() {
    let most = [u64::MAX; 6];
    for (from, to) in [(most, [0; 6]), ([0; 6], most), (most, most)] {
        let (mut early, mut late) = (first(), entry(2, Vec::new(), &[to]));
        early.readings[0].numbers = from;
        (late.at, late.up) = (u64::MAX, u64::MAX);
        for (id, start, switches, run_ns) in [(0, 0, (u64::MAX, 0), u64::MAX), (1, u64::MAX, (0, u64::MAX), 0)] {
            let name = "a".repeat(usize::try_from(id).unwrap());
            let bound = Bound { name, switches, run_ns };
            late.readings[0].bound.push((TaskId { id, start }, Some(bound)));
        }
        let later = Entry { seq: 3, ..late.clone() };
        let (seat, why, last) = (0, Closed::Moved, None);
        let back = entry(4, vec![Event::Closed { seat, why, last }], &[]);
        other(&[early, late, later, back]);
    }
}

#[test]
fn interrupts_are_ones_own_by_the_whole_address_of_the_device_and_on_a_line_of_ones_own() {
    let seat = OpenSeat {
        own_devices: vec!["0000:03:00.0".to_owned()],
        ..OpenSeat::default()
    };
    let known = |count: u32, name: &str| {
        let mut known = FullReading::default();
        let fired = Fired {
            name: name.to_owned(),
            count,
        };
        known.counters.devices.insert(30, fired);
        known
    };
    for (name, is_own) in [
        ("vfio-msix[0](0000:03:00.0)", true),
        ("vfio-intx(0000:03:00.0)", true),
        // Behind a volume management device, and others whose address is longer or only begins or ends so.
        ("vfio-msix[0](10000:03:00.0)", false),
        ("vfio-msix[0](0000:03:00.01)", false),
        ("vfio-msi[0](0000:03:00.1)", false),
        // A line that others share, in either order and as either file of the kernel's joins them.
        ("vfio-intx(0000:03:00.0), ahci[0000:00:1f.2]", false),
        ("ahci[0000:00:1f.2],vfio-intx(0000:03:00.0)", false),
        ("vfio-intx(0000:03:00.0), vfio-intx(0000:04:00.0)", false),
        // A name that a driver chose.
        ("eth0 vfio-msix[0](0000:03:00.0)", false),
        ("vfio-0000:03:00.0", false),
    ] {
        let between = ReadingDelta::new(&seat, &known(5, name), &known(1005, name)).unwrap();
        let (own, others) = (between.totals.own_interrupts, between.totals.devices);
        assert_eq!(own.get(name), is_own.then_some(&1000), "{name}");
        assert_eq!(others.get(name), (!is_own).then_some(&1000), "{name}");
    }
}

/// What is added between two readings of these counts of all names.
fn rise(names: &[&str], from: u32, to: u32) -> Totals {
    let reading = |count: u32| {
        let mut reading = FullReading::default();
        reading.counters.upkeep = names.iter().map(|name| ((*name).to_owned(), count)).collect();
        reading
    };
    let between = ReadingDelta::new(&OpenSeat::default(), &reading(from), &reading(to));
    between.unwrap().totals
}

/// The doorbells' lines go with their VM, and the sum of those of all VMs is what is read.
#[test]
fn the_end_of_another_vm_is_no_doorbell() {
    let own = |from, to| rise(&["vcpu"], from, to).own_interrupts;
    assert_eq!(own(900, 1000), [("vcpu".to_owned(), 100)].into());
    assert!(own(1000, 900).values().all(|count| *count == 0));
}

#[test]
fn what_the_processor_delivers_to_the_vm_is_the_vms_own_and_the_tick_is_upkeep() {
    let between = rise(&["LOC", "PIN", "arch_timer", "vcpu"], 5, 12);
    let expected = |names: [&str; 2]| BTreeMap::from(names.map(|name| (name.to_owned(), 7)));
    assert_eq!(between.own_interrupts, expected(["PIN", "vcpu"]));
    assert_eq!(between.upkeep, expected(["LOC", "arch_timer"]));
}
