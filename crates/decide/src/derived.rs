//! What is derived from a snapshot once, for all instances: which pod kubelet gave which CPU, the pools, and totals over the
//! instances. What is derived for one instance is its [`Assessment`].

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::reason::Reason;
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::{Pools, Qos};
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_model::{FloatReason, PinnedReason};
use stelia_settings::Policies;

use super::degraded::degraded;
use super::entitlement::{Entitlement, Eviction, entitlement, eviction};
use super::float::{until_attached, with_spare};
use super::home::{float_cpus, float_must_leave};
use super::partition_kind::pinned;
use super::steps::{Inputs, ThreadPlacement, current_placement, must_float, thread_placement};
use super::totals::{Total, Totals};
use super::{Instance, Snapshot, ThreadedCgroup, allocator};

/// What is derived from a snapshot once, for all instances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Derived {
    assigned: CpuSet,
    kubelets_pool: CpuSet,
    /// The pods whose entries name a CPU: more than one while kubelet contradicts itself.
    claims: BTreeMap<u32, Vec<PodUid>>,
    /// Where steliad chooses: the exclusive CPUs of instances that have them from kubelet, by pod. They keep them when their
    /// entry is gone, as kubelet gave them before its policy became `none`.
    given: BTreeMap<PodUid, CpuSet>,
    of_pods: CpuSet,
    nodes: BTreeMap<u32, CpuSet>,
    online: CpuSet,
    totals: Totals,
    pools: Option<Pools>,
    /// The CPUs that floats may run on. When this changes, other instances are concerned: see [`Self::follow_instance`].
    open: Open,
}

/// The pools that floats run on: without exclusive CPUs of instances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Open {
    shared: CpuSet,
    be: CpuSet,
    of_pods: CpuSet,
}

/// What is derived for one instance, once after it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// Which CPUs it is to have, by kubelet's file.
    pub entitlement: Entitlement,
    /// Which CPUs it must leave.
    pub eviction: Option<Eviction>,
    /// Whether its vCPU threads must float: CPUs of theirs belong to another pod, or none of their CPUs is online.
    pub must_float: bool,
    /// Other instances' cgroups still have CPUs that it is to have; `None` where its vCPU threads float anyway.
    pub blocked: Option<Blocked>,
    /// The CPUs it is to float on; `None` while its float keeps what it has.
    pub float: Option<CpuSet>,
    /// What decided it.
    pub float_reason: FloatReason,
    /// Why no partition is made for it; `None` unless it is pinned.
    pub pinned: Option<PinnedReason>,
    /// The reasons of degradation; empty where there are none.
    pub degraded: Vec<Reason>,
}

/// CPUs that an instance is to have and that another one's cgroups still have. The kernel gives an exclusive CPU to one of two
/// siblings only, so the instance stays where it is meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The CPUs that are not free yet.
    pub cpus: CpuSet,
    /// One of those that have them.
    pub by: PodUid,
    /// That one is about to leave them. Where kubelet's file gives them to both it is not.
    pub leaves: bool,
}

impl Blocked {
    fn of(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> Option<Self> {
        let needed = instance.needed();
        if needed.is_disjoint(facts.totals().cpus(Total::Listed)) {
            return None;
        }
        let has = |other: &&Instance| !other.listed().is_disjoint(&needed);
        let other = snapshot.instances.values().find(has)?;
        let cpus = other.listed().intersection(&needed);
        let stays = other.populated && current_placement(snapshot, facts, other) == ThreadPlacement::Hold;
        Some(Self {
            leaves: !stays || other.record.exclusive.is_disjoint(&cpus),
            by: other.record.pod.clone(),
            cpus,
        })
    }
}

/// Whose plan may differ after a change of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Concerned {
    /// Its own only.
    Itself,
    /// Others' too: other CPUs are open to their floats, or they wait for CPUs of this one.
    Everyone,
}

impl Concerned {
    fn everyone_if(others_differ: bool) -> Self {
        if others_differ { Self::Everyone } else { Self::Itself }
    }
}

