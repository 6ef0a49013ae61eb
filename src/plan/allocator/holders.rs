//! Who holds which CPUs, and the pools that leaves.

use super::CpuSource;
use crate::alloc::{Allocated, KubeletView, Pools, Qos};
use crate::plan::{Facts, Snapshot};
use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodUid};

/// A running container's own CPU list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The pod.
    pub pod: PodUid,
    /// Whether the pod is a Guaranteed one: only those ever had exclusive CPUs.
    pub guaranteed: bool,
    /// Whether the container is an instance: what is its own is in its record.
    pub instance: bool,
    /// The container's own CPU limit, thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// `cpuset.cpus`; empty where nobody restricted it.
    pub cpus: CpuSet,
}

/// What a static CPU manager that is gone left behind: CPUs that a running Guaranteed container was once given alone. kubelet
/// does not take the lists back when its policy becomes `none`, and its file does not name them any more.
///
/// What kubelet gave out exclusively was no other pod's, and as many CPUs as the container's limit. So a list that meets another
/// pod's was the shared pool, and so was one of another length. (A newer kubelet sets no limit where it gives out CPUs.)
pub fn leftover(containers: &[Left]) -> CpuSet {
    let meets = |one: &Left| {
        let others = containers.iter().filter(|other| other.pod != one.pod);
        others.map(|other| &other.cpus).any(|cpus| !cpus.is_disjoint(&one.cpus))
    };
    let as_limited = |one: &Left| {
        one.limit_milli
            .is_none_or(|milli| milli == 1000 * one.cpus.len() as u64)
    };
    containers
        .iter()
        .filter(|one| one.guaranteed && !one.instance && as_limited(one) && !meets(one))
        .flat_map(|one| one.cpus.iter())
        .collect()
}

/// What is kubelet's: its entries, what it left behind; and while its static policy rules, all that is not in its default set.
/// It writes one change as two files, and between them CPUs are in neither.
pub fn kubelets(snapshot: &Snapshot, facts: &Facts, state: &CpuManagerState) -> CpuSet {
    let between = match state.is_static() {
        true => facts.online().difference(&state.default_cpus),
        false => CpuSet::new(),
    };
    facts.assigned().union(&between).union(&snapshot.leftover)
}

/// The pools, where steliad makes them; `None` where kubelet does, or its file cannot be used.
pub(in crate::plan) fn pools(snapshot: &Snapshot, facts: &Facts, reserved: &CpuSet) -> Option<Pools> {
    if snapshot.source == CpuSource::Kubelet {
        return None;
    }
    let state = snapshot.kubelet.as_ref().ok()?;
    let (others, lsr) = facts.totals().recorded();
    // What vCPUs have not left yet, and what scopes hold whose record cannot be read.
    let held = facts.totals().owned().difference(others).difference(lsr);
    let of = |qos, cpus: &CpuSet| Allocated {
        qos,
        cpus: cpus.clone(),
    };
    let allocated = [
        of(Qos::Lse, others),
        of(Qos::Lsr, lsr),
        of(Qos::Lse, &held.union(&snapshot.left_alone)),
    ];
    let pinned = kubelets(snapshot, facts, state);
    Some(Pools::new(
        &snapshot.topology,
        reserved,
        &allocated,
        &KubeletView::Static { pinned },
    ))
}
