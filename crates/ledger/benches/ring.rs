//! A month of a node with 512 CPUs in the ring: how large it is, and how long reading and checking all of it takes. `make bench` runs it.
//!
//! It fails where reading takes longer than it may.
#![allow(clippy::unwrap_used)]

mod cpu_time;

use std::time::{Duration, Instant};

use stelia_ledger::entry::{Device, Entry, Event, Reading};
use stelia_ledger::recorder::heartbeat_hours;
use stelia_ledger::ring::verify::{self, verify};
use stelia_ledger::ring::{Limits, Ring, read};
use stelia_ledger::sample::{Bound, TaskId};

use cpu_time::{is_within, shortest};

const SEATS: u64 = 512;
const HOURS: u64 = 31 * 24;
const HOUR: u64 = 3_600_000_000;
/// What is promised.
const WITHIN: Duration = Duration::from_secs(1);
const UPKEEP: [&str; 10] = ["NMI", "LOC", "IWI", "RES", "CAL", "TLB", "MCP", "PIN", "NPI", "PIW"];
const SOFTIRQS: [&str; 6] = ["TIMER", "NET_RX", "BLOCK", "SCHED", "HRTIMER", "RCU"];

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

fn thread(seat: u64, number: u64) -> TaskId {
    TaskId {
        id: (100_000 + seat * 16 + number) as i32,
        start: 4_000_000 + seat,
    }
}

/// Counters of a vCPU that is busy: a tick of 250 Hz, 20 other switch-ins an hour, which are bound kernel threads.
fn reading(seat: u64, hour: u64, full: bool) -> Reading {
    let grown = 100_000_000 + hour * 9_000_000 + seat * 131;
    let ran = |number: u64| Bound {
        name: format!("kworker/{seat}:{number}"),
        switches: (5000 + hour * 7, 5000 + hour * 7),
        run_ns: 900_000_000 + hour * 55_555,
    };
    let bound = if full { 0..6 } else { 0..2 };
    Reading {
        seat,
        numbers: [
            grown + hour * 20,
            grown,
            0,
            hour * 3_599_000_000_000,
            70_000_000_000 + hour * 7_777_777,
            0,
        ],
        upkeep: (0..10_u32).map(|at| at * 1_000_000 + hour as u32 * 90_000).collect(),
        softirqs: (0..6_u32).map(|at| at * 1_000_000 + hour as u32 * 9000).collect(),
        devices: (0..if full { 3 } else { 0 })
            .map(|queue| (200 + queue, Device(format!("nvme0q{queue}"), 77_777)))
            .collect(),
        bound: bound.map(|number| (thread(seat, number), Some(ran(number)))).collect(),
        time: None,
        full,
    }
}

fn entry(hour: u64, starts: bool) -> Entry {
    let opened = |seat: u64| Event::Opened {
        seat,
        vm: format!("8d3a5a52-0c34-4d38-9a5c-{:012}", seat / 16),
        name: format!("tenants/machine-{}", seat / 16),
        cpus: seat.to_string().parse().unwrap(),
        threads: vec![thread(seat, 15)],
        cgroup: None,
        own_devices: Vec::new(),
    };
    Entry {
        at: 1_790_000_000_000_000 + hour * HOUR,
        up: hour * HOUR,
        upkeep: names(&UPKEEP),
        softirqs: names(&SOFTIRQS),
        events: (0..if starts { SEATS } else { 0 }).map(opened).collect(),
        readings: (0..SEATS).map(|seat| reading(seat, hour, starts)).collect(),
        ..Entry::default()
    }
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = 64 << 20;
    let limits = Limits {
        bytes,
        segment_bytes: bytes / 16,
    };
    let one = serde_json::to_string(&entry(HOURS, false)).unwrap().len();
    let every = heartbeat_hours(one as u64, bytes);
    let entries = HOURS / every;
    let (mut ring, _) = Ring::open(directory.path(), limits).unwrap();
    let mut written = Duration::ZERO;
    for hour in (0..HOURS).step_by(every as usize) {
        let mut entry = entry(hour, ring.starts_segment());
        let started = Instant::now();
        ring.append(&mut entry).unwrap();
        written += started.elapsed();
    }
    let verdict = verify(verify::Ring::Directory(directory.path()), &[], None).unwrap();
    assert!(verdict.is_good() && verdict.entries == entries, "a month does not fit");
    let all = shortest(|| assert_eq!(read::entries(directory.path(), None).unwrap().count() as u64, entries));
    let day = Some(1_790_000_000_000_000 + (HOURS - 24) * HOUR);
    let last = shortest(|| assert!(read::entries(directory.path(), day).unwrap().count() as u64 >= 24 / every));
    let mib = verdict.bytes as f64 / f64::from(1 << 20);
    println!(
        "{SEATS} CPUs, 31 days, an entry every {every} h: {mib:.1} MiB in {} segments",
        verdict.segments
    );
    println!(
        "an entry: {} KiB, written in {:.1?}",
        verdict.bytes / entries / 1024,
        written / entries as u32
    );
    println!("CPU time to read and check all: {all:.1?}, may take {WITHIN:?}; the last day: {last:.1?}");
    assert!(is_within(all, WITHIN), "too long");
}