impl Assessment {
    /// Derived for one instance of a snapshot.
    pub fn of(snapshot: &Snapshot, facts: &Derived, policies: &Policies, instance: &Instance) -> Self {
        let entitlement = entitlement(snapshot, facts, instance);
        let eviction = eviction(snapshot, facts, instance, &entitlement);
        let must_float = must_float(facts, instance, &entitlement, eviction.as_ref());
        let holds = thread_placement(instance, must_float) == ThreadPlacement::Hold;
        let held_by_another = Blocked::of(snapshot, facts, instance);
        let blocked = held_by_another.clone().filter(|_| holds);
        let inputs = Inputs {
            snapshot,
            facts,
            policies,
        };
        let has_float = instance.tree.has_float();
        let float = match &eviction {
            _ if !has_float => None,
            // Its spare CPUs are another pod's too, or may be.
            Some(Eviction { lasts: true, .. }) => float_cpus(&inputs, instance),
            _ => {
                let chosen = float_cpus(&inputs, instance);
                // Until an evicted instance has left its CPUs, or another has left this one's, its own are not free for float.
                let chosen = if eviction.is_none() && held_by_another.is_none() {
                    until_attached(
                        instance,
                        &facts.near(&instance.record.exclusive),
                        facts.online(),
                        chosen,
                    )
                } else {
                    chosen
                };
                with_spare(instance, facts.online(), chosen)
            }
        };
        let without = if has_float {
            FloatReason::Unchanged
        } else {
            FloatReason::NoFloat
        };
        let (float, float_reason) = float.map_or((None, without), |(cpus, why)| (Some(cpus), why));
        let mut assessment = Self {
            float_reason,
            pinned: pinned(snapshot, policies, instance),
            must_float,
            degraded: Vec::new(),
            entitlement,
            eviction,
            blocked,
            float,
        };
        assessment.degraded = degraded(snapshot, facts, instance, &assessment);
        assessment
    }

    /// The CPUs that the instance's float is to have, where its threads are on others that they must leave.
    pub fn float_of_misplaced(
        &self,
        snapshot: &Snapshot,
        facts: &Derived,
        policies: &Policies,
        instance: &Instance,
    ) -> Option<CpuSet> {
        let inputs = Inputs {
            snapshot,
            facts,
            policies,
        };
        let on_vcpus_cpus = |vcpu: &ThreadedCgroup| self.must_float && !vcpu.threads.is_empty();
        if instance.vcpu().is_some_and(on_vcpus_cpus) {
            return Some(self.float.clone().unwrap_or_default());
        }
        float_must_leave(&inputs, instance, self.float.as_ref())
    }
}

impl Derived {
    /// Derived from a snapshot.
    pub fn of(snapshot: &Snapshot, policies: &Policies) -> Self {
        let state = snapshot.kubelet.as_ref().ok();
        let mut nodes: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (number, cpu) in &snapshot.topology.cpus {
            nodes.entry(cpu.node).or_default().insert(*number);
        }
        let assigned = state.map(CpuManagerState::assigned).unwrap_or_default();
        let pods = state.map(|state| &state.pod_entries);
        let mut facts = Self {
            kubelets_pool: state
                .map(|state| state.default_cpus.difference(&assigned))
                .unwrap_or_default(),
            assigned,
            claims: state.map(claims).unwrap_or_default(),
            given: snapshot
                .instances
                .values()
                .filter_map(|instance| cpus_from_kubelet(snapshot, instance))
                .collect(),
            of_pods: pods
                .into_iter()
                .flat_map(BTreeMap::values)
                .flat_map(CpuSet::iter)
                .collect(),
            nodes,
            online: snapshot.topology.online(),
            totals: Totals::default(),
            pools: None,
            open: Open::default(),
        };
        facts.totals = Totals::of(snapshot, &facts);
        facts.divide(snapshot, policies);
        facts
    }

    /// Follow one instance that changed, came or went, from `before` to `now`, in a snapshot that is otherwise the same. The result equals
    /// [`Self::of`] that snapshot, mostly without summing all instances again. Returns whose plan may differ.
    pub fn follow_instance(
        &mut self,
        snapshot: &Snapshot,
        policies: &Policies,
        before: Option<&Instance>,
        now: Option<&Instance>,
    ) -> Concerned {
        let mut totals = std::mem::take(&mut self.totals);
        // What the pools depend on: see `divide`.
        let kinds = [Total::Owned, Total::OwnedButLsr, Total::Recorded, Total::RecordedLsr];
        let for_pools = |totals: &Totals| kinds.map(|kind| totals.cpus(kind).clone());
        let for_pools_before = for_pools(&totals);
        let (given_before, given_now) = [before, now]
            .map(|one| one.and_then(|one| cpus_from_kubelet(snapshot, one)))
            .into();
        // An instance evicts others that have CPUs which kubelet gives it. The change may begin an eviction or end one, so both the totals
        // before it and those after it are asked.
        let gift_changed = given_before != given_now;
        let evicts_others = |totals: &Totals| {
            let mut given = given_before.iter().chain(&given_now);
            given.any(|(_, cpus)| totals.is_contested(cpus))
        };
        let evicted_others = gift_changed && evicts_others(&totals);
        // Others that are to have CPUs which this one's cgroups have wait for it.
        let mut awaited = before.is_some_and(|before| totals.is_awaited(before));
        totals.follow_instance(snapshot, self, before, now);
        awaited |= now.is_some_and(|now| totals.is_awaited(now));
        if gift_changed && (evicted_others || evicts_others(&totals)) {
            // What the other instances add to the totals depends on whether they are evicted.
            *self = Self::of(snapshot, policies);
            return Concerned::Everyone;
        }
        given_before.iter().for_each(|(pod, _)| drop(self.given.remove(pod)));
        self.given.extend(given_now);
        let pools_may_differ = for_pools(&totals) != for_pools_before;
        self.totals = totals;
        if !pools_may_differ {
            return Concerned::everyone_if(awaited);
        }
        let open = self.open.clone();
        self.divide(snapshot, policies);
        Concerned::everyone_if(awaited || self.open != open)
    }

