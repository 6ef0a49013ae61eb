//! One attempt to read a consistent sample: the bound threads and the seats' threads, the CPUs, and the same threads again.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};
use stelia_cpus::CpuSet;
use stelia_node::counters::schedstat;
use stelia_node::counters::task::{self, Task};

use super::super::files::{Files, is_gone};
use super::super::kernel_threads::KernelThreads;
use super::super::{Bound, Thread};
use super::SampleError;
use super::candidate::{Attempt, BoundAttempt, Candidate};

pub(super) const SCHEDSTAT: &str = "/proc/schedstat";

/// Name and counters of the bound threads of each CPU.
type BoundTasks = BTreeMap<u32, BTreeMap<Thread, (String, Task)>>;

/// Reads the counters of the open candidates. Returns CLOCK_REALTIME and CLOCK_BOOTTIME, in microseconds, at the time when the CPUs were read.
pub(super) fn take(
    files: &dyn Files,
    threads: &mut KernelThreads,
    candidates: &mut [Candidate<'_>],
    buffer: &mut Vec<u8>,
) -> Result<(u64, u64), SampleError> {
    let wanted = cpus_of(candidates.iter().filter(|candidate| candidate.is_open()));
    let needed = cpus_of(candidates.iter().filter(|candidate| candidate.needs_bound()));
    // The seats' threads are read closest to the CPUs, because they are switched in more often than the kernel's.
    let bound_before = bound_tasks(files, threads, &needed, buffer)?;
    let before = own_tasks(files, candidates, buffer)?;
    let clocks = (micros(ClockId::Realtime), micros(ClockId::Boottime));
    files.read(SCHEDSTAT, buffer).map_err(SampleError::read(SCHEDSTAT))?;
    let cpus = schedstat::parse(buffer, &wanted).map_err(SampleError::form(SCHEDSTAT))?;
    let after = own_tasks(files, candidates, buffer)?;
    let bound_after = bound_tasks(files, threads, &needed, buffer)?;
    for ((candidate, before), after) in candidates.iter_mut().zip(before).zip(after) {
        if !candidate.is_open() {
            continue;
        }
        let counted = candidate.seat.cpus.iter().map(|cpu| cpus.get(&cpu));
        let switches = counted.map(|cpu| cpu.map(|cpu| cpu.switches)).sum::<Option<u64>>();
        let (Some(switches), Some(before), Some(after)) = (switches, before, after) else {
            candidate.set_gone();
            continue;
        };
        let bound = candidate
            .needs_bound()
            .then(|| bound_attempt(&candidate.seat.cpus, &bound_before, &bound_after));
        candidate.add(Attempt {
            switches,
            own: (before, after),
            bound,
        });
    }
    Ok(clocks)
}

fn cpus_of<'a>(candidates: impl Iterator<Item = &'a Candidate<'a>>) -> CpuSet {
    candidates.fold(CpuSet::new(), |all, candidate| all.union(&candidate.seat.cpus))
}

/// The summed counters of each open seat's threads; `None` for other seats, and if a thread ended.
fn own_tasks(
    files: &dyn Files,
    candidates: &[Candidate<'_>],
    buffer: &mut Vec<u8>,
) -> Result<Vec<Option<Task>>, SampleError> {
    let open = |candidate: &Candidate<'_>| candidate.is_open().then(|| candidate.seat.threads.clone());
    let mut all = Vec::with_capacity(candidates.len());
    for threads in candidates.iter().map(open) {
        let Some(threads) = threads else {
            all.push(None);
            continue;
        };
        let mut sum = Some(Task::default());
        for thread in threads {
            sum = match (sum, task_counters(files, thread.id, buffer)?) {
                (Some(sum), Some(task)) => Some(Task {
                    run_ns: sum.run_ns.saturating_add(task.run_ns),
                    delay_ns: sum.delay_ns.saturating_add(task.delay_ns),
                    switches: sum.switches.saturating_add(task.switches),
                }),
                _ => None,
            };
        }
        all.push(sum);
    }
    Ok(all)
}

/// The threads that are bound to these CPUs, after the list was read again.
fn bound_tasks(
    files: &dyn Files,
    threads: &mut KernelThreads,
    cpus: &CpuSet,
    buffer: &mut Vec<u8>,
) -> Result<BoundTasks, SampleError> {
    let mut tasks = BoundTasks::new();
    if cpus.is_empty() {
        return Ok(tasks);
    }
    threads.refresh(files, buffer)?;
    for bound in threads.bound_to(cpus) {
        if let Some(task) = task_counters(files, bound.thread.id, buffer)? {
            let here = tasks.entry(bound.cpu).or_default();
            here.insert(bound.thread, (bound.name.clone(), task));
        }
    }
    Ok(tasks)
}

/// The bound threads of one seat's CPUs.
fn bound_attempt(cpus: &CpuSet, before: &BoundTasks, after: &BoundTasks) -> BoundAttempt {
    let none = BTreeMap::new();
    let mut attempt = BoundAttempt::default();
    for cpu in cpus.iter() {
        let before = before.get(&cpu).unwrap_or(&none);
        let after = after.get(&cpu).unwrap_or(&none);
        for (thread, (name, last)) in after {
            // A thread that was created meanwhile may have run before and after the CPUs were read.
            let first = before.get(thread).map_or(0, |(_, task)| task.switches);
            let bound = Bound {
                name: name.clone(),
                switches: (first, last.switches),
                run_ns: last.run_ns,
            };
            attempt.threads.insert(*thread, bound);
        }
        attempt.ended |= before.keys().any(|thread| !after.contains_key(thread));
    }
    attempt
}

/// The counters of one thread; `None` if it ended.
fn task_counters(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Option<Task>, SampleError> {
    let path = format!("/proc/{id}/schedstat");
    match files.read_short(&path, buffer) {
        Ok(()) => task::parse(buffer).map(Some).map_err(SampleError::form(&path)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(SampleError::read(&path)(error)),
    }
}

fn micros(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // A clock before 1970 is 0.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let rest = u64::try_from(time.tv_nsec / 1000).unwrap_or_default();
    seconds.saturating_mul(1_000_000).saturating_add(rest)
}
