//! The reader on a model of a host, whose tasks run, begin and end while their files are read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::super::Reader;
use super::*;
use crate::account::Range;
use crate::replay::{ENDED_TASKS, FullReading, OpenSeat, ReadingDelta};
use crate::sample::{Counters, Seat};

const CGROUP: &str = "/kubepods.slice/cri-containerd-a.scope";
const RUN_NS: u64 = 3_000;

#[derive(Debug, Clone, Copy)]
enum Step {
    Own(usize),
    Foreign,
    /// A task creates a process, or a thread.
    Fork(usize),
    Thread(usize),
    /// It leaves the list of its cgroup, and runs once more before the next sample.
    Ends(usize),
    LastRun,
    /// A child runs so often and ends.
    Unseen(u64),
    /// A process of another cgroup comes, after so many runs elsewhere; it is older than the last sample or not.
    Comes(u64, bool),
    /// To another cgroup of the container, or out of it.
    Moves(usize),
    Leaves(usize),
}

#[derive(Debug, Clone)]
struct Simulated {
    start: u64,
    counters: Task,
    process: i32,
    parent: i32,
    /// The container has two cgroups.
    cgroup: usize,
}

#[derive(Debug, Default)]
struct Host {
    tasks: BTreeMap<i32, Simulated>,
    next_id: i32,
    dying: u64,
    switches: u64,
    foreign: u64,
    usage_ns: u64,
    /// The runs of others by the switches of the CPU.
    truth: BTreeMap<u64, u64>,
    /// What happens before each file is read.
    script: VecDeque<Vec<Step>>,
    reads: usize,
    /// More cgroups, which are empty.
    empty: usize,
}

#[derive(Clone)]
struct Model(Arc<Mutex<Host>>);

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 100 + u64::try_from(now.tv_nsec).unwrap() / 10_000_000
}

impl Host {
    fn counted(&mut self, counters: &mut Task) {
        self.switches += 1;
        self.usage_ns += RUN_NS;
        counters.switches += 1;
        counters.run_ns += RUN_NS;
    }

    fn id(&self, place: usize) -> Option<i32> {
        let count = self.tasks.len();
        self.tasks.keys().nth(place.checked_rem(count)?).copied()
    }

