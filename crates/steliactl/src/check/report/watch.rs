//! The threads of a VM while they are watched: on which CPUs each of them ran, and for how long.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_kernel::proc::KernelProcs;
use stelia_kernel::proc::stat::{cpu, cpu_ticks, start_time};
use stelia_model::PinnedThread;

use crate::shared::kernel::threads::Process;

/// How often each thread is sampled.
const SAMPLES_PER_THREAD: u32 = 10;

/// [`cpu_ticks`] are hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// A thread of a VM. In the order of the report: vCPUs, I/O threads, then by role, process and number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Thread {
    /// `vcpu` and `iothread`: one that AttachVcpus named. `emulator`: another of QEMU's. `float`: of another process of the VM.
    /// `origin`: one that stayed in the container's own cgroup. `other`: of another process, and elsewhere.
    pub(super) role: &'static str,
    /// Number of the vCPU or I/O thread.
    pub(super) index: Option<u32>,
    /// The process's number on the host.
    pub(super) pid: i32,
    pub(super) tid: i32,
    pub(super) name: String,
    /// `float`, `vcpu` or `origin`; the cgroup's path if it is in none of the three.
    pub(super) cgroup: String,
    /// Where it may run: its affinity within its cpuset.
    pub(super) allowed_cpus: String,
    /// Where it was seen to run. A thread that slept is seen where it ran last.
    pub(super) ran_on: CpuSet,
    /// The time it ran, as a share of the time it was watched; `None` of a thread that was seen once only.
    pub(super) cpu_share: Option<f64>,
}

/// What was seen of a thread.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Track {
    first: ThreadSample,
    last: ThreadSample,
    ran_on: CpuSet,
}

/// A sample of a thread, from its `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadSample {
    at: Duration,
    /// Clock ticks since boot: with its number it identifies the thread.
    start: u64,
    /// The time it has run, in ticks.
    ran: u64,
    /// The CPU that it runs on, or ran on last.
    cpu: u32,
}

impl ThreadSample {
    /// Parses a line of `stat`.
    fn of(stat: &str, at: Duration) -> Option<Self> {
        Some(Self {
            at,
            start: start_time(stat)?,
            ran: cpu_ticks(stat)?,
            cpu: cpu(stat)?,
        })
    }

    fn read(proc: &Path, (_, tid): (i32, i32), at: Duration) -> Option<Self> {
        Self::of(&KernelProcs::new(proc).read_thread_stat(tid).ok()?, at)
    }
}

impl Track {
    fn add(&mut self, sample: ThreadSample) {
        // The number may have been reused.
        if sample.start == self.first.start {
            self.ran_on.insert(sample.cpu);
            self.last = sample;
        }
    }

    fn share(&self) -> Option<f64> {
        let watched = self.last.at.checked_sub(self.first.at)?.as_secs_f64();
        let ran = self.last.ran.saturating_sub(self.first.ran) as f64 / TICKS_PER_SECOND;
        // A tick may be counted a little before or after it was run.
        (watched > 0.0).then(|| (ran / watched).min(1.0))
    }
}

/// What was seen of each thread, by process and thread. Those that ended before the first look are missing.
pub(super) type Tracks = BTreeMap<(i32, i32), Track>;

/// Looks at the threads of these processes for this long.
pub(super) async fn watch(proc: &Path, processes: impl Iterator<Item = &Process>, time: Duration) -> Tracks {
    let began = Instant::now();
    let ids = processes.flat_map(|process| process.threads.iter().map(|thread| (process.pid, thread.tid)));
    let first = ids.filter_map(|id| {
        let first = ThreadSample::read(proc, id, began.elapsed())?;
        let (last, ran_on) = (first, CpuSet::from_iter([first.cpu]));
        Some((id, Track { first, last, ran_on }))
    });
    let mut tracks: Tracks = first.collect();
    for _ in 1..SAMPLES_PER_THREAD {
        tokio::time::sleep(time / (SAMPLES_PER_THREAD - 1)).await;
        for (id, track) in &mut tracks {
            if let Some(sample) = ThreadSample::read(proc, *id, began.elapsed()) {
                track.add(sample);
            }
        }
    }
    tracks
}

