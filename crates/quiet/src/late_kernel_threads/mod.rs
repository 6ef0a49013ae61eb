//! Moves kernel threads that were created after a VM's partition off its CPUs.
//!
//! The kernel moves the threads that exist when a partition is made. Before 7.0 it allows threads that are created later, such as
//! `napi/*` of a device that is plugged in, the CPUs of the boot; 7.0 and later keep them off partitions. The kernel's version is
//! not read: the threads' masks are, and if none has a VM's CPUs there is nothing to do.
//!
//! Left alone and not reported: threads of one CPU (`ksoftirqd/2`, `cpuhp/2`), which work for that CPU; `irq/*`, which follow
//! their interrupt; `kworker/*`, which follow the workqueues' mask. Reported and left alone: threads that the kernel lets
//! nobody move, such as workqueues' rescuers (`kworker/R-*`).
//!
//! Moving them takes CAP_SYS_NICE, because they have every capability (security/commoncap.c, cap_safe_nice). The daemon has it
//! and moves them; steliad-quiet, which does not, only restores them when the package is removed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_api::quiet::{Report, Thread};
use stelia_cpus::CpuSet;
use stelia_kernel::proc::is_gone;
use stelia_kernel::proc::stat::{self, Stat};

use crate::failure::{QuietFailure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::store_json;

/// The record's name in the store.
const RECORD: &str = "threads.json";

/// The children of kthreadd, which is process 2 on every kernel and makes every other kernel thread.
const CHILDREN: &str = "/proc/2/task/2/children";

/// The kernel threads as this process has read them.
#[derive(Debug, Default)]
pub struct ThreadHistory {
    /// Threads that are never moved: their files are not read again while kthreadd has them.
    ignored: BTreeSet<i32>,
    /// Threads that may have to be moved, as they were first read.
    candidates: BTreeMap<i32, Stat>,
    /// The number of threads moved since this process started.
    moved: u64,
}

/// A thread that was moved. Its start time is kept because another thread may get its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// Ticks since boot, field 22 of its `stat`.
    start: u64,
    base: CpuSet,
    /// The mask as the kernel showed it after it was set: the thread's cpuset may remove CPUs.
    ours: CpuSet,
}

/// By thread ID.
type Record = BTreeMap<i32, Change>;

/// A kernel thread as it is now.
struct KernelThread {
    id: i32,
    stat: Stat,
    mask: CpuSet,
}

/// What to do with a thread.
enum Decision {
    /// Nothing, and the record needs no entry of it.
    Forget,
    /// Nothing; its entry in the record, if there is one, stays.
    Keep,
    /// Give it these CPUs; the record then has this base.
    Set { cpus: CpuSet, base: CpuSet },
    /// Report it: the kernel does not let it be moved.
    Remains,
}

/// Keep kernel threads off the CPUs of the VMs, and restore the masks of moved threads when no VM has those CPUs any more.
///
/// # Cost
/// A read for the list, one for each thread that was not there the last time, and a call for each that could be moved, of which
/// even a large node has few. Without VMs and moved threads nothing is read.
///
/// A thread that is never moved is identified by its number alone while kthreadd has a child of that number, so a new thread
/// that takes over the number between two orders is missed. It then stays where the kernel put it.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut ThreadHistory, report: &mut Report) {
    if let Err(failure) = move_threads(system, order, memory, report) {
        problem(report, "", format!("kernel threads: {failure}"));
    }
    report.threads_moved = memory.moved;
}

fn move_threads(
    system: System<'_>,
    order: &Order,
    memory: &mut ThreadHistory,
    report: &mut Report,
) -> Result<(), QuietFailure> {
    let exclusive: CpuSet = order.vms.values().flat_map(|vm| vm.cpus.iter()).collect();
    let mut record: Record = store_json::load(system.store, RECORD)?;
    if exclusive.is_empty() && record.is_empty() {
        return Ok(());
    }
    let shared = order.shared.difference(&exclusive);
    let mut to_set = Vec::new();
    let mut retained = BTreeSet::new();
    let (all, unread) = scan(system.files, memory, &exclusive, &record)?;
    // A thread that cannot be read now is restored when it can be.
    retained.extend(unread);
    for thread in all {
        let change = record
            .get(&thread.id)
            .filter(|change| change.start == thread.stat.start);
        match decide(&thread, change, &exclusive, &shared) {
            Decision::Keep => {
                retained.insert(thread.id);
            }
            Decision::Forget => {}
            Decision::Remains => report.threads_remaining.push(remaining(
                &thread,
                &exclusive,
                "the kernel lets nobody set its CPUs (PF_NO_SETAFFINITY)",
            )),
            Decision::Set { cpus, base } => {
                retained.insert(thread.id);
                to_set.push((thread, cpus, base));
            }
        }
    }
    let before = record.clone();
    record.retain(|id, _| retained.contains(id));
    for (thread, cpus, base) in &to_set {
        record.insert(thread.id, change(thread, base, cpus));
    }
    // The record is saved first: a moved thread that is not in it would never be restored.
    if record != before {
        store_json::save(system.store, RECORD, &record)?;
    }
    let saved = record.clone();
    for (thread, cpus, base) in to_set {
        match set(system.files, thread.id, &cpus) {
            Ok(now) => {
                if !now.is_disjoint(&exclusive) {
                    let why = "its mask was set and the kernel kept these CPUs in it";
                    report.threads_remaining.push(remaining(&thread, &exclusive, why));
                } else if !thread.mask.is_disjoint(&exclusive) {
                    memory.moved += 1;
                }
                if cpus == base {
                    record.remove(&thread.id);
                } else {
                    record.insert(thread.id, change(&thread, &base, &now));
                }
            }
            Err(failure) => {
                match before.get(&thread.id) {
                    Some(former) => record.insert(thread.id, former.clone()),
                    None => record.remove(&thread.id),
                };
                let text = failure.to_string();
                report.threads_remaining.push(remaining(&thread, &exclusive, &text));
            }
        }
    }
    if record != saved {
        store_json::save(system.store, RECORD, &record)?;
    }
    Ok(())
}

