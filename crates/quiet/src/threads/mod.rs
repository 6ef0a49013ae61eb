//! Kernel threads that were created after a VM's partition, and may run on its CPUs.
//!
//! A kernel moves the threads that exist when a partition is made. Kernels before 7.0 allow those that are created later, such as
//! `napi/*` of a device that is plugged in, the CPUs of the boot; 7.0 and later keep them off partitions. The kernel's version is not
//! asked: the threads' masks are read, and where none has a VM's CPUs there is nothing to do.
//!
//! Left alone, and not told: threads of one CPU (`ksoftirqd/2`, `cpuhp/2`), whose CPU is what they are for; `irq/*`, which
//! follow their interrupt; `kworker/*`, which follow the workqueues' mask. Told, and left: those that the kernel lets
//! nobody move, such as workqueues' rescuers (`kworker/R-*`).
//!
//! Whoever moves them needs CAP_SYS_NICE, because they have every capability (security/commoncap.c, cap_safe_nice): so the daemon
//! does it, and steliad-quiet, which has none, only where the package is removed.

pub mod stat;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};
use stelia_api::quiet::{Report, Thread};
use stelia_cpus::CpuSet;

use crate::failure::{Failure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::record;
use stat::Stat;

/// The record in the store.
const RECORD: &str = "threads.json";

/// kthreadd is process 2 on every kernel, and makes every other kernel thread.
const CHILDREN: &str = "/proc/2/task/2/children";

/// What is known of kernel threads since this process started.
#[derive(Debug, Default)]
pub struct Memory {
    /// Those that are never moved, so their files are not read again while kthreadd has them.
    passed: BTreeSet<i32>,
    /// Those that may have to be moved, as they were when they were seen first.
    candidates: BTreeMap<i32, Stat>,
    /// How many were moved.
    moved: u64,
}

/// A thread that was moved. Its number alone may be another's by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// Ticks since boot, field 22 of its `stat`.
    start: u64,
    base: String,
    /// As the kernel showed it after ours was set: its cpuset may have taken CPUs from it.
    ours: String,
}

/// By thread.
type Record = BTreeMap<i32, Change>;

/// A kernel thread as it is now.
struct KernelThread {
    id: i32,
    stat: Stat,
    mask: CpuSet,
}

/// What is to be done with a thread.
enum Decision {
    /// Nothing; whatever the record has of it is past.
    Forget,
    Keep,
    /// Give it these CPUs; the record then has this base.
    Set {
        cpus: CpuSet,
        base: CpuSet,
    },
    /// The kernel does not let it be moved.
    Remains,
}

/// Keep kernel threads off the CPUs of the VMs, and give those that were moved what they had where no VM has those CPUs
/// any more.
///
/// # Cost
/// A read for the list, one for each thread that was not there the last time, and a call for each that could be moved, of which
/// even a large node has few. Without VMs and threads that were moved nothing is read.
///
/// A thread that is never moved is known by its number alone while kthreadd has a child of that number, so one that takes
/// over the number between two orders is not looked at. Nobody is hurt: it is late, as it would be without this.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut Memory, report: &mut Report) {
    if let Err(failure) = carry(system, order, memory, report) {
        problem(report, "", format!("kernel threads: {failure}"));
    }
    report.threads_moved = memory.moved;
}

fn carry(system: System<'_>, order: &Order, memory: &mut Memory, report: &mut Report) -> Result<(), Failure> {
    let mut exclusive = CpuSet::new();
    order.vms.values().for_each(|vm| exclusive.union_with(&vm.cpus));
    let mut record: Record = record::load(system.store, RECORD)?;
    if exclusive.is_empty() && record.is_empty() {
        return Ok(());
    }
    let shared = order.shared.difference(&exclusive);
    let mut wanted = Vec::new();
    let mut alive = BTreeSet::new();
    let (all, unread) = scan(system.files, memory, &exclusive, &record)?;
    // What cannot be read now is undone when it can be.
    alive.extend(unread);
    for found in all {
        let change = record.get(&found.id).filter(|change| change.start == found.stat.start);
        match decide(&found, change, &exclusive, &shared) {
            Decision::Keep => {
                alive.insert(found.id);
            }
            Decision::Forget => {}
            Decision::Remains => report.threads_remaining.push(remaining(
                &found,
                &exclusive,
                "the kernel lets nobody set its CPUs (PF_NO_SETAFFINITY)",
            )),
            Decision::Set { cpus, base } => {
                alive.insert(found.id);
                wanted.push((found, cpus, base));
            }
        }
    }
    let before = record.clone();
    record.retain(|id, _| alive.contains(id));
    for (found, cpus, base) in &wanted {
        record.insert(found.id, change(found, base, cpus));
    }
    // First the record: a thread that was moved and is not in it would stay so after its VM has gone.
    if record != before {
        record::save(system.store, RECORD, &record)?;
    }
    let saved = record.clone();
    for (found, cpus, base) in wanted {
        match set(system.files, found.id, &cpus) {
            Ok(now) => {
                if !now.is_disjoint(&exclusive) {
                    let why = "its mask was set and the kernel kept these CPUs in it";
                    report.threads_remaining.push(remaining(&found, &exclusive, why));
                } else if !found.mask.is_disjoint(&exclusive) {
                    memory.moved += 1;
                }
                match cpus == base {
                    true => record.remove(&found.id),
                    false => record.insert(found.id, change(&found, &base, &now)),
                };
            }
            Err(failure) => {
                match before.get(&found.id) {
                    Some(former) => record.insert(found.id, former.clone()),
                    None => record.remove(&found.id),
                };
                let text = failure.to_string();
                report.threads_remaining.push(remaining(&found, &exclusive, &text));
            }
        }
    }
    if record != saved {
        record::save(system.store, RECORD, &record)?;
    }
    Ok(())
}