/// The threads of a VM with what was seen of them; `pinned` are those that AttachVcpus named.
pub(super) fn watched(processes: &[Process], pinned: &[PinnedThread], tracks: &Tracks) -> Vec<Thread> {
    let mut named = BTreeMap::new();
    for process in processes {
        for thread in &process.threads {
            let id = (process.pid, thread.tid);
            let is = |vcpu: &&PinnedThread| {
                let start = tracks.get(&id).map(|track| track.first.start);
                vcpu.thread.task.id == thread.tid && start == Some(vcpu.thread.task.start)
            };
            if let Some(vcpu) = pinned.iter().find(is) {
                named.insert(id, vcpu.thread.role);
            }
        }
    }
    let is_qemu = |pid: i32| named.keys().any(|(owner, _)| *owner == pid);
    let mut threads = Vec::new();
    for process in processes {
        for thread in &process.threads {
            let id = (process.pid, thread.tid);
            let Some(track) = tracks.get(&id) else {
                continue;
            };
            let (rank, role, index) = match named.get(&id) {
                Some(ThreadRole::Vcpu(index)) => (0, "vcpu", Some(*index)),
                Some(ThreadRole::IoThread(index)) => (1, "iothread", Some(*index)),
                None if is_qemu(process.pid) => (2, "emulator", None),
                None if thread.cgroup == "float" => (3, "float", None),
                None if thread.cgroup.starts_with("origin") => (4, "origin", None),
                None => (5, "other", None),
            };
            let thread = Thread {
                role,
                index,
                pid: process.pid,
                tid: thread.tid,
                name: thread.name.clone(),
                cgroup: thread.cgroup.clone(),
                allowed_cpus: thread.allowed_cpus.clone(),
                ran_on: track.ran_on.clone(),
                cpu_share: track.share(),
            };
            threads.push((rank, thread));
        }
    }
    threads.sort_by_key(|(rank, thread)| (*rank, thread.index, thread.pid, thread.tid));
    threads.into_iter().map(|(_, thread)| thread).collect()
}

#[cfg(test)]
mod tests {
    use stelia_kernel::proc::TaskId;
    use stelia_model::record::VcpuThread;

    use super::*;
    use crate::shared::kernel::threads;

    /// A line of `stat`: utime 250, stime 31, the start, and the CPU.
    fn stat(start: u64, cpu: u32) -> String {
        let filler = "0 ".repeat(16);
        format!("42 (CPU 0/KVM) x) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20 0 1 0 {start} {filler}{cpu} 0 0\n")
    }

    fn sample(at: u64, ran: u64, cpu: u32) -> ThreadSample {
        let at = Duration::from_millis(at);
        ThreadSample { at, start: 7, ran, cpu }
    }

    #[test]
    fn a_look_is_read_behind_any_name() {
        let read = ThreadSample::of(&stat(7, 19), Duration::ZERO).unwrap();
        assert_eq!(read, sample(0, 281, 19));
        assert_eq!(ThreadSample::of("42 (x) S 1 2", Duration::ZERO), None);
    }

    #[test]
    fn the_cpus_and_the_share_are_those_of_all_looks_at_the_same_thread() {
        let (first, ran_on) = (sample(0, 100, 2), CpuSet::from_iter([2]));
        let last = first;
        let mut track = Track { first, last, ran_on };
        assert_eq!(track.share(), None);
        track.add(sample(500, 125, 3));
        track.add(sample(1000, 150, 2));
        // Its number was reused.
        track.add(ThreadSample {
            start: 8,
            ..sample(1500, 900, 9)
        });
        assert_eq!((track.ran_on.to_string().as_str(), track.share()), ("2-3", Some(0.5)));
        track.add(sample(1100, 990, 2));
        assert_eq!(track.share(), Some(1.0));
    }

    #[test]
    fn each_thread_has_its_role_and_a_thread_that_ended_is_left_out() {
        let thread = |tid: i32, cgroup: &str| threads::Thread {
            tid,
            name: format!("t{tid}"),
            cgroup: cgroup.to_owned(),
            allowed_cpus: "0".to_owned(),
            cpu_time_us: 0,
        };
        let process = |pid: i32, threads| Process {
            pid,
            container_pid: None,
            name: String::new(),
            threads,
        };
        let pinned = |index: u32, id: i32, start: u64| PinnedThread {
            thread: VcpuThread {
                role: index.into(),
                task: TaskId { id, start },
                cpu: None,
            },
            guest_node: None,
        };
        let processes = [
            process(5, vec![thread(5, "origin")]),
            process(10, vec![thread(10, "float")]),
            process(
                20,
                vec![
                    thread(20, "float"),
                    thread(21, "vcpu"),
                    thread(22, "vcpu"),
                    thread(23, "vcpu"),
                    thread(24, "vcpu"),
                    thread(25, "float"),
                ],
            ),
            process(30, vec![thread(30, "/system.slice")]),
        ];
        let track = Track {
            first: sample(0, 0, 1),
            last: sample(0, 0, 1),
            ran_on: CpuSet::from_iter([1]),
        };
        let ids = [
            (5, 5),
            (10, 10),
            (20, 20),
            (20, 21),
            (20, 22),
            (20, 23),
            (20, 24),
            (30, 30),
        ];
        let tracks: Tracks = ids.into_iter().map(|id| (id, track.clone())).collect();
        // 24 started at another time than the thread that was named.
        let named = [
            pinned(1, 21, 7),
            pinned(0, 22, 7),
            pinned(1 << 31, 23, 7),
            pinned(2, 24, 6),
        ];
        let roles = watched(&processes, &named, &tracks);
        let roles: Vec<_> = roles
            .iter()
            .map(|thread| (thread.role, thread.index, thread.tid))
            .collect();
        assert_eq!(
            roles,
            [
                ("vcpu", Some(0), 22),
                ("vcpu", Some(1), 21),
                ("iothread", Some(0), 23),
                ("emulator", None, 20),
                ("emulator", None, 24),
                ("float", None, 10),
                ("origin", None, 5),
                ("other", None, 30),
            ]
        );
    }
}