fn change(thread: &KernelThread, base: &CpuSet, ours: &CpuSet) -> Change {
    Change {
        start: thread.stat.start,
        base: base.clone(),
        ours: ours.clone(),
    }
}

fn remaining(thread: &KernelThread, exclusive: &CpuSet, text: &str) -> Thread {
    Thread {
        id: thread.id,
        name: thread.stat.name.clone(),
        cpus: thread.mask.intersection(exclusive),
        text: text.to_owned(),
    }
}

/// A mask that we wrote is computed again from its base and the present VMs. Any other mask is changed only if it has CPUs of
/// a VM.
fn decide(thread: &KernelThread, change: Option<&Change>, exclusive: &CpuSet, shared: &CpuSet) -> Decision {
    let base = match change.filter(|change| change.ours == thread.mask) {
        Some(change) => change.base.clone(),
        _ if thread.mask.is_disjoint(exclusive) || thread.mask.len() == 1 => return Decision::Forget,
        _ if thread.stat.refuses() => return Decision::Remains,
        _ => thread.mask.clone(),
    };
    let rest = base.difference(exclusive);
    let cpus = if rest.is_empty() { shared.clone() } else { rest };
    if cpus.is_empty() || cpus == thread.mask {
        return Decision::Keep;
    }
    Decision::Set { cpus, base }
}

/// The threads that may have to be moved or restored: those whose mask has CPUs of VMs, and those in the record. Threads that
/// end meanwhile are left out. The second result are threads of the record that exist and cannot be read.
fn scan(
    files: &dyn Files,
    memory: &mut ThreadHistory,
    exclusive: &CpuSet,
    record: &Record,
) -> Result<(Vec<KernelThread>, BTreeSet<i32>), QuietFailure> {
    let text = files.read(CHILDREN).map_err(QuietFailure::of("read", CHILDREN))?;
    let children: BTreeSet<i32> = text.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    memory.ignored.retain(|id| children.contains(id));
    memory.candidates.retain(|id, _| children.contains(id));
    let (mut threads, mut unread) = (Vec::new(), BTreeSet::new());
    for id in children {
        if memory.ignored.contains(&id) {
            continue;
        }
        let mask = match files.affinity(id) {
            Ok(mask) => mask,
            Err(cause) => {
                unread.extend(Some(id).filter(|id| record.contains_key(id) && !is_gone(&cause)));
                continue;
            }
        };
        // For a thread that was read before, the mask is enough unless it is to be moved or restored: then its stat is read
        // again, because another thread may have its number.
        let is_off_vms = (mask.is_disjoint(exclusive) || mask.len() == 1) && !record.contains_key(&id);
        match memory.candidates.get(&id) {
            Some(_) if is_off_vms => continue,
            Some(stat) if stat.refuses() => {
                let stat = stat.clone();
                threads.push(KernelThread { id, stat, mask });
                continue;
            }
            _ => {}
        }
        let path = format!("/proc/{id}/stat");
        let text = match files.read(&path) {
            Ok(text) => text,
            Err(cause) => {
                unread.extend(Some(id).filter(|id| record.contains_key(id) && !is_gone(&cause)));
                continue;
            }
        };
        let Some(stat) = stat::parse(&text) else { continue };
        // In a PID namespace process 2 may be any program.
        let is_ignored = !stat.is_kernel_thread() || !stat.has_own_mask() || stat.refuses() && mask.len() == 1;
        if is_ignored {
            memory.ignored.insert(id);
            continue;
        }
        memory.candidates.insert(id, stat.clone());
        threads.push(KernelThread { id, stat, mask });
    }
    Ok((threads, unread))
}

/// Set the thread's mask, and return it as the kernel shows it afterwards.
fn set(files: &dyn Files, id: i32, cpus: &CpuSet) -> Result<CpuSet, QuietFailure> {
    let of = QuietFailure::of(&format!("set the CPUs {cpus} of"), &format!("thread {id}"));
    files.set_affinity(id, cpus).map_err(of)?;
    Ok(files.affinity(id).unwrap_or_else(|_| cpus.clone()))
}
