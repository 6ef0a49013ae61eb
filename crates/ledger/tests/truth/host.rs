//! A model of a host: it counts what runs on its CPUs, and reads the kernel's counters as the daemon does.

use std::collections::{BTreeMap, BTreeSet};

use stelia_ledger::recorder::RecordedVm;
use stelia_ledger::sample::{Bound, CounterSample, Counters, Fired, Seat, TaskId};

/// The first VM has the CPUs 2 and 3, the second has 4.
pub const VMS: [&str; 2] = [
    "00000000-0000-4000-8000-000000000001",
    "00000000-0000-4000-8000-000000000002",
];
/// The VM of each CPU.
const VM_OF_CPU: [usize; 3] = [0, 0, 1];
pub const STATES: [&str; 3] = ["isolated", "pinned", "waiting"];
/// How long a worker is idle before it ends, microseconds (IDLE_WORKER_TIMEOUT in the kernel's kernel/workqueue.c).
const WORKER_IDLE_US: u64 = 300_000_000;

#[derive(Debug, Clone, Copy)]
pub enum Run {
    Own,
    Foreign,
    /// One of the bound threads.
    Bound(usize),
    /// A worker is created; it ran so often on other CPUs before it was bound.
    Created(u64),
    /// The worker that was idle longest ends, after it ran once more, if it was idle long enough.
    Ends,
    Device,
}

/// One CPU with the vCPU thread that is pinned to it.
#[derive(Debug, Clone)]
pub struct Cpu {
    pub seat: Seat,
    pub counters: Counters,
    pub foreign: u64,
    /// How often devices' interrupts fired; the counters have 32 bits.
    interrupts: u64,
    /// When each worker ran last.
    last_run: BTreeMap<TaskId, u64>,
    /// What the reader holds: the bound threads, and switches minus theirs and the own ones, if that is exact.
    last_read: Option<(BTreeMap<TaskId, Bound>, Option<u64>)>,
    /// Offline at the next sample.
    pub hidden: bool,
}

#[derive(Debug, Clone)]
pub struct Host {
    pub boot: u32,
    pub at: u64,
    pub up: u64,
    pub cpus: Vec<Cpu>,
    pub states: [usize; 2],
    /// The number of the next worker.
    next_worker: i32,
}

/// What has run on a CPU at one reading.
#[derive(Debug, Clone, Copy)]
pub struct ActualCounts {
    pub foreign: u64,
    pub devices: u64,
    pub own_ns: u64,
}

impl Host {
    pub fn new() -> Self {
        Self {
            boot: 1,
            at: 1_790_000_000_000_000,
            up: 77_000_000,
            cpus: (0..3).map(cpu).collect(),
            states: [0; 2],
            next_worker: 1000,
        }
    }

    /// The host boots, and the same pods come again.
    pub fn boot(&mut self) {
        let cpus = (0..3).map(cpu).collect();
        *self = Self {
            boot: self.boot + 1,
            up: 60_000_000,
            cpus,
            ..*self
        };
        self.at += 120_000_000;
    }

    pub fn later(&mut self, us: u64) {
        (self.at, self.up) = (self.at + us, self.up + us);
    }

    pub fn run(&mut self, cpu: usize, what: Run) {
        let cpu = &mut self.cpus[cpu];
        let counters = &mut cpu.counters;
        match what {
            Run::Own => {
                counters.switches += 1;
                counters.own = (counters.own.0 + 1, counters.own.1 + 1);
                counters.run_ns += 1_000;
            }
            Run::Foreign => {
                counters.switches += 1;
                cpu.foreign += 1;
            }
            Run::Bound(place) => {
                let place = place % counters.bound.len();
                if let Some((thread, bound)) = counters.bound.iter_mut().nth(place) {
                    bound.switches = (bound.switches.0 + 1, bound.switches.1 + 1);
                    bound.run_ns += 10;
                    counters.switches += 1;
                    cpu.last_run.entry(*thread).and_modify(|idle| *idle = self.up);
                }
            }
            Run::Created(elsewhere) => {
                let thread = TaskId {
                    id: self.next_worker,
                    start: self.up / 10_000,
                };
                let name = format!("kworker/{}:{}", cpu.seat.cpus, self.next_worker);
                self.next_worker += 1;
                // It is bound, and runs there for the first time.
                let bound = Bound {
                    name,
                    switches: (elsewhere + 1, elsewhere + 1),
                    run_ns: 0,
                };
                counters.switches += 1;
                counters.bound.insert(thread, bound);
                cpu.last_run.insert(thread, self.up);
            }
            Run::Ends => {
                let longest = cpu.last_run.iter().min_by_key(|(_, idle)| **idle);
                let ends = longest
                    .filter(|(_, idle)| **idle + WORKER_IDLE_US <= self.up)
                    .map(|(thread, _)| *thread);
                if let Some(thread) = ends {
                    cpu.last_run.remove(&thread);
                    counters.bound.remove(&thread);
                    counters.switches += 1;
                }
            }
            Run::Device => {
                // One fires for the first time, the other one's counter wraps.
                let (irq, name) = if cpu.interrupts.is_multiple_of(2) {
                    (30, "nvme0q1")
                } else {
                    (31, "eth0")
                };
                let fired = counters.devices.entry(irq).or_default();
                name.clone_into(&mut fired.name);
                fired.count = fired.count.wrapping_add(1);
                cpu.interrupts += 1;
            }
        }
    }

