//! Rebinding: the moves of instances to other CPUs that undo fragmentation, one after the other.
//!
//! Each move is good by itself: no instance spans more NUMA nodes or has a policy kept less, and `LayoutCost` of the host falls.
//! So the moves end, and after any of them every instance is at least as well off as before.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, NodeSet};
use stelia_koordinator::allocator::{
    Allocation, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSelection, Exclusivity, HostTables, InUse,
    NumaTopologyAlignmentPolicy, Room, Usage, align, select_cpus,
};
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_settings::Policies;

use super::steps::instance_must_float;
use super::{Derived, Instance, Snapshot};

/// Which instances may be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebindScope {
    /// Every instance whose CPUs steliad chose.
    Node,
    /// The instance of this pod.
    Pod(PodUid),
}

impl RebindScope {
    fn has(&self, pod: &PodUid) -> bool {
        match self {
            Self::Node => true,
            Self::Pod(one) => one == pod,
        }
    }
}

/// One instance moves to other CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The pod of the instance.
    pub pod: PodUid,
    /// Its CPUs now.
    pub from: CpuSet,
    /// CPUs that are free now, or its own.
    pub to: CpuSet,
    /// Whether its exclusive policy is satisfied there.
    pub exclusivity: Exclusivity,
    /// What is better afterwards, in words.
    pub gain: String,
}

/// How far the CPUs of a host's instances are from what the instances asked for; compared field by field, lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LayoutCost {
    /// The sum over all instances of the NUMA nodes that each is on.
    pub spans: usize,
    /// The sum over all instances of the NUMA nodes of its devices that have none of its CPUs.
    pub away: usize,
    /// CPUs that do not satisfy their instance's bind policy.
    pub misbound: usize,
    /// Instances whose exclusive policy is not kept: 1 for each downgraded, 2 for each dropped.
    pub exclusivity_loss: usize,
    /// Cores that are only partly free.
    pub broken_cores: usize,
    /// How the free CPUs are spread: less where one NUMA node has more of them.
    pub scattered: usize,
}

/// One instance's part of [`LayoutCost`].
#[derive(Clone, Copy, Default)]
struct InstanceCost {
    span: usize,
    away: usize,
    misbound: usize,
    exclusivity_loss: usize,
}

/// The next move; `None` where no move is an improvement. If several are, the one that leaves the lowest cost, then the first by pod UID.
pub fn next(snapshot: &Snapshot, facts: &Derived, node: &AllocatorPolicies, scope: &RebindScope) -> Option<Move> {
    let pools = facts.pools()?;
    let now = Assignments {
        host: HostTables::new(&snapshot.topology),
        everything: snapshot.topology.online().difference(&node.reserved),
        free: pools.allocatable.clone(),
        owners: snapshot
            .instances
            .values()
            .map(|instance| (instance.record.pod.clone(), Owner::of(instance)))
            .collect(),
    };
    let movable = |instance: &&Instance| {
        let settled = matches!(instance.record.phase, Phase::Floating | Phase::Isolated | Phase::Pinned);
        settled
            && instance.populated
            && scope.has(&instance.record.pod)
            && !instance_must_float(snapshot, facts, instance)
            // It is about to leave CPUs: the move would be of CPUs that it does not keep.
            && !snapshot.to_keep.contains_key(&instance.record.pod)
    };
    let before = now.disorder();
    let mut best: Option<(LayoutCost, Move)> = None;
    for instance in snapshot.instances.values().filter(movable) {
        let Some(allocation) = instance.record.allocation.as_ref().filter(|one| one.qos.is_exclusive()) else {
            continue;
        };
        if instance.record.scheduled {
            continue;
        }
        for (disorder, step) in now.moves(&instance.record.pod, allocation, before) {
            let better = best
                .as_ref()
                .is_none_or(|(least, known)| (disorder, &step.pod, &step.to) < (*least, &known.pod, &known.to));
            if better {
                best = Some((disorder, step));
            }
        }
    }
    best.map(|(_, step)| step)
}

/// Whether kubelet chose the CPUs of all instances, so that none can be moved.
pub fn is_up_to_kubelet(snapshot: &Snapshot) -> bool {
    let by_kubelet = |instance: &Instance| instance.record.allocation.is_none();
    !snapshot.source.allocates() && snapshot.instances.values().all(by_kubelet)
}

/// Every move in turn, as if each had been made: for a dry run.
pub fn all(snapshot: &Snapshot, policies: &Policies, scope: &RebindScope) -> Vec<Move> {
    let mut snapshot = snapshot.clone();
    let mut moves = Vec::new();
    while let Some(step) = next(&snapshot, &Derived::of(&snapshot, policies), &policies.allocator, scope) {
        made(&mut snapshot, &step);
        moves.push(step);
    }
    moves
}

