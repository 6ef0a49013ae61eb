//! The kernel's own threads that are bound to one CPU: `ksoftirqd/2`, `migration/2`, `kworker/2:1`.
//!
//! They are processes of the root cgroup and nobody can move them to another. Only new entries of its list are read. Bound is
//! what nobody can let run on another CPU (PF_NO_SETAFFINITY): a thread that has one CPU by its mask alone may have had another
//! one a moment ago, and what it did there would be subtracted from what ran here. So it counts as another task, as do `irq/*`,
//! which follow their interrupt from CPU to CPU.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_quiet::threads::stat::{self, Stat};

use super::Thread;
use super::files::{Files, is_gone};
use super::reader::SampleError;

/// Kernel threads are here on every host with cgroup v2.
pub(super) const ROOT_CGROUP_PROCS: &str = "/sys/fs/cgroup/cgroup.procs";

/// kthreadd; a thread that it has just created has the same name.
const KTHREADD: &str = "kthreadd";

/// The kernel threads that were found since this process started.
#[derive(Debug, Default)]
pub(super) struct KernelThreads {
    /// Those that are bound.
    bound: BTreeMap<i32, BoundThread>,
    /// Read once, and not bound then: a new thread may not have its name and its CPU yet.
    young: BTreeSet<i32>,
    /// Read twice and not bound, or no kernel threads.
    passed: BTreeSet<i32>,
}

/// A bound thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundThread {
    pub(super) thread: Thread,
    pub(super) name: String,
    pub(super) cpu: u32,
}

impl KernelThreads {
    /// Reads threads that are new in the list, and drops those that are not in it any more.
    ///
    /// # Cost
    /// The list, and one or two files of each new one.
    ///
    /// A number that ended and was given to a bound thread between two calls is taken for what it was before. Nothing is missed: it
    /// counts as another task.
    pub(super) fn refresh(&mut self, files: &dyn Files, buffer: &mut Vec<u8>) -> Result<(), SampleError> {
        files
            .text(ROOT_CGROUP_PROCS, buffer)
            .map_err(SampleError::read(ROOT_CGROUP_PROCS))?;
        // 0 is a process that this PID namespace does not see.
        let numbers = buffer
            .split(u8::is_ascii_whitespace)
            .filter_map(|word| str::from_utf8(word).ok()?.parse().ok());
        let ids: BTreeSet<i32> = numbers.filter(|id| *id > 0).collect();
        self.bound.retain(|id, _| ids.contains(id));
        self.young.retain(|id| ids.contains(id));
        self.passed.retain(|id| ids.contains(id));
        for id in ids {
            if self.bound.contains_key(&id) || self.passed.contains(&id) {
                continue;
            }
            let Some(stat) = identity(files, id, buffer)? else {
                continue;
            };
            let is_young = stat.is_kernel_thread() && (self.young.insert(id) || stat.name == KTHREADD && id != 2);
            match cpu(files, id, &stat, buffer)? {
                Some(cpu) => {
                    let thread = Thread { id, start: stat.start };
                    let name = plain(&stat.name).to_owned();
                    self.bound.insert(id, BoundThread { thread, name, cpu });
                    self.young.remove(&id);
                }
                None if is_young => {}
                None => {
                    self.young.remove(&id);
                    self.passed.insert(id);
                }
            }
        }
        Ok(())
    }

    /// Those that are bound to one of these CPUs.
    pub(super) fn of<'a>(&'a self, cpus: &'a CpuSet) -> impl Iterator<Item = &'a BoundThread> {
        self.bound.values().filter(|known| cpus.contains(known.cpu))
    }

    /// What had this number ended.
    pub(super) fn forget(&mut self, id: i32) {
        self.bound.remove(&id);
    }
}

/// Name, flags and start of a thread; `None` where it ended.
pub(super) fn identity(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Option<Stat>, SampleError> {
    // Below task/ because the other one is of the whole process: the kernel then sums up all its threads (do_task_stat).
    let path = format!("/proc/{id}/task/{id}/stat");
    match files.piece(&path, buffer) {
        Ok(()) => Ok(stat::parse(&String::from_utf8_lossy(buffer))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(SampleError::read(&path)(error)),
    }
}

/// The one CPU that a thread is bound to.
fn cpu(files: &dyn Files, id: i32, stat: &Stat, buffer: &mut Vec<u8>) -> Result<Option<u32>, SampleError> {
    if !stat.is_kernel_thread() {
        return Ok(None);
    }
    if let Some(place) = stat.name.strip_prefix("kworker/") {
        // Another CPU while its own is offline, and back when it is online. Unbound are kworker/u…, rescuers kworker/R-….
        return Ok(place.split(':').next().and_then(|cpu| cpu.parse().ok()));
    }
    if !stat.refuses() || stat.name.starts_with("irq/") {
        return Ok(None);
    }
    let path = format!("/proc/{id}/status");
    match files.piece(&path, buffer) {
        Ok(()) => {}
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(SampleError::read(&path)(error)),
    }
    let status = String::from_utf8_lossy(buffer);
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus: Option<CpuSet> = list.and_then(|list| list.trim().parse().ok());
    Ok(cpus.filter(|cpus| cpus.len() == 1).and_then(|cpus| cpus.iter().next()))
}

/// Without what a worker is busy with: `kworker/2:1` of `kworker/2:1-events`.
fn plain(name: &str) -> &str {
    match name.strip_prefix("kworker/") {
        Some(_) => name.split(['-', '+']).next().unwrap_or(name),
        None => name,
    }
}
