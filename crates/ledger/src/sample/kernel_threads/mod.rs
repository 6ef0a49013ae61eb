//! Finds the kernel's own threads that are bound to one CPU: `ksoftirqd/2`, `migration/2`, `kworker/2:1`.
//!
//! They are in the list of the root cgroup, which nobody can move them out of. Only new entries of the list are read. A thread is
//! bound if nobody can set its CPUs (PF_NO_SETAFFINITY). A thread whose mask merely has one CPU may have run on another one a
//! moment ago, and those runs would be subtracted from the runs on this CPU. So it counts as another task, as do `irq/*`, which
//! follow their interrupt from CPU to CPU.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_kernel::proc::stat::{self, Stat};
use stelia_kernel::proc::{allowed, is_gone};

use super::TaskId;
use super::files::Files;
use super::reader::SampleError;

/// The list that has the kernel threads on every host with cgroup v2.
pub(super) const ROOT_CGROUP_PROCS: &str = "/sys/fs/cgroup/cgroup.procs";

/// The name of kthreadd, and of threads that it has just created.
const KTHREADD: &str = "kthreadd";

/// The kernel threads that this process has read.
#[derive(Debug, Default)]
pub(super) struct KernelThreads {
    bound: BTreeMap<i32, BoundThread>,
    /// Threads that were read once and were not bound: a new thread may not have its name and its CPU yet.
    new: BTreeSet<i32>,
    /// Threads that were read twice and were not bound, and threads of programs.
    ignored: BTreeSet<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundThread {
    pub(super) thread: TaskId,
    pub(super) name: String,
    pub(super) cpu: u32,
}

impl KernelThreads {
    /// Reads threads that are new in the list, and drops those that are not in it any more.
    ///
    /// # Cost
    /// Reads the list, and one or two files of each new thread.
    ///
    /// If a thread ended and a bound thread got its number between two calls, that thread is not recognised as bound. Its runs then
    /// count as those of another task.
    pub(super) fn refresh(&mut self, files: &dyn Files, buffer: &mut Vec<u8>) -> Result<(), SampleError> {
        files
            .read(ROOT_CGROUP_PROCS, buffer)
            .map_err(SampleError::read(ROOT_CGROUP_PROCS))?;
        // 0 stands for a process outside of this PID namespace.
        let numbers = buffer
            .split(u8::is_ascii_whitespace)
            .filter_map(|word| str::from_utf8(word).ok()?.parse().ok());
        let ids: BTreeSet<i32> = numbers.filter(|id| *id > 0).collect();
        self.bound.retain(|id, _| ids.contains(id));
        self.new.retain(|id| ids.contains(id));
        self.ignored.retain(|id| ids.contains(id));
        for id in ids {
            if self.bound.contains_key(&id) || self.ignored.contains(&id) {
                continue;
            }
            let Some(stat) = read_stat(files, id, buffer)? else {
                continue;
            };
            let is_new = stat.is_kernel_thread() && (self.new.insert(id) || stat.name == KTHREADD && id != 2);
            match bound_cpu(files, id, &stat, buffer)? {
                Some(cpu) => {
                    let thread = TaskId { id, start: stat.start };
                    let name = without_work(&stat.name).to_owned();
                    self.bound.insert(id, BoundThread { thread, name, cpu });
                    self.new.remove(&id);
                }
                None if is_new => {}
                None => {
                    self.new.remove(&id);
                    self.ignored.insert(id);
                }
            }
        }
        Ok(())
    }

    /// The threads that are bound to one of these CPUs.
    pub(super) fn bound_to<'a>(&'a self, cpus: &'a CpuSet) -> impl Iterator<Item = &'a BoundThread> {
        self.bound.values().filter(|bound| cpus.contains(bound.cpu))
    }

    /// Removes a thread that has ended.
    pub(super) fn remove(&mut self, id: i32) {
        self.bound.remove(&id);
    }
}

/// Name, flags and start of a thread; `None` if it has ended.
pub(super) fn read_stat(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Option<Stat>, SampleError> {
    // The file below task/, because that of the process has sums over all its threads (do_task_stat).
    let path = format!("/proc/{id}/task/{id}/stat");
    match files.read_short(&path, buffer) {
        Ok(()) => Ok(stat::parse(&String::from_utf8_lossy(buffer))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(SampleError::read(&path)(error)),
    }
}

/// The CPU that a thread is bound to; `None` if it is not bound.
fn bound_cpu(files: &dyn Files, id: i32, stat: &Stat, buffer: &mut Vec<u8>) -> Result<Option<u32>, SampleError> {
    if !stat.is_kernel_thread() {
        return Ok(None);
    }
    if let Some(rest) = stat.name.strip_prefix("kworker/") {
        // It runs elsewhere only while its CPU is offline. kworker/u… are unbound, kworker/R-… are rescuers.
        return Ok(rest.split(':').next().and_then(|cpu| cpu.parse().ok()));
    }
    if !stat.refuses() || stat.name.starts_with("irq/") {
        return Ok(None);
    }
    let path = format!("/proc/{id}/status");
    match files.read_short(&path, buffer) {
        Ok(()) => {}
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(SampleError::read(&path)(error)),
    }
    let cpus = allowed(&String::from_utf8_lossy(buffer));
    Ok(cpus.filter(|cpus| cpus.len() == 1).and_then(|cpus| cpus.iter().next()))
}

/// The name without what a worker works on: `kworker/2:1` of `kworker/2:1-events`.
fn without_work(name: &str) -> &str {
    match name.strip_prefix("kworker/") {
        Some(_) => name.split(['-', '+']).next().unwrap_or(name),
        None => name,
    }
}