    /// Something that runs while a CPU is read. A worker that the reader does not know does not end then, because the real reader would read
    /// again.
    fn run_during_sample(&mut self, cpu: usize, what: Run) {
        let known = self.cpus[cpu].last_read.as_ref().map(|(known, _)| known);
        let all_known =
            known.is_some_and(|known| self.cpus[cpu].last_run.keys().all(|thread| known.contains_key(thread)));
        if all_known || !matches!(what, Run::Ends) {
            self.run(cpu, what);
        }
    }

    /// A daemon that starts has not read anything.
    pub fn forget(&mut self) {
        self.cpus.iter_mut().for_each(|cpu| cpu.last_read = None);
    }

    /// Reads the threads, the CPUs, and the threads again; `before` and `after` run in between.
    pub fn sample(
        &mut self,
        wanted: &BTreeSet<Seat>,
        before: &[(usize, Run)],
        after: &[(usize, Run)],
    ) -> (CounterSample, BTreeMap<Seat, ActualCounts>) {
        let first: Vec<Counters> = self.cpus.iter().map(|cpu| cpu.counters.clone()).collect();
        before
            .iter()
            .for_each(|(cpu, what)| self.run_during_sample(*cpu, *what));
        let middle: Vec<(u64, u64)> = self
            .cpus
            .iter()
            .map(|cpu| (cpu.counters.switches, cpu.foreign))
            .collect();
        after.iter().for_each(|(cpu, what)| self.run_during_sample(*cpu, *what));
        let mut sample = CounterSample {
            at_us: self.at,
            up_us: self.up,
            ..CounterSample::default()
        };
        let mut truth = BTreeMap::new();
        for ((cpu, first), (switches, foreign)) in self.cpus.iter_mut().zip(first).zip(middle) {
            if std::mem::take(&mut cpu.hidden) || !wanted.contains(&cpu.seat) {
                cpu.last_read = None;
                continue;
            }
            let counters = cpu.read(&first, switches);
            truth.insert(
                cpu.seat.clone(),
                ActualCounts {
                    foreign,
                    devices: cpu.interrupts,
                    own_ns: counters.run_ns,
                },
            );
            sample.seats.insert(cpu.seat.clone(), counters);
        }
        (sample, truth)
    }

    pub fn vms(&self) -> BTreeMap<String, RecordedVm> {
        let vm = |number: usize| {
            let seats = self.cpus.iter().zip(VM_OF_CPU).filter(|(_, vm)| *vm == number);
            let vm = RecordedVm {
                name: format!("tenant/{number}"),
                state: STATES[self.states[number]].into(),
                seats: seats.map(|(cpu, _)| cpu.seat.clone()).collect(),
                own_devices: BTreeSet::new(),
                located: None,
            };
            (VMS[number].to_owned(), vm)
        };
        (0..2).map(vm).collect()
    }
}

impl Cpu {
    /// Reads as the daemon's reader does: bound threads only if something else ran since they were last read.
    fn read(&mut self, first: &Counters, switches: u64) -> Counters {
        let mut read = self.counters.clone();
        read.switches = switches;
        read.own.0 = first.own.0;
        for (thread, bound) in &mut read.bound {
            bound.switches.0 = first.bound.get(thread).map_or(0, |before| before.switches.0);
        }
        let sum = |of: &BTreeMap<TaskId, Bound>| of.values().map(|bound| bound.switches.1).sum::<u64>();
        let is_sure = |read: &Counters| {
            read.own.0 == read.own.1 && read.bound.values().all(|bound| bound.switches.0 == bound.switches.1)
        };
        if let Some((known, Some(rest))) = &self.last_read
            && read.own.0 == read.own.1
            && (switches - read.own.0).checked_sub(sum(known)) == Some(*rest)
        {
            read.bound.clone_from(known);
            read.bound_read = false;
            return read;
        }
        read.bound_read = true;
        let rest = is_sure(&read).then(|| switches - read.own.0 - sum(&read.bound));
        self.last_read = Some((read.bound.clone(), rest));
        read
    }
}

fn cpu(number: i32) -> Cpu {
    let bound = Bound {
        name: format!("ksoftirqd/{}", number + 2),
        switches: (40, 40),
        run_ns: 900,
    };
    let counters = Counters {
        switches: 5_000,
        own: (3_000, 3_000),
        bound: BTreeMap::from([(
            TaskId {
                id: 20 + number,
                start: 1,
            },
            bound,
        )]),
        devices: BTreeMap::from([(
            31,
            Fired {
                name: "eth0".into(),
                count: u32::MAX,
            },
        )]),
        upkeep: BTreeMap::from([("LOC".into(), 9), ("RES".into(), 0)]),
        softirqs: BTreeMap::from([("TIMER".into(), 9)]),
        ..Counters::default()
    };
    let seat = Seat {
        cpus: (number + 2).to_string().parse().unwrap(),
        threads: vec![TaskId {
            id: 100 + number,
            start: 7_000,
        }],
        cgroup: None,
    };
    Cpu {
        seat,
        counters,
        foreign: 0,
        interrupts: 0,
        last_run: BTreeMap::new(),
        last_read: None,
        hidden: false,
    }
}