    fn add(&mut self, start: u64, counters: Task, (process, parent): (Option<i32>, i32)) -> i32 {
        self.next_id += 1;
        let id = self.next_id + 100;
        let task = Simulated {
            start,
            counters,
            process: process.unwrap_or(id),
            parent,
            cgroup: 0,
        };
        self.tasks.insert(id, task);
        id
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Own(place) => {
                if let Some(id) = self.id(place) {
                    let mut counters = self.tasks[&id].counters;
                    self.counted(&mut counters);
                    self.tasks.get_mut(&id).unwrap().counters = counters;
                }
            }
            Step::Foreign => {
                self.switches += 1;
                self.foreign += 1;
            }
            Step::Fork(place) => {
                if let Some(parent) = self.id(place) {
                    let process = self.tasks[&parent].process;
                    self.add(now(), Task::default(), (None, process));
                }
            }
            Step::Thread(place) => {
                if let Some(id) = self.id(place) {
                    let (process, parent) = (self.tasks[&id].process, self.tasks[&id].parent);
                    self.add(now(), Task::default(), (Some(process), parent));
                }
            }
            Step::Ends(place) => {
                if let Some(id) = self.id(place).filter(|_| self.tasks.len() > 1) {
                    self.tasks.remove(&id);
                    self.dying += 1;
                }
            }
            Step::LastRun => {
                if self.dying > 0 {
                    self.dying -= 1;
                    self.counted(&mut Task::default());
                }
            }
            Step::Unseen(times) => (0..times).for_each(|_| self.counted(&mut Task::default())),
            Step::Comes(elsewhere, is_old) => {
                let counters = Task {
                    switches: elsewhere,
                    run_ns: elsewhere * RUN_NS,
                    delay_ns: 0,
                };
                self.add(if is_old { 1 } else { now() }, counters, (None, 1));
            }
            Step::Moves(place) => {
                if let Some(id) = self.id(place) {
                    let task = self.tasks.get_mut(&id).unwrap();
                    task.cgroup = 1 - task.cgroup;
                }
            }
            Step::Leaves(place) => {
                if let Some(id) = self.id(place).filter(|_| self.tasks.len() > 1) {
                    self.tasks.remove(&id);
                }
            }
        }
    }

    fn read(&mut self, path: &str) -> Option<String> {
        self.reads += 1;
        for step in self.script.pop_front().unwrap_or_default() {
            self.step(step);
        }
        let list = |cgroup: usize| {
            let tasks = self.tasks.iter().filter(|(_, task)| task.cgroup == cgroup);
            tasks.map(|(id, _)| format!("{id}\n")).collect::<String>()
        };
        let own = format!("/sys/fs/cgroup{CGROUP}");
        if let Some(file) = path.strip_prefix(&own) {
            return match file {
                "/cpu.stat" => Some(format!("usage_usec {}\nuser_usec 1\n", self.usage_ns / 1_000)),
                "/cgroup.threads" => Some(list(0)),
                "/below/cgroup.threads" => Some(list(1)),
                _ => Some(String::new()),
            };
        }
        if let Some(file) = path.strip_prefix("/proc/") {
            let (number, file) = file.split_once('/').unwrap_or((file, ""));
            if let Ok(id) = number.parse::<i32>() {
                let task = self.tasks.get(&id)?;
                let counters = task.counters;
                return Some(match file {
                    "schedstat" => format!("{} {} {}\n", counters.run_ns, counters.delay_ns, counters.switches),
                    "status" => format!("Name:\tx\nTgid:\t{}\nPPid:\t{}\n", task.process, task.parent),
                    _ => format!("{id} (x) S 1 0 0 0 -1 64 0 0 0 0 0 0 0 0 20 0 1 0 {} 0\n", task.start),
                });
            }
        }
        Some(match path {
            "/proc/schedstat" => {
                self.truth.insert(self.switches, self.foreign);
                format!("version 17\ntimestamp 1\ncpu2 1 0 3 4 5 6 7 8 {}\n", self.switches)
            }
            "/proc/interrupts" => "  CPU2\nLOC: 8 Local\n".to_owned(),
            "/proc/softirqs" => "  CPU0 CPU1 CPU2\n HI: 1 1 0\n".to_owned(),
            "/proc/stat" => "cpu 1\ncpu2 1 2 3 4 5 6 7 80 9 10\n".to_owned(),
            _ => String::new(),
        })
    }
}

impl Files for Model {
    fn read(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        let text = self.0.lock().unwrap().read(path);
        let text = text.ok_or_else(|| io::Error::from_raw_os_error(2))?;
        into.clear();
        into.extend(text.as_bytes());
        Ok(())
    }

    fn read_short(&self, path: &str, into: &mut Vec<u8>) -> io::Result<()> {
        self.read(path, into)
    }

    fn folders(&self, path: &str, most: usize) -> io::Result<Vec<String>> {
        if !path.ends_with(CGROUP) {
            return Ok(Vec::new());
        }
        let empty = self.0.lock().unwrap().empty;
        let names = (0..empty).map(|number| format!("empty{number}"));
        Ok(std::iter::once("below".to_owned())
            .chain(names)
            .take(most + 1)
            .collect())
    }
}

fn seat() -> Seat {
    Seat {
        cpus: [2].into_iter().collect(),
        threads: Vec::new(),
        cgroup: Some(CGROUP.to_owned()),
    }
}

/// A host on which three tasks ran 50 times each, and others 7 times.
struct Run {
    model: Model,
    reader: Reader,
    readings: Vec<FullReading>,
}

