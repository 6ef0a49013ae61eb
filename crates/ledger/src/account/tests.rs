//! What accounts say is tested with what the keeper makes of a host: `recorder/tests.rs`. Here is what asking for a part of the time does.

use super::*;
use crate::entry::{Entry, Event, Reading};

const HOUR: u64 = 3_600_000_000;

/// A VM on one CPU, read every hour; in the second hour three others ran.
fn entries() -> Vec<(Entry, String)> {
    let reading = |hour: u64| {
        let others = if hour >= 2 { 3 } else { 0 };
        let events = match hour {
            0 => vec![
                Event::Boot { id: "a".into() },
                Event::State {
                    vm: "vm".into(),
                    state: "isolated".into(),
                },
                Event::Opened {
                    seat: 0,
                    vm: "vm".into(),
                    name: String::new(),
                    cpus: "2".parse().unwrap(),
                    threads: Vec::new(),
                    cgroup: None,
                    own_devices: Vec::new(),
                },
            ],
            _ => Vec::new(),
        };
        let entry = Entry {
            seq: hour + 1,
            at: 10 * HOUR + hour * HOUR,
            up: hour * HOUR + 5,
            events,
            readings: vec![Reading {
                seat: 0,
                numbers: [others, 0, 0, 0, 0, 0],
                full: hour == 0,
                ..Reading::default()
            }],
            ..Entry::default()
        };
        (entry, format!("hash {hour}"))
    };
    (0..5).map(reading).collect()
}

#[test]
fn counts_are_booked_where_their_window_ends_and_time_is_clipped() {
    let all = accounts(entries(), 0, 0, None).remove("vm").unwrap();
    let three = Range { least: 3, most: 3 };
    assert_eq!(
        (all.totals.other_tasks, all.covered_us, all.promised_us),
        (three, 4 * HOUR, 4 * HOUR)
    );
    assert_eq!((all.seq, all.hash.as_str()), (5, "hash 4"));
    assert_eq!(all.worst.len(), 1);
    assert_eq!((all.worst[0].from_us, all.worst[0].until_us), (11 * HOUR, 12 * HOUR));
    let part = |since, until| accounts(entries(), since, until, Some("vm")).remove("vm").unwrap();
    let half = part(11 * HOUR + HOUR / 2, 13 * HOUR);
    assert_eq!((half.totals.other_tasks, half.covered_us), (three, HOUR + HOUR / 2));
    let later = part(12 * HOUR, 0);
    assert_eq!(
        (later.totals.other_tasks, later.covered_us),
        (Range::default(), 2 * HOUR)
    );
    assert!(accounts(entries(), 0, 0, Some("other")).is_empty());
}

#[test]
fn a_period_has_no_day_outside_it_and_adjacent_ones_add_up() {
    let at = |mut entry: Entry, offset: u64| {
        entry.at += offset;
        entry
    };
    // The third reading is at midnight, or half an hour after it.
    for late in [0, HOUR / 2] {
        let moved = || {
            entries()
                .into_iter()
                .map(|(entry, hash)| (at(entry, 12 * HOUR + late), hash))
        };
        let midnight = 24 * HOUR;
        let part = |since, until| accounts(moved(), since, until, None).remove("vm").unwrap();
        let (before, after) = (part(1, midnight), part(midnight, 2 * midnight));
        for (account, day) in [(&before, "1970-01-01"), (&after, "1970-01-02")] {
            let [one] = account.days.as_slice() else {
                panic!("{:?}", account.days)
            };
            assert_eq!((one.day.as_str(), one.covered_us), (day, account.covered_us));
            assert_eq!(one.other_tasks, account.totals.other_tasks);
        }
        assert_eq!(before.covered_us + after.covered_us, 4 * HOUR);
        assert_eq!(before.totals.other_tasks.most + after.totals.other_tasks.most, 3);
    }
}