/// The snapshot after a move, as far as the next one depends on it.
pub(crate) fn made(snapshot: &mut Snapshot, step: &Move) {
    let Some(instance) = snapshot.instances.get_mut(&step.pod) else {
        return;
    };
    instance.record.exclusive = step.to.clone();
    instance.record.entry = step.to.clone();
    if let Some(allocation) = &mut instance.record.allocation {
        allocation.exclusivity = step.exclusivity;
    }
    // Its vCPUs are moved with it.
    if let Some(vcpu) = instance.inner.as_mut().and_then(|inner| inner.vcpu.as_mut()) {
        vcpu.cpus = step.to.clone();
        if !vcpu.exclusive.is_empty() {
            vcpu.exclusive = step.to.clone();
        }
    }
}

/// An instance as the owner of CPUs.
#[derive(Debug, Clone)]
struct Owner {
    cpus: CpuSet,
    bind: Option<CpuBindPolicy>,
    exclusive: CpuExclusivePolicy,
    /// The NUMA nodes that its memory comes from; empty for any.
    memory: NodeSet,
    /// The NUMA nodes of its devices.
    devices: NodeSet,
}

impl Owner {
    fn of(instance: &Instance) -> Self {
        let allocation = instance.record.allocation.as_ref();
        Self {
            cpus: instance.record.exclusive.clone(),
            bind: allocation.map(|allocation| allocation.bind),
            exclusive: allocation.map_or(CpuExclusivePolicy::None, |allocation| allocation.exclusive),
            memory: instance.record.mems.clone(),
            devices: instance.record.devices.clone(),
        }
    }
}

/// Which instance owns which CPUs, as they are or as they would be after a move.
#[derive(Clone)]
struct Assignments {
    host: HostTables,
    /// What could be allocated without any instance.
    everything: CpuSet,
    free: CpuSet,
    owners: BTreeMap<PodUid, Owner>,
}

impl Assignments {
    /// The moves of one instance that are good.
    fn moves(&self, pod: &PodUid, allocation: &Allocation, before: LayoutCost) -> Vec<(LayoutCost, Move)> {
        let Some(owner) = self.owners.get(pod) else {
            return Vec::new();
        };
        let from = &owner.cpus;
        let own = self.own(pod);
        let available = self.open_to(owner).union(&from.intersection(&self.everything));
        let usage = Usage {
            in_use: self
                .owners
                .iter()
                .filter(|(other, _)| *other != pod)
                .map(|(_, owner)| InUse {
                    cpus: owner.cpus.clone(),
                    exclusive: owner.exclusive,
                })
                .collect(),
        };
        let count = allocation.cpus as usize;
        let required = allocation.required.then_some(allocation.bind);
        let room = Room::new(&self.host, &self.everything, &available, required);
        // Without an alignment that was asked for, best-effort is tried too.
        let alignments = [
            Some(allocation.alignment),
            (!allocation.alignment.is_strict()).then_some(NumaTopologyAlignmentPolicy::BestEffort),
        ];
        let mut found = Vec::new();
        for alignment in alignments.into_iter().flatten() {
            let Ok(nodes) = align(alignment, allocation.strategy, count, &room, &owner.devices) else {
                continue;
            };
            for preferred in [from.clone(), CpuSet::new()] {
                let request = CpuSelection {
                    preferred,
                    nodes: nodes.clone(),
                    ..allocation.selection(count)
                };
                let Ok(answer) = select_cpus(&self.host, &usage, &available, &request) else {
                    continue;
                };
                let after = self.after(pod, &answer.cpus);
                let (disorder, then) = (after.disorder(), after.own(pod));
                // No instance gets worse in any respect, and the host as a whole gets better.
                let no_worse = then.span <= own.span
                    && then.away <= own.away
                    && then.misbound <= own.misbound
                    && then.exclusivity_loss <= own.exclusivity_loss;
                // Where nothing binds the memory it stays on the nodes of the present CPUs, whatever is nearer to the devices elsewhere.
                let leaves_memory = self.owners.get(pod).is_some_and(|owner| {
                    let (now, new) = (self.host.nodes_of(&owner.cpus), self.host.nodes_of(&answer.cpus));
                    owner.memory.is_empty() && then.away < own.away && !new.is_subset(&now)
                });
                if no_worse && !leaves_memory && disorder < before && self.nobody_else_worse(&after, pod) {
                    let step = Move {
                        pod: pod.clone(),
                        from: from.clone(),
                        to: answer.cpus,
                        exclusivity: answer.exclusive,
                        gain: gain((own, before), (then, disorder)),
                    };
                    found.push((disorder, step));
                }
            }
        }
        found
    }

    /// The free CPUs of the NUMA nodes that kubelet bound its memory to: the memory stays where it is.
    fn open_to(&self, owner: &Owner) -> CpuSet {
        if owner.memory.is_empty() {
            return self.free.clone();
        }
        self.host.within(&self.free, &owner.memory)
    }