impl Run {
    fn new() -> Self {
        let mut host = Host::default();
        for _ in 0..3 {
            let id = host.add(1, Task::default(), (None, 1));
            for _ in 0..50 {
                let mut counters = host.tasks[&id].counters;
                host.counted(&mut counters);
                host.tasks.get_mut(&id).unwrap().counters = counters;
            }
        }
        (0..7).for_each(|_| host.step(Step::Foreign));
        let model = Model(Arc::new(Mutex::new(host)));
        let reader = Reader::with_files(Box::new(model.clone()));
        let mut run = Self {
            model,
            reader,
            readings: Vec::new(),
        };
        run.sample();
        run
    }

    fn steps(&self, steps: &[Step]) {
        let mut host = self.model.0.lock().unwrap();
        steps.iter().for_each(|step| host.step(*step));
    }

    fn during(&self, script: &[Vec<Step>]) {
        self.model.0.lock().unwrap().script = script.iter().cloned().collect();
    }

    fn read(&mut self) -> Option<Counters> {
        let sample = self.reader.sample(&BTreeSet::from([seat()])).expect("a sample");
        let is_over = !sample.too_many_tasks.is_empty();
        let counters = sample.seats.get(&seat()).cloned();
        assert!(!is_over || counters.is_none());
        // What ends has ended by the next sample.
        let mut host = self.model.0.lock().unwrap();
        host.script.clear();
        while host.dying > 0 {
            host.step(Step::LastRun);
        }
        counters
    }

    fn sample(&mut self) -> Counters {
        let counters = self.read().expect("the container");
        let gone = counters.own_incomplete.then_some(ENDED_TASKS);
        self.readings.push(FullReading {
            at: 0,
            up: 0,
            counters: counters.clone(),
            gone: gone.into_iter().collect(),
        });
        counters
    }

    /// What ran between two samples, as told and in truth.
    fn between(&self, from: usize, to: usize) -> (Range, u64) {
        let mut last = self.readings[to].clone();
        last.gone = self.readings[from + 1..=to]
            .iter()
            .flat_map(|reading| reading.gone.iter().copied())
            .collect();
        let told = ReadingDelta::new(&OpenSeat::default(), &self.readings[from], &last)
            .expect("no contradiction")
            .other;
        let host = self.model.0.lock().unwrap();
        let truth = |place: usize| host.truth[&self.readings[place].counters.switches];
        (told, truth(to) - truth(from))
    }

    fn last(&self) -> (u64, u64) {
        let last = self.readings.len() - 1;
        let (told, truth) = self.between(last - 1, last);
        assert!(told.least <= truth && truth <= told.most, "{told:?}, {truth}");
        (told.least, told.most)
    }
}

#[test]
fn what_a_containers_tasks_and_those_that_they_create_run_is_its_own() {
    let mut run = Run::new();
    run.steps(&[Step::Own(0), Step::Own(1), Step::Own(2), Step::Own(2)]);
    assert!(!run.sample().own_incomplete);
    assert_eq!(run.last(), (0, 0));
    run.steps(&[Step::Foreign, Step::Own(1)]);
    run.sample();
    assert_eq!(run.last(), (1, 1), "others are counted exactly");
    // A child, its thread, and the child's child, all in one window, one of them in a cgroup below.
    run.steps(&[
        Step::Fork(0),
        Step::Thread(3),
        Step::Fork(4),
        Step::Moves(4),
        Step::Foreign,
    ]);
    run.steps(&[Step::Own(3), Step::Own(4), Step::Own(4), Step::Own(5)]);
    assert!(!run.sample().own_incomplete);
    assert_eq!(run.last(), (1, 1));
    let counters = run.sample();
    assert_eq!(run.last(), (0, 0));
    assert_eq!(counters.own.0, counters.own.1);
}