    /// Divide the unassigned CPUs into pools.
    fn divide(&mut self, snapshot: &Snapshot, policies: &Policies) {
        self.pools = allocator::pools(snapshot, self, &policies.allocator.reserved);
        let owned = self.totals.owned();
        let be = self.pools.as_ref().map(|pools| &pools.be_shared);
        self.open = Open {
            shared: self.shared_pool().difference(owned),
            // Where steliad makes no pools BE floats on the shared pool, on LSR's CPUs too.
            be: be
                .unwrap_or(self.shared_pool())
                .difference(self.totals.closed_to(Some(Qos::Be))),
            of_pods: self.of_pods.difference(owned),
        };
    }

    /// The shared pool, kubelet's or steliad's.
    pub(crate) fn shared_pool(&self) -> &CpuSet {
        self.pools.as_ref().map_or(&self.kubelets_pool, |pools| &pools.shared)
    }

    /// The pools, where steliad makes them.
    pub fn pools(&self) -> Option<&Pools> {
        self.pools.as_ref()
    }

    pub(crate) fn assigned(&self) -> &CpuSet {
        &self.assigned
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The CPUs that the mask of the kernel's unbound workers must be without.
    pub fn closed_to_workers(&self) -> &CpuSet {
        self.totals.cpus(Total::RootPartitions)
    }

    /// Whether any instance is pinned: no partition protects its CPUs.
    pub fn has_pinned(&self) -> bool {
        !self.totals.cpus(Total::Pinned).is_empty()
    }

    pub(crate) fn online(&self) -> &CpuSet {
        &self.online
    }

    /// All CPUs of the NUMA nodes that these CPUs belong to.
    pub(crate) fn near(&self, cpus: &CpuSet) -> CpuSet {
        let mut near = CpuSet::new();
        for node in self.nodes.values().filter(|node| !node.is_disjoint(cpus)) {
            near.union_with(node);
        }
        near
    }

    /// The first pod but `own` whose entry names one of these CPUs.
    pub(super) fn other_owner(&self, own: &PodUid, cpus: &CpuSet) -> Option<&PodUid> {
        let named = cpus.iter().filter_map(|cpu| self.claims.get(&cpu));
        named.flatten().filter(|pod| *pod != own).min()
    }

    /// The first instance but `own` that has some of these CPUs from kubelet, and which, where steliad chooses.
    pub(super) fn assigned_to(&self, own: &PodUid, cpus: &CpuSet) -> Option<(CpuSet, PodUid)> {
        let mut others = self.given.iter().filter(|(pod, _)| *pod != own);
        let (pod, given) = others.find(|(_, given)| !given.is_disjoint(cpus))?;
        Some((given.intersection(cpus), pod.clone()))
    }
}

/// The CPUs that an instance has from kubelet, where steliad chooses.
fn cpus_from_kubelet(snapshot: &Snapshot, instance: &Instance) -> Option<(PodUid, CpuSet)> {
    let record = &instance.record;
    let keeps = snapshot.source.keeps_cpus_without_entry() && record.allocation.is_none() && instance.populated;
    keeps.then(|| (record.pod.clone(), record.exclusive.clone()))
}

fn claims(state: &CpuManagerState) -> BTreeMap<u32, Vec<PodUid>> {
    let containers = state
        .entries
        .iter()
        .flat_map(|(pod, containers)| containers.values().map(move |cpus| (pod, cpus)));
    let all: BTreeSet<(u32, &PodUid)> = containers
        .chain(&state.pod_entries)
        .flat_map(|(pod, cpus)| cpus.iter().map(move |cpu| (cpu, pod)))
        .collect();
    let mut claims: BTreeMap<u32, Vec<PodUid>> = BTreeMap::new();
    for (cpu, pod) in all {
        claims.entry(cpu).or_default().push(pod.clone());
    }
    claims
}

#[cfg(test)]
mod tests;