    fn nobody_else_worse(&self, after: &Self, pod: &PodUid) -> bool {
        let others = self.owners.keys().filter(|other| *other != pod);
        others
            .into_iter()
            .all(|other| after.own(other).exclusivity_loss <= self.own(other).exclusivity_loss)
    }

    fn after(&self, pod: &PodUid, cpus: &CpuSet) -> Self {
        let mut after = self.clone();
        if let Some(owner) = after.owners.get_mut(pod) {
            let back = owner.cpus.intersection(&self.everything);
            after.free = after.free.union(&back).difference(cpus);
            owner.cpus = cpus.clone();
        }
        after
    }

    fn own(&self, pod: &PodUid) -> InstanceCost {
        let Some(owner) = self.owners.get(pod) else {
            return InstanceCost::default();
        };
        let nodes = self.host.nodes_of(&owner.cpus);
        InstanceCost {
            span: nodes.len(),
            away: owner.devices.difference(&nodes).count(),
            misbound: self.misbound(owner),
            exclusivity_loss: self.exclusivity_loss(pod, owner),
        }
    }

    /// FullPCPUs: CPUs beyond the part of a core that the number makes anyway, on cores shared with others. SpreadByPCPUs: CPUs
    /// that have a sibling of the same instance.
    fn misbound(&self, owner: &Owner) -> usize {
        let whole = self.host.whole_cores(&owner.cpus).len();
        match owner.bind {
            Some(CpuBindPolicy::FullPcpus) => {
                let threads = self.host.threads().max(1);
                (owner.cpus.len() / threads * threads).saturating_sub(whole)
            }
            Some(CpuBindPolicy::SpreadByPcpus) => {
                owner.cpus.len() - self.host.one_per_core(&owner.cpus, &CpuSet::new()).len()
            }
            _ => 0,
        }
    }

    /// 2 if a core is shared with an instance that the exclusive policy avoids, 1 if only a NUMA node is.
    fn exclusivity_loss(&self, pod: &PodUid, owner: &Owner) -> usize {
        let same = |policies: &[CpuExclusivePolicy]| -> CpuSet {
            let others = self
                .owners
                .iter()
                .filter(|(other, theirs)| *other != pod && policies.contains(&theirs.exclusive));
            others.flat_map(|(_, theirs)| theirs.cpus.iter()).collect()
        };
        match owner.exclusive {
            CpuExclusivePolicy::Default | CpuExclusivePolicy::None => 0,
            policy @ CpuExclusivePolicy::PcpuLevel => 2 * usize::from(self.share_cores(&owner.cpus, &same(&[policy]))),
            policy @ CpuExclusivePolicy::NumaNodeLevel => {
                if self.share_cores(&owner.cpus, &same(&[policy, CpuExclusivePolicy::PcpuLevel])) {
                    2
                } else {
                    let theirs = self.host.nodes_of(&same(&[policy]));
                    usize::from(!self.host.nodes_of(&owner.cpus).is_disjoint(&theirs))
                }
            }
        }
    }

    fn share_cores(&self, one: &CpuSet, other: &CpuSet) -> bool {
        !self.host.cores_of(one).is_disjoint(&self.host.cores_of(other))
    }

    fn disorder(&self) -> LayoutCost {
        let all: Vec<InstanceCost> = self.owners.keys().map(|pod| self.own(pod)).collect();
        let free = self.host.by_node(&self.free);
        let room = self.free.len();
        LayoutCost {
            spans: all.iter().map(|own| own.span).sum(),
            away: all.iter().map(|own| own.away).sum(),
            misbound: all.iter().map(|own| own.misbound).sum(),
            exclusivity_loss: all.iter().map(|own| own.exclusivity_loss).sum(),
            broken_cores: self.host.cores_of(&self.free).len()
                - self.host.whole_cores(&self.free).len() / self.host.threads().max(1),
            scattered: room * room - free.values().map(|cpus| cpus.len() * cpus.len()).sum::<usize>(),
        }
    }
}

fn gain((own, before): (InstanceCost, LayoutCost), (then, after): (InstanceCost, LayoutCost)) -> String {
    let mut parts = Vec::new();
    let mut fewer = |what: &str, was: usize, is: usize| {
        if is < was {
            parts.push(format!("{what}: {was} -> {is}"));
        }
    };
    fewer("NUMA nodes", own.span, then.span);
    fewer("NUMA nodes with its devices and without its CPUs", own.away, then.away);
    fewer("CPUs against the bind policy", own.misbound, then.misbound);
    fewer("unwanted company", before.exclusivity_loss, after.exclusivity_loss);
    fewer("partly free cores of the host", before.broken_cores, after.broken_cores);
    fewer("scattering of the host's free CPUs", before.scattered, after.scattered);
    parts.join(", ")
}

#[cfg(test)]
mod tests;
