//! What a contained instance needs of others: the top-level units of systemd stay off its CPUs, by their own lists.

use super::{Course, Step, course};
use crate::cpuset::CpuSet;
use crate::plan::Snapshot;
use crate::plan::allocator::CpuSource;
use crate::plan::partition::Partition;

/// The units of the host's own processes.
pub const OUTSIDE: [&str; 3] = ["system.slice", "user.slice", "init.scope"];

/// Whether a unit is restricted: the host's own; and where steliad chooses the CPUs, so that nobody but it keeps pods off
/// them, the Burstable pods' slice and each Guaranteed pod's (BestEffort pods may run on LSR's CPUs).
pub fn is_restricted(unit: &str, source: CpuSource) -> bool {
    let of_pods = unit == "kubepods-burstable.slice" || unit.starts_with("kubepods-pod");
    OUTSIDE.contains(&unit) || (of_pods && source == CpuSource::Steliad)
}

/// The CPUs of instances that no partition protects.
fn contained(snapshot: &Snapshot) -> CpuSet {
    snapshot
        .live()
        .filter(|instance| instance.record.partition == Partition::Member)
        .filter(|instance| course(snapshot, instance) == Course::Hold)
        .flat_map(|instance| instance.record.exclusive.iter())
        .collect()
}

/// Lists to make smaller, before the threads of an instance arrive, or larger again while others stay.
pub(super) fn restrict(snapshot: &Snapshot) -> Vec<Step> {
    let taken = contained(snapshot);
    if taken.is_empty() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    for (unit, now) in &snapshot.outside {
        let before = now.saved.as_ref().unwrap_or(&now.cpus);
        let all = if before.is_empty() {
            &snapshot.topology.online()
        } else {
            before
        };
        let cpus = all.difference(&taken);
        // A list without a CPU would mean every CPU.
        if cpus.is_empty() || cpus == now.cpus {
            continue;
        }
        let save = now.saved.is_none().then(|| now.cpus.clone());
        let unit = unit.clone();
        steps.push(Step::Restrict { unit, cpus, save });
    }
    steps
}

/// With the last contained instance gone, every list is what it was.
pub(super) fn restore(snapshot: &Snapshot) -> Vec<Step> {
    if !contained(snapshot).is_empty() {
        return Vec::new();
    }
    let saved = snapshot.outside.iter();
    saved
        .filter_map(|(unit, now)| Some(Step::Restore(unit.clone(), now.saved.clone()?)))
        .collect()
}
