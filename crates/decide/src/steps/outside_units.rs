//! A pinned instance has no partition: systemd's top-level units are kept off its CPUs by their own CPU lists.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
pub use stelia_kernel::cgroup::OUTSIDE;
use stelia_koordinator::allocator::CpuSource;

use super::Step;
use crate::totals::Total;
use crate::{Derived, Snapshot};

/// Whether a unit is restricted: the host's own; and where steliad chooses the CPUs, and kubelet does not keep pods off
/// them, the Burstable pods' slice and each Guaranteed pod's (BestEffort pods may run on LSR's CPUs).
pub fn is_restricted(unit: &str, source: CpuSource) -> bool {
    let of_pods = unit == "kubepods-burstable.slice" || unit.starts_with("kubepods-pod");
    OUTSIDE.contains(&unit) || (of_pods && source.restricts_pods())
}

/// Withhold the CPUs of pinned instances from these units, before threads are moved there; give back what none of them needs.
pub(super) fn restrict(snapshot: &Snapshot, facts: &Derived) -> Vec<Step> {
    let pinned = facts.totals().cpus(Total::Pinned);
    if pinned.is_empty() {
        return Vec::new();
    }
    // What is in place runs in its pod's own cgroup.
    let mut of_pods: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for instance in snapshot.live() {
        if let Some(level) = &instance.pod_level {
            let own = of_pods.entry(level.path.name()).or_default();
            own.union_with(&instance.record.exclusive);
        }
    }
    let nothing = CpuSet::new();
    let mut steps = Vec::new();
    for (unit, now) in &snapshot.outside {
        let before = now.saved.as_ref().unwrap_or(&now.cpus);
        let all = if before.is_empty() { facts.online() } else { before };
        let own = of_pods.get(unit.as_str()).unwrap_or(&nothing);
        let cpus = all.difference(&pinned.difference(own));
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

/// Whether this step withholds some of these CPUs from its unit.
pub(super) fn withholds_any(snapshot: &Snapshot, facts: &Derived, restriction: &Step, cpus: &CpuSet) -> bool {
    let Step::Restrict { unit, cpus: kept, .. } = restriction else {
        return false;
    };
    let now = snapshot.outside.get(unit).map(|now| &now.cpus);
    let now = now.filter(|now| !now.is_empty()).unwrap_or(facts.online());
    !now.difference(kept).is_disjoint(cpus)
}

/// Give every unit its own list back when no pinned instance is left. A VM whose record cannot be read may be a pinned one.
pub(super) fn restore(snapshot: &Snapshot, facts: &Derived) -> Vec<Step> {
    if !facts.totals().cpus(Total::Pinned).is_empty() || !snapshot.unreadable.is_empty() {
        return Vec::new();
    }
    let saved = snapshot.outside.iter();
    saved
        .filter_map(|(unit, now)| Some(Step::Restore(unit.clone(), now.saved.clone()?)))
        .collect()
}