#[test]
fn a_task_that_ended_makes_an_interval_from_0_and_what_ran_before_is_kept() {
    let mut run = Run::new();
    run.steps(&[Step::Own(0), Step::Own(0), Step::Ends(0), Step::Foreign]);
    assert!(run.sample().own_incomplete);
    assert_eq!(run.last(), (0, 3));
    // Its last run comes after the CPU was read, and shows as time of a task that is not there.
    assert!(run.sample().own_incomplete);
    assert_eq!(run.last(), (0, 1));
    assert!(!run.sample().own_incomplete);
    run.steps(&[Step::Foreign]);
    run.sample();
    assert_eq!(run.last(), (1, 1), "afterwards it is certain again");
    // Over the whole time the sum is as uncertain as the ended task's last runs.
    let (told, truth) = run.between(0, run.readings.len() - 1);
    assert_eq!((told, truth), (Range { least: 0, most: 5 }, 2));
}

#[test]
fn a_task_that_began_and_ended_unseen_shows_in_the_cgroups_time() {
    let mut run = Run::new();
    run.steps(&[Step::Unseen(1)]);
    assert!(run.sample().own_incomplete);
    assert_eq!(run.last(), (0, 1));
    run.sample();
    run.sample();
    // Where tasks run while they are read it is not known whether there was one.
    run.during(&vec![vec![Step::Own(0)]; 100]);
    assert!(run.sample().own_incomplete);
    run.last();
    // It is compared with the last time at which none ran.
    assert!(!run.sample().own_incomplete);
    run.during(&vec![vec![Step::Own(0)]; 100]);
    run.sample();
    run.steps(&[Step::Unseen(1)]);
    assert!(run.sample().own_incomplete);
    run.last();
}

#[test]
fn what_a_task_ran_elsewhere_before_it_came_hides_nobody() {
    for is_old in [true, false] {
        let mut run = Run::new();
        run.steps(&[Step::Comes(1_000_000, is_old), Step::Foreign]);
        assert!(run.sample().own_incomplete);
        assert_eq!(run.last(), (0, 1));
        // Its own runs count from now on, its child's too.
        run.steps(&[Step::Own(3), Step::Fork(3), Step::Own(4), Step::Foreign]);
        assert!(!run.sample().own_incomplete);
        run.sample();
        assert_eq!(run.last(), (0, 0));
        run.steps(&[Step::Own(3), Step::Foreign]);
        run.sample();
        assert_eq!(run.last(), (1, 1));
    }
    // The child of one that has just come may have been moved with it.
    let mut run = Run::new();
    run.steps(&[Step::Comes(9, false), Step::Fork(3), Step::Own(4)]);
    run.sample();
    assert_eq!(run.last(), (0, 1));
}

#[test]
fn a_number_that_another_task_has_now_is_not_the_former_ones() {
    let mut run = Run::new();
    {
        let mut host = run.model.0.lock().unwrap();
        let (id, task) = host.tasks.pop_first().unwrap();
        host.dying = 1;
        let counters = Task {
            switches: 20,
            run_ns: 20 * RUN_NS,
            delay_ns: 0,
        };
        let start = now();
        host.tasks.insert(
            id,
            Simulated {
                start,
                counters,
                ..task
            },
        );
    }
    run.steps(&[Step::Foreign]);
    let counters = run.sample();
    assert!(counters.own_incomplete);
    assert_eq!(run.last(), (0, 1));
    // The 50 runs of the former one are kept. How many of the new one's 20 were before the CPU was read is not known.
    assert_eq!(counters.own, (150, 170));
}

