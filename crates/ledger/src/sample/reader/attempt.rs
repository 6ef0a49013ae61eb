//! One attempt to read a consistent sample: the bound threads and the seats' threads, the CPUs, and the same threads again.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kernel::clock::{now_us, up_us};
use stelia_kernel::counters::schedstat;
use stelia_kernel::counters::task::{self, Task};
use stelia_kernel::proc::is_gone;

use super::super::files::Files;
use super::super::kernel_threads::KernelThreads;
use super::super::{Bound, TaskId};
use super::SampleError;
use super::candidate::{Attempt, BoundAttempt, Candidate};
use super::container::{self, ContainerAttempt, NotRead, TasksBefore};

pub(super) const SCHEDSTAT: &str = "/proc/schedstat";

/// Name and counters of the bound threads of each CPU.
type BoundTasks = BTreeMap<u32, BTreeMap<TaskId, (String, Task)>>;

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
    let started_us = up_us();
    let before = own_before(files, candidates, buffer)?;
    let clocks = (now_us(), up_us());
    files.read(SCHEDSTAT, buffer).map_err(SampleError::read(SCHEDSTAT))?;
    let cpus = schedstat::parse(buffer, &wanted).map_err(SampleError::form(SCHEDSTAT))?;
    let mut read = Vec::with_capacity(candidates.len());
    for (candidate, before) in candidates.iter().zip(before) {
        read.push(own_after(files, candidate, (before, started_us), buffer)?);
    }
    let bound_after = bound_tasks(files, threads, &needed, buffer)?;
    for (candidate, read) in candidates.iter_mut().zip(read) {
        if !candidate.is_open() {
            continue;
        }
        let counted = candidate.seat.cpus.iter().map(|cpu| cpus.get(&cpu));
        let switches = counted.map(|cpu| cpu.map(|cpu| cpu.switches)).sum::<Option<u64>>();
        let (switches, own, container) = match (switches, read) {
            (Some(switches), Ok((own, container))) => (switches, own, container),
            (None, _) => {
                candidate.set_not_read(NotRead::Gone);
                continue;
            }
            (_, Err(not_read)) => {
                candidate.set_not_read(not_read);
                continue;
            }
        };
        let bound = candidate
            .needs_bound()
            .then(|| bound_attempt(&candidate.seat.cpus, &bound_before, &bound_after));
        candidate.add(Attempt {
            switches,
            own,
            bound,
            container,
        });
    }
    Ok(clocks)
}

fn cpus_of<'a>(candidates: impl Iterator<Item = &'a Candidate<'a>>) -> CpuSet {
    candidates.fold(CpuSet::new(), |all, candidate| all.union(&candidate.seat.cpus))
}

/// A seat's own tasks before its CPUs are read.
enum OwnBefore {
    Threads(Task),
    Container(TasksBefore),
}

/// Those of each seat; [`NotRead::Gone`] for seats that are not open, and if a thread ended.
fn own_before(
    files: &dyn Files,
    candidates: &[Candidate<'_>],
    buffer: &mut Vec<u8>,
) -> Result<Vec<Result<OwnBefore, NotRead>>, SampleError> {
    let mut all = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        all.push(match &candidate.seat.cgroup {
            _ if !candidate.is_open() => Err(NotRead::Gone),
            Some(cgroup) => container::read_before(files, cgroup, buffer)?.map(OwnBefore::Container),
            None => own_threads(files, &candidate.seat.threads, buffer)?
                .map(OwnBefore::Threads)
                .ok_or(NotRead::Gone),
        });
    }
    Ok(all)
}

/// A seat's own tasks before and after its CPUs were read; those of a container also in detail.
type OwnTasks = ((Task, Task), Option<ContainerAttempt>);

/// Reads a seat's own tasks again.
fn own_after(
    files: &dyn Files,
    candidate: &Candidate<'_>,
    (before, started_us): (Result<OwnBefore, NotRead>, u64),
    buffer: &mut Vec<u8>,
) -> Result<Result<OwnTasks, NotRead>, SampleError> {
    Ok(match (before, &candidate.seat.cgroup) {
        (Err(not_read), _) => Err(not_read),
        (Ok(OwnBefore::Container(before)), Some(cgroup)) => {
            let known = candidate.known_container();
            let read = container::read_after(files, (cgroup, started_us), &before, known, buffer)?;
            read.map(|read| (read.own, Some(read)))
        }
        (Ok(OwnBefore::Threads(before)), _) => {
            let after = own_threads(files, &candidate.seat.threads, buffer)?;
            after.map(|after| ((before, after), None)).ok_or(NotRead::Gone)
        }
        (Ok(OwnBefore::Container(_)), None) => Err(NotRead::Gone),
    })
}

/// The summed counters of these threads; `None` if one ended.
fn own_threads(files: &dyn Files, threads: &[TaskId], buffer: &mut Vec<u8>) -> Result<Option<Task>, SampleError> {
    let mut sum = Task::default();
    for thread in threads {
        let Some(task) = task_counters(files, thread.id, buffer)? else {
            return Ok(None);
        };
        sum = container::combined(sum, task, u64::saturating_add);
    }
    Ok(Some(sum))
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
