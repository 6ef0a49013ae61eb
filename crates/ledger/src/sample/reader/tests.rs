use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::attempt::SCHEDSTAT;
use super::*;
use crate::sample::kernel_threads::ROOT_CGROUP_PROCS;
use crate::sample::{Bound, Counters, Fired};

/// Each reading of a file gives its next text; the last one stays. Thread 7 is the vCPU's, on CPU 2.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    texts: BTreeMap<String, VecDeque<String>>,
    reads: BTreeMap<String, u32>,
}

impl Files for Scripted {
    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        *inner.reads.entry(path.to_owned()).or_default() += 1;
        let gone = || io::Error::from_raw_os_error(2);
        let texts = inner.texts.get_mut(path).ok_or_else(gone)?;
        let text = if texts.len() > 1 {
            texts.pop_front()
        } else {
            texts.front().cloned()
        };
        let text = text.filter(|text| !text.is_empty()).ok_or_else(gone)?;
        into.clear();
        into.extend(text.as_bytes());
        Ok(())
    }

    fn read_short(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into)
    }

    fn folders(&self, _: &str, _: usize) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Scripted {
    fn set(&self, path: &str, texts: &[&str]) {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.0.lock().unwrap().texts.insert(path.to_owned(), texts);
    }

    /// `pcount` of CPU 2, at each reading.
    fn cpu(&self, counts: &[u64]) {
        let text =
            |count: &u64| format!("version 17\ntimestamp 1\ncpu0 1 2 3 4 5 6 7 8 9\ncpu2 1 0 3 4 5 6 7 8 {count}\n");
        let texts: Vec<String> = counts.iter().map(text).collect();
        self.set("/proc/schedstat", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// `pcount` of a thread, at each reading.
    fn task(&self, id: i32, counts: &[u64]) {
        let texts: Vec<String> = counts
            .iter()
            .map(|count| format!("{count}000 {count}00 {count}\n"))
            .collect();
        self.set(
            &format!("/proc/{id}/schedstat"),
            &texts.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }

    fn thread(&self, id: i32, name: &str, flags: u64, start: u64) {
        let text = format!("{id} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n");
        self.set(&format!("/proc/{id}/task/{id}/stat"), &[&text]);
    }

    fn list(&self, ids: &[&str]) {
        self.set(ROOT_CGROUP_PROCS, ids);
    }

    /// How often a file was read since the last time that this was asked.
    fn reads(&self, path: &str) -> u32 {
        self.0.lock().unwrap().reads.remove(path).unwrap_or_default()
    }
}

const BOUND: u64 = 0x0420_0040;

/// Thread 7 ran 100 times, ksoftirqd/2 5 times, a worker 3 times, and others twice.
fn host() -> (Scripted, Reader) {
    let files = Scripted::default();
    files.cpu(&[110]);
    files.task(7, &[100]);
    files.thread(7, "CPU 0/KVM", 0x0040_0040, 700);
    files.list(&["1\n2\n20\n21\n22\n"]);
    files.thread(1, "systemd", 0x0040_0100, 1);
    files.thread(2, "kthreadd", 0x0020_8040, 1);
    files.thread(20, "ksoftirqd/2", BOUND, 3);
    files.set("/proc/20/status", &["Name:\tksoftirqd/2\nCpus_allowed_list:\t2\n"]);
    files.task(20, &[5]);
    files.thread(21, "kworker/2:1-events", BOUND, 4);
    files.task(21, &[3]);
    files.thread(22, "kworker/0:1-events", BOUND, 4);
    files.task(22, &[1000]);
    files.set("/proc/interrupts", &["  CPU0 CPU2\n  0: 1 1 IO-APIC 2-edge timer\n 24: 5 6 PCI-MSI 0-edge nvme0q1\n 25: 5 0 PCI-MSI 0-edge x\nLOC: 7 8 Local\nERR: 0\n"]);
    files.set("/proc/softirqs", &["  CPU0 CPU1 CPU2\n TIMER: 1 2 3\n HI: 1 1 0\n"]);
    files.set(
        "/proc/stat",
        &["cpu 1\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu2 1 2 3 4 5 6 7 80 9 10\nintr 5\n"],
    );
    let reader = Reader::with_files(Box::new(files.clone()));
    (files, reader)
}

fn seat() -> Seat {
    Seat {
        cpus: [2].into_iter().collect(),
        threads: vec![TaskId { id: 7, start: 700 }],
        cgroup: None,
    }
}

fn sample(reader: &mut Reader) -> Counters {
    let mut sample = reader.sample(&BTreeSet::from([seat()])).expect("a look");
    sample.seats.remove(&seat()).expect("the seat")
}

fn bound(counters: &Counters) -> Vec<(i32, &str, (u64, u64))> {
    let bound = counters.bound.iter();
    bound
        .map(|(thread, bound)| (thread.id, bound.name.as_str(), bound.switches))
        .collect()
}

#[test]
fn a_seat_has_all_its_counters_and_the_node_is_read_once() {
    let (files, mut reader) = host();
    let counters = sample(&mut reader);
    let softirqd = Bound {
        name: "ksoftirqd/2".into(),
        switches: (5, 5),
        run_ns: 5000,
    };
    let worker = Bound {
        name: "kworker/2:1".into(),
        switches: (3, 3),
        run_ns: 3000,
    };
    let expected = Counters {
        switches: 110,
        own: (100, 100),
        own_incomplete: false,
        run_ns: 100_000,
        delay_ns: 10_000,
        bound: [
            (TaskId { id: 20, start: 3 }, softirqd),
            (TaskId { id: 21, start: 4 }, worker),
        ]
        .into(),
        bound_read: true,
        devices: [(
            24,
            Fired {
                name: "nvme0q1".into(),
                count: 6,
            },
        )]
        .into(),
        upkeep: [("LOC".to_owned(), 8)].into(),
        softirqs: [("TIMER".to_owned(), 3)].into(),
        steal: 80,
    };
    assert_eq!(counters, expected);
    for path in [SCHEDSTAT, "/proc/interrupts", "/proc/softirqs", "/proc/stat"] {
        assert_eq!(files.reads(path), 1, "{path}");
    }
}

#[test]
fn bound_threads_are_read_again_where_something_else_ran() {
    let (files, mut reader) = host();
    sample(&mut reader);
    files.reads(ROOT_CGROUP_PROCS);
    // when: only the seat's thread ran
    files.cpu(&[150]);
    files.task(7, &[140]);
    let counters = sample(&mut reader);
    assert_eq!((counters.bound_read, files.reads(ROOT_CGROUP_PROCS)), (false, 0));
    assert_eq!(
        bound(&counters),
        [(20, "ksoftirqd/2", (5, 5)), (21, "kworker/2:1", (3, 3))]
    );
    // when: ksoftirqd ran
    files.cpu(&[152]);
    files.task(20, &[7]);
    let counters = sample(&mut reader);
    assert!(counters.bound_read);
    assert_eq!(counters.switches, 152);
    assert_eq!(
        bound(&counters),
        [(20, "ksoftirqd/2", (7, 7)), (21, "kworker/2:1", (3, 3))]
    );
    // and after that nothing
    assert!(!sample(&mut reader).bound_read);
}

#[test]
fn a_seat_whose_thread_ran_meanwhile_is_read_again_until_it_agrees() {
    let (files, mut reader) = host();
    files.cpu(&[111, 112, 113]);
    files.task(7, &[100, 102, 103, 104, 105]);
    let counters = sample(&mut reader);
    assert_eq!((counters.switches, counters.own), (113, (105, 105)));
    assert_eq!(files.reads(SCHEDSTAT), 3);
}

#[test]
fn a_seat_that_never_agrees_has_the_tightest_of_five_readings() {
    let (files, mut reader) = host();
    files.cpu(&[200, 300, 400, 500, 600]);
    files.task(7, &[100, 110, 200, 209, 300, 303, 400, 409, 500, 520]);
    let counters = sample(&mut reader);
    assert_eq!(
        (counters.switches, counters.own, counters.run_ns),
        (400, (300, 303), 303_000)
    );
    assert!(counters.bound_read);
    assert_eq!((files.reads(SCHEDSTAT), files.reads("/proc/interrupts")), (5, 1));
    // It is not known whether a bound thread ran since that reading: they are read the next time.
    files.task(7, &[520]);
    files.cpu(&[530]);
    assert!(sample(&mut reader).bound_read);
}

#[test]
fn a_doubt_about_the_seats_thread_is_none_about_bound_ones() {
    let (files, mut reader) = host();
    sample(&mut reader);
    files.reads(ROOT_CGROUP_PROCS);
    // The interval has what there was before, and the next try says so.
    files.cpu(&[111, 112]);
    files.task(7, &[100, 102, 102]);
    let counters = sample(&mut reader);
    assert_eq!((counters.switches, counters.own), (112, (102, 102)));
    assert_eq!((counters.bound_read, files.reads(ROOT_CGROUP_PROCS)), (false, 0));
    // Never settled, and what there was before is always possible: the bound ones stay as they were, and are compared with that.
    files.cpu(&[113]);
    files.task(7, &[102, 104, 102, 104, 102, 104, 102, 104, 102, 103]);
    let counters = sample(&mut reader);
    assert_eq!(
        (counters.own, counters.bound_read, files.reads(ROOT_CGROUP_PROCS)),
        ((102, 103), false, 0)
    );
    files.task(7, &[103]);
    assert!(!sample(&mut reader).bound_read);
}

#[test]
fn a_worker_that_ran_meanwhile_makes_another_try() {
    let (files, mut reader) = host();
    files.cpu(&[111, 112]);
    files.task(21, &[3, 4, 5]);
    let counters = sample(&mut reader);
    assert_eq!(counters.switches, 112);
    assert_eq!(
        bound(&counters),
        [(20, "ksoftirqd/2", (5, 5)), (21, "kworker/2:1", (5, 5))]
    );
}

#[test]
fn a_worker_that_was_made_meanwhile_is_an_interval_unless_it_rests() {
    let (files, mut reader) = host();
    let without = "1\n2\n20\n21\n";
    let with = "1\n2\n20\n21\n30\n";
    files.thread(30, "kworker/2:9+events", BOUND, 99);
    files.task(30, &[2]);
    files.list(&[without, with]);
    let counters = sample(&mut reader);
    assert_eq!(bound(&counters)[2], (30, "kworker/2:9", (2, 2)), "the second try");
    // when: one is made at each try
    let (files, mut reader) = host();
    for id in 30..36 {
        files.thread(id, "kworker/2:9", BOUND, 99);
        files.task(id, &[2]);
    }
    let lists = [
        "", "30\n", "30\n", "31\n", "31\n", "32\n", "32\n", "33\n", "33\n", "34\n",
    ]
    .map(|last| format!("20\n21\n{last}"));
    files.list(&lists.each_ref().map(String::as_str));
    // then: the first one, where none ended
    assert_eq!(bound(&sample(&mut reader))[2], (30, "kworker/2:9", (0, 2)));
}

#[test]
fn a_worker_that_ended_is_missing() {
    let (files, mut reader) = host();
    sample(&mut reader);
    files.list(&["1\n2\n20\n"]);
    files.cpu(&[111]);
    let counters = sample(&mut reader);
    assert_eq!(bound(&counters), [(20, "ksoftirqd/2", (5, 5))]);
    // Its number is another's, though the list has it.
    let (files, mut reader) = host();
    sample(&mut reader);
    files.thread(21, "bash", 0x0040_0000, 900);
    files.task(21, &[4]);
    files.cpu(&[111]);
    assert_eq!(bound(&sample(&mut reader)), [(20, "ksoftirqd/2", (5, 5))]);
}

#[test]
fn seats_with_an_offline_cpu_or_an_ended_thread_are_missing_and_new_when_they_come_again() {
    let (files, mut reader) = host();
    sample(&mut reader);
    let mut missing = |change: &dyn Fn(&Scripted), undo: &dyn Fn(&Scripted)| {
        change(&files);
        let there = reader.sample(&BTreeSet::from([seat()])).expect("a look").seats;
        assert_eq!(there, BTreeMap::new());
        undo(&files);
        assert!(sample(&mut reader).bound_read);
    };
    missing(
        &|files| files.set(SCHEDSTAT, &["version 15\ncpu0 1 2 3 4 5 6 7 8 9\n"]),
        &|files| files.cpu(&[110]),
    );
    missing(&|files| files.set("/proc/7/schedstat", &[]), &|files| {
        files.task(7, &[100])
    });
    missing(&|files| files.thread(7, "sh", 0, 701), &|files| {
        files.thread(7, "CPU 0/KVM", 0, 700)
    });
    missing(&|files| files.set("/proc/7/task/7/stat", &[]), &|files| {
        files.thread(7, "CPU 0/KVM", 0, 700)
    });
    let table = "  CPU0 CPU2\nLOC: 7 8 Local\n";
    missing(
        &|files| files.set("/proc/interrupts", &["  CPU0\nLOC: 7 Local\n"]),
        &|files| files.set("/proc/interrupts", &[table]),
    );
    // A CPU went offline while the table was written, and came back.
    files.set("/proc/interrupts", &["  CPU0 CPU2\nLOC: 7 Local\n", table]);
    assert_eq!(sample(&mut reader).upkeep, [("LOC".to_owned(), 8)].into());
}

#[test]
fn a_seat_has_the_sums_of_its_cpus_and_threads() {
    let (files, mut reader) = host();
    files.thread(8, "CPU 1/KVM", 0, 800);
    files.task(8, &[9]);
    files.set(
        "/proc/interrupts",
        &["  CPU0 CPU2\n 24: 4294967295 6 PCI-MSI 0-edge nvme0q1\nLOC: 7 8 Local\n"],
    );
    let mut both = seat();
    both.cpus = [0, 2].into_iter().collect();
    both.threads.push(TaskId { id: 8, start: 800 });
    let spare = Seat {
        cpus: [0].into_iter().collect(),
        threads: Vec::new(),
        cgroup: None,
    };
    let seats = BTreeSet::from([both.clone(), spare.clone()]);
    let sample = reader.sample(&seats).expect("a look");
    let counters = &sample.seats[&both];
    assert_eq!((counters.switches, counters.own, counters.steal), (119, (109, 109), 88));
    assert_eq!(
        (counters.devices[&24].count, counters.upkeep["LOC"]),
        (5, 15),
        "modulo 2^32"
    );
    assert_eq!(counters.bound.len(), 3);
    let alone = &sample.seats[&spare];
    assert_eq!((alone.switches, alone.own, alone.run_ns), (9, (0, 0), 0));
    assert_eq!(bound(alone), [(22, "kworker/0:1", (1000, 1000))]);
}

#[test]
fn what_is_not_understood_is_an_error_that_names_the_file() {
    for (path, text) in [
        (SCHEDSTAT, "version 18\n"),
        ("/proc/interrupts", "nonsense\n"),
        ("/proc/interrupts", "  CPU0 CPU2\nLOC: 7 Local\n"),
        ("/proc/softirqs", "nonsense\n"),
        ("/proc/stat", "cpu2 x\n"),
        ("/proc/7/schedstat", "0\n"),
    ] {
        let (files, mut reader) = host();
        files.set(path, &[text]);
        let error = reader.sample(&BTreeSet::from([seat()])).expect_err(path).to_string();
        assert!(error.starts_with(&format!("read {path}: ")), "{error}");
    }
    let (files, mut reader) = host();
    files.set(SCHEDSTAT, &[]);
    let error = reader
        .sample(&BTreeSet::from([seat()]))
        .expect_err("no schedstat")
        .to_string();
    assert_eq!(error, "read /proc/schedstat: No such file or directory (os error 2)");
}