#[test]
fn a_container_with_too_many_tasks_is_left_out_for_an_hour_and_no_other_seat() {
    let mut run = Run::new();
    run.steps(&vec![Step::Fork(0); MAX_TASKS - 3]);
    run.sample();
    assert_eq!(run.last(), (0, 0));
    // No attempt begins after so many files.
    run.during(&vec![vec![Step::Own(0)]; 50_000]);
    run.model.0.lock().unwrap().reads = 0;
    run.sample();
    let reads = run.model.0.lock().unwrap().reads;
    assert!(reads <= MAX_TASKS * 8, "{reads}");
    run.steps(&[Step::Fork(0)]);
    assert_eq!(run.read(), None);
    run.steps(&vec![Step::Leaves(0); 900]);
    run.model.0.lock().unwrap().reads = 0;
    let vm = Seat {
        cpus: [2].into_iter().collect(),
        ..Seat::default()
    };
    let seats = BTreeSet::from([seat(), vm.clone()]);
    let sample = run.reader.sample(&seats).unwrap();
    assert_eq!(sample.too_many_tasks, BTreeSet::from([seat()]));
    assert_eq!(sample.seats.keys().collect::<Vec<_>>(), [&vm]);
    assert!(run.model.0.lock().unwrap().reads < 20);
    // As many cgroups as it likes.
    let mut run = Run::new();
    run.model.0.lock().unwrap().empty = MAX_CGROUPS - 2;
    run.sample();
    run.model.0.lock().unwrap().empty = 1_000_000;
    assert_eq!(run.read(), None);
}

#[test]
fn a_container_that_is_gone_is_missing() {
    let files = tempfile::tempdir().unwrap();
    let proc = files.path().join("proc");
    std::fs::create_dir_all(&proc).unwrap();
    std::fs::create_dir_all(files.path().join("sys/fs/cgroup")).unwrap();
    for (name, text) in [
        ("schedstat", "version 17\ntimestamp 1\ncpu2 1 0 3 4 5 6 7 8 9\n"),
        ("interrupts", "  CPU2\nLOC: 8 Local\n"),
        ("softirqs", "  CPU0 CPU1 CPU2\n HI: 1 1 0\n"),
        ("stat", "cpu 1\ncpu2 1 2 3 4 5 6 7 80 9 10\n"),
    ] {
        std::fs::write(proc.join(name), text).unwrap();
    }
    std::fs::write(files.path().join("sys/fs/cgroup/cgroup.procs"), "").unwrap();
    let mut reader = Reader::new(files.path());
    let mut there = || reader.sample(&BTreeSet::from([seat()])).unwrap().seats.len();
    assert_eq!(there(), 0);
    let cgroup = files.path().join(format!("sys/fs/cgroup{CGROUP}/a/b"));
    std::fs::create_dir_all(&cgroup).unwrap();
    for folder in [&cgroup, &cgroup.join(".."), &cgroup.join("../..")] {
        std::fs::write(folder.join("cgroup.threads"), "9\n").unwrap();
    }
    std::fs::write(cgroup.join("../../cpu.stat"), "usage_usec 7\n").unwrap();
    assert_eq!(there(), 1, "its task has ended");
    std::fs::create_dir_all(cgroup.join("../c")).unwrap();
    assert_eq!(there(), 1, "a cgroup that is gone meanwhile");
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..20usize).prop_map(Step::Own),
        3 => Just(Step::Foreign),
        2 => (0..20usize).prop_map(Step::Fork),
        1 => (0..20usize).prop_map(Step::Thread),
        2 => (0..20usize).prop_map(Step::Ends),
        1 => Just(Step::LastRun),
        1 => (1..4u64).prop_map(Step::Unseen),
        1 => (0..9u64, any::<bool>()).prop_map(|(elsewhere, is_old)| Step::Comes(elsewhere, is_old)),
        1 => (0..20usize).prop_map(Step::Moves),
        1 => (0..20usize).prop_map(Step::Leaves),
    ]
}

proptest! {
    #[test]
    fn the_truth_lies_in_each_interval_whatever_happens_between_two_files(
        samples in proptest::collection::vec(
            (
                proptest::collection::vec(steps(), 0..12),
                proptest::collection::vec(proptest::collection::vec(steps(), 0..2), 0..60),
            ),
            1..8,
        ),
    ) {
        let mut run = Run::new();
        for (before, during) in samples {
            run.steps(&before);
            run.during(&during);
            run.sample();
        }
        for from in 0..run.readings.len() {
            for to in from + 1..run.readings.len() {
                let (told, truth) = run.between(from, to);
                prop_assert!(told.least <= truth && truth <= told.most, "{from} to {to}: {told:?}, {truth}");
            }
        }
    }
}
