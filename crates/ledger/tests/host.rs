//! The files of the kernel that this runs on.
#![allow(clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread::{sleep, yield_now};
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{self, Kind, Table};
use stelia_kernel::counters::{cpu_time, schedstat, softirqs, task};
use stelia_kernel::proc::start_time;
use stelia_ledger::sample::{Reader, SampleError, Seat, TaskId};

const TIMES: u64 = 1000;

fn online() -> CpuSet {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").expect("the online CPUs");
    text.trim().parse().expect("a list")
}

/// This thread, as a seat's.
fn this_thread() -> TaskId {
    let link = fs::read_link("/proc/thread-self").expect("this thread");
    let id = link
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok())
        .expect("its number");
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/stat")).expect("its stat");
    let start = start_time(&text).expect("a stat");
    TaskId { id, start }
}

fn own() -> task::Task {
    task::parse(&fs::read("/proc/thread-self/schedstat").expect("schedstat")).expect("three numbers")
}

#[test]
fn the_tables_have_columns_of_all_online_cpus_and_rise() {
    let online = online();
    let local = || {
        let text = fs::read("/proc/interrupts").expect("interrupts");
        let parsed = interrupts::parse(&text, &online).expect("a table");
        assert_eq!(parsed.online, online);
        let mut devices = parsed
            .lines
            .iter()
            .filter(|line| matches!(line.kind, Kind::Device { .. }));
        assert!(devices.next().is_some(), "no device has ever interrupted this host");
        let table = Table::parse(&text).expect("a table");
        for line in &parsed.lines {
            if let Kind::Device { irq, name } = &line.kind {
                assert_eq!(
                    (name, &line.counts[..]),
                    (&table.lines[irq].name, table.lines[irq].counts())
                );
            }
        }
        let upkeep = parsed.lines.iter().filter(|line| matches!(line.kind, Kind::PerCpu(_)));
        upkeep
            .flat_map(|line| &line.counts)
            .map(|(_, count)| u64::from(*count))
            .sum::<u64>()
    };
    let before = local();
    sleep(Duration::from_millis(50));
    assert!(local() > before, "a sleep is ended by an interrupt");
    let text = fs::read("/proc/softirqs").expect("softirqs");
    let names: Vec<&str> = softirqs::parse(&text, &online)
        .expect("a table")
        .iter()
        .map(|line| line.name)
        .collect();
    assert!(names.contains(&"RCU") || names.contains(&"TIMER"), "{names:?}");
    let times = cpu_time::parse(&fs::read("/proc/stat").expect("stat"), &online).expect("CPUs");
    assert_eq!(times.keys().copied().collect::<CpuSet>(), online);
}

/// How often this thread was switched out: because it slept, and in all (proc_pid_status(5)).
fn switched_out() -> (u64, u64) {
    let text = fs::read_to_string("/proc/thread-self/status").expect("this thread's status");
    let count = |name: &str| -> u64 {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.expect("a count of switches").trim().parse().expect("a number")
    };
    let slept = count("voluntary_ctxt_switches:");
    (slept, slept + count("nonvoluntary_ctxt_switches:"))
}

/// Sleeps until this thread was switched out `TIMES` times for it. A timer that expires while the thread is still on its way to sleep
/// switches nothing, so calls do not count.
fn sleep_a_thousand_times() {
    let (before, _) = switched_out();
    while switched_out().0 - before < TIMES {
        sleep(Duration::from_micros(10));
        yield_now();
    }
}

/// The thread may be preempted between any two reads, so the counter's two readings lie between two pairs of the status's.
#[test]
fn a_thread_that_sleeps_a_thousand_times_began_to_run_as_often() {
    let (_, outer) = switched_out();
    let before = own();
    let (_, inner) = switched_out();
    sleep_a_thousand_times();
    let least = switched_out().1 - inner;
    let after = own();
    let most = switched_out().1 - outer;
    let began = after.switches - before.switches;
    assert!(
        TIMES <= least && least <= began && began <= most,
        "{least} {began} {most}"
    );
    assert!(after.run_ns > before.run_ns && after.delay_ns >= before.delay_ns);
}

/// A kernel without CONFIG_SCHEDSTATS has no /proc/schedstat: then the error says so, and the counters of CPUs are not tested here.
#[test]
fn a_look_counts_what_a_thread_did_or_says_what_the_kernel_lacks() {
    let seat = Seat {
        cpus: online(),
        threads: vec![this_thread()],
        cgroup: None,
    };
    let seats = BTreeSet::from([seat.clone()]);
    let mut reader = Reader::new(Path::new("/"));
    let there = fs::read("/proc/schedstat").is_ok() && fs::read("/sys/fs/cgroup/cgroup.procs").is_ok();
    if !there {
        let Err(SampleError::Read { path, cause }) = reader.sample(&seats) else {
            panic!("a look without the kernel's files")
        };
        eprintln!("this host has no {path}: only the error is tested");
        assert!(
            path == "/proc/schedstat" || path == "/sys/fs/cgroup/cgroup.procs",
            "{path}"
        );
        assert_eq!(cause.kind(), ErrorKind::NotFound);
        return;
    }
    schedstat::parse(&fs::read("/proc/schedstat").expect("schedstat"), &seat.cpus).expect("a known version");
    let before = reader
        .sample(&seats)
        .expect("a look")
        .seats
        .remove(&seat)
        .expect("the seat");
    sleep_a_thousand_times();
    let after = reader
        .sample(&seats)
        .expect("a look")
        .seats
        .remove(&seat)
        .expect("the seat");
    assert!(after.own.0 - before.own.1 >= TIMES);
    assert!(
        after.switches - before.switches >= TIMES,
        "all of them were on these CPUs"
    );
    assert!(after.bound.values().any(|bound| bound.name.starts_with("ksoftirqd/")));
}
