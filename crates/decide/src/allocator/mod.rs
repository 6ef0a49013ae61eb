//! What the allocator ([`stelia_koordinator::allocator`]) is asked, from what was found on this node.

#[cfg(test)]
mod scheduled_tests;
#[cfg(test)]
mod tests;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::{
    Allocation, AllocationRequest, AllocatorNode, AllocatorPolicies, CpuExclusivePolicy, HeldCpus, Pools, Requester,
    ResizeRequest, chosen_by_kubelet,
};
use stelia_kubelet::CpuManagerState;
use stelia_model::record::Phase;

use super::steps::instance_must_float;
use super::totals::Total;
use super::{Derived, Instance, Snapshot};

/// The refusal where kubelet's file cannot be used.
pub fn kubelet_unknown(reason: &str) -> Error {
    ErrorKind::KubeletStateUnusable.because(format!("what kubelet holds is not known: {reason}"))
}

/// Decide by what was found on this node.
///
/// # Errors
/// As [`AllocatorNode::allot`], and `KubeletStateUnusable`.
pub fn allot(
    request: &AllocationRequest,
    requester: &Requester,
    snapshot: &Snapshot,
    facts: &Derived,
    node: &AllocatorPolicies,
) -> Result<(CpuSet, Allocation), Error> {
    let pools = pools_of(snapshot, facts)?;
    AllocatorNode::new(&snapshot.topology, pools, &held(snapshot), node.clone()).allot(request, requester)
}

/// The node's pools.
fn pools_of(snapshot: &Snapshot, facts: &Derived) -> Result<Pools, Error> {
    match (&snapshot.kubelet, facts.pools()) {
        (Ok(_), Some(pools)) => Ok(pools.clone()),
        (Err(reason), _) => Err(kubelet_unknown(reason)),
        (Ok(_), None) => Err(chosen_by_kubelet()),
    }
}

/// Decide which CPUs an instance whose CPUs steliad chose is to have instead, when it is to have so many.
///
/// # Errors
/// `InvalidArgument`: kubelet or a scheduler chose its CPUs, its class has none of its own, or none would remain. `Busy`: its vCPUs are
/// being isolated, or are off its CPUs. `NotAllocated`, `KubeletStateUnusable`.
pub fn resize(
    instance: &Instance,
    count: usize,
    snapshot: &Snapshot,
    facts: &Derived,
    node: &AllocatorPolicies,
) -> Result<(CpuSet, Allocation), Error> {
    let record = &instance.record;
    let refused = |text: &str| Err(ErrorKind::InvalidArgument.because(text));
    let Some(allocation) = &record.allocation else {
        return refused("kubelet chose its CPUs, and only a resize of its pod changes how many they are");
    };
    if record.scheduled {
        return refused("a scheduler chose its CPUs, which steliad does not change");
    }
    if !allocation.qos.is_exclusive() {
        return refused(&format!("class {} has no CPUs of its own", allocation.qos.name()));
    }
    let is_settled = matches!(record.phase, Phase::Floating | Phase::Isolated | Phase::Pinned);
    if !is_settled || instance_must_float(snapshot, facts, instance) {
        let text = format!(
            "its vCPUs are not on its CPUs (it is {}): its CPUs can be changed when they are",
            record.phase.name()
        );
        return Err(ErrorKind::Busy.because(text));
    }
    let pools = pools_of(snapshot, facts)?;
    // It is no neighbour of its own.
    let mut held = held(snapshot);
    for cpus in [&mut held.pcpu_level, &mut held.numa_node_level] {
        *cpus = cpus.difference(&record.exclusive);
    }
    if let Some((scope, reason)) = &held.unreadable {
        return Err(ErrorKind::Failed.because(format!("the CPUs of {scope} are unknown: {reason}")));
    }
    AllocatorNode::new(&snapshot.topology, pools, &held, node.clone()).resize(ResizeRequest {
        now: &record.exclusive,
        allocation,
        memory: Some(&record.mems).filter(|mems| !mems.is_empty()),
        count,
    })
}

/// What instances hold, as far as the pools do not tell.
pub fn held(snapshot: &Snapshot) -> HeldCpus {
    let with = |policy: CpuExclusivePolicy| -> CpuSet {
        let records = snapshot.instances.values().map(|instance| &instance.record);
        let held = records.filter(|record| record.allocation.as_ref().is_some_and(|one| one.exclusive == policy));
        held.flat_map(|record| record.exclusive.iter()).collect()
    };
    HeldCpus {
        pcpu_level: with(CpuExclusivePolicy::PcpuLevel),
        numa_node_level: with(CpuExclusivePolicy::NumaNodeLevel),
        // A record on a container's cgroup only closes the CPUs that the kernel has in a partition, and these are read.
        unreadable: snapshot
            .unreadable
            .iter()
            .find(|(name, _)| !name.starts_with('/'))
            .cloned(),
    }
}

/// What is kubelet's: its entries, what it left behind; and while its static policy rules, all that is not in its default set.
/// It writes one change as two files, and between them CPUs are in neither.
pub fn kubelets(snapshot: &Snapshot, facts: &Derived, state: &CpuManagerState) -> CpuSet {
    let between = if state.is_static() {
        facts.online().difference(&state.default_cpus)
    } else {
        CpuSet::new()
    };
    facts.assigned().union(&between).union(&snapshot.leftover)
}

/// The pools, where steliad makes them; `None` where kubelet does, or its file cannot be used.
pub(super) fn pools(snapshot: &Snapshot, facts: &Derived, reserved: &CpuSet) -> Option<Pools> {
    if !snapshot.source.allocates() {
        return None;
    }
    let state = snapshot.kubelet.as_ref().ok()?;
    let [others, lsr] = [Total::Recorded, Total::RecordedLsr].map(|kind| facts.totals().cpus(kind));
    // What vCPUs have not left yet, and what scopes hold whose record cannot be read, is closed too.
    let owned = facts.totals().owned().difference(lsr).union(others);
    let closed = owned
        .union(&snapshot.left_alone)
        .union(&snapshot.left_in_place)
        .union(&kubelets(snapshot, facts, state));
    Some(Pools::new(&snapshot.topology, reserved, &closed, lsr))
}