fn change(found: &KernelThread, base: &CpuSet, ours: &CpuSet) -> Change {
    Change {
        start: found.stat.start,
        base: base.to_string(),
        ours: ours.to_string(),
    }
}

fn remaining(found: &KernelThread, exclusive: &CpuSet, text: &str) -> Thread {
    Thread {
        id: found.id,
        name: found.stat.name.clone(),
        cpus: found.mask.intersection(exclusive),
        text: text.to_owned(),
    }
}

/// A mask that we wrote follows from its base and the VMs that there are now; any other mask is its owner's, and is touched
/// only if it has CPUs of a VM.
fn decide(found: &KernelThread, change: Option<&Change>, exclusive: &CpuSet, shared: &CpuSet) -> Decision {
    let ours = change.filter(|change| change.ours == found.mask.to_string());
    let base = match ours.map(|change| change.base.parse::<CpuSet>()) {
        Some(Ok(base)) => base,
        _ if found.mask.is_disjoint(exclusive) || found.mask.len() == 1 => return Decision::Forget,
        _ if found.stat.refuses() => return Decision::Remains,
        _ => found.mask.clone(),
    };
    let rest = base.difference(exclusive);
    let cpus = if rest.is_empty() { shared.clone() } else { rest };
    if cpus.is_empty() || cpus == found.mask {
        return Decision::Keep;
    }
    Decision::Set { cpus, base }
}

/// The threads that may have to be moved: whose mask has CPUs of VMs, or that are in the record. One that ends meanwhile is left out. And those in
/// the record that are there and cannot be read.
fn scan(
    files: &dyn Files,
    memory: &mut Memory,
    exclusive: &CpuSet,
    record: &Record,
) -> Result<(Vec<KernelThread>, BTreeSet<i32>), Failure> {
    let text = files.read(CHILDREN).map_err(Failure::of("read", CHILDREN))?;
    let children: BTreeSet<i32> = text.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    memory.passed.retain(|id| children.contains(id));
    memory.candidates.retain(|id, _| children.contains(id));
    let (mut found, mut unread) = (Vec::new(), BTreeSet::new());
    for id in children {
        if memory.passed.contains(&id) {
            continue;
        }
        let mask = match files.affinity(id) {
            Ok(mask) => mask,
            Err(cause) => {
                unread.extend(Some(id).filter(|id| record.contains_key(id) && !has_ended(&cause)));
                continue;
            }
        };
        // What has been looked at once is asked for its mask alone, unless it is to be moved: then it must still be what it was.
        let elsewhere = (mask.is_disjoint(exclusive) || mask.len() == 1) && !record.contains_key(&id);
        match memory.candidates.get(&id) {
            Some(_) if elsewhere => continue,
            Some(stat) if stat.refuses() => {
                let stat = stat.clone();
                found.push(KernelThread { id, stat, mask });
                continue;
            }
            _ => {}
        }
        let path = format!("/proc/{id}/stat");
        let text = match files.read(&path) {
            Ok(text) => text,
            Err(cause) => {
                unread.extend(Some(id).filter(|id| record.contains_key(id) && !has_ended(&cause)));
                continue;
            }
        };
        let Some(stat) = stat::parse(&text) else { continue };
        // In a PID namespace 2 is any process.
        let never = !stat.is_kernel_thread() || !stat.may_be_late() || stat.refuses() && mask.len() == 1;
        if never {
            memory.passed.insert(id);
            continue;
        }
        memory.candidates.insert(id, stat.clone());
        found.push(KernelThread { id, stat, mask });
    }
    Ok((found, unread))
}

/// ESRCH, and ENOENT of its files.
fn has_ended(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// What the thread's mask is afterwards.
fn set(files: &dyn Files, id: i32, cpus: &CpuSet) -> Result<CpuSet, Failure> {
    let of = Failure::of(&format!("set the CPUs {cpus} of"), &format!("thread {id}"));
    files.set_affinity(id, cpus).map_err(of)?;
    Ok(files.affinity(id).unwrap_or_else(|_| cpus.clone()))
}
