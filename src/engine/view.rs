//! What the engine shows to the entry points: the model's values, made from the snapshot. Every turn publishes what it changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use stelia_api::{Error, Reason, ReasonCode, State};
use stelia_decide::entitlement::Entitlement;
use stelia_decide::{
    Assessment, Derived, Instance, Snapshot, Wait, allocator, is_off_its_cpus, not_isolated, placement_of, shown_state,
};
use stelia_kernel::cgroup::{self, CgroupPath, Cgroups, File};
use stelia_kernel::clock::now_us;
use stelia_koordinator::allocator::AllocatorNode;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_model as model;
use stelia_settings::Policies;

/// Show what depends on kubelet's file, the topology and the pools.
pub(super) fn show_node(view: &mut model::Node, snapshot: &Snapshot, facts: &Derived, policies: &Policies) {
    let kubelet = snapshot.kubelet.as_ref();
    let held = || kubelet.map(|state| allocator::kubelets(snapshot, facts, state));
    let pools = facts.pools();
    let pool = pools.map(|pools| pools.shared.clone());
    view.cpu_source = snapshot.source;
    view.pool = pool.or_else(|| kubelet.ok().map(CpuManagerState::shared_pool));
    view.pools = pools.map(|pools| {
        Arc::new(model::Pools {
            reserved: policies.allocator.reserved.clone(),
            kubelet: held().unwrap_or_default(),
            policies: policies.allocator.clone(),
            held: allocator::held(snapshot),
            pools: pools.clone(),
        })
    });
    view.kubelet_problem = kubelet.err().cloned();
    view.kubelet_unknown_keys = kubelet.map(|state| state.unknown_keys.clone()).unwrap_or_default();
    view.entries = Arc::new(kubelet.map(|state| state.entries.clone()).unwrap_or_default());
    view.pod_entries = Arc::new(kubelet.map(|state| state.pod_entries.clone()).unwrap_or_default());
    view.kubelet_cpus = held().unwrap_or_default();
    view.kubelet_policy = kubelet.ok().map(|state| state.policy.clone());
    view.topology = Arc::new(snapshot.topology.clone());
}

/// Show what any instance may change.
pub(super) fn show_shared(view: &mut model::Node, snapshot: &Snapshot) {
    let saved = snapshot.outside.iter();
    view.slice_exclusive = snapshot.slice.exclusive.clone().unwrap_or_default();
    // The slice has no cpuset files at all before the first scope asked for them.
    view.partitions = snapshot.live().next().map(|_| snapshot.has_partitions());
    view.restricted = saved
        .filter_map(|(unit, now)| Some((unit.clone(), now.saved.as_ref()?.to_string())))
        .collect();
    view.unreadable.clone_from(&snapshot.unreadable);
}

/// The node as the allocator sees it.
///
/// # Errors
/// What RegisterInstance would answer whatever is asked: kubelet chooses, or its file cannot be used.
pub fn allocator_node(view: &model::Node) -> Result<AllocatorNode, Error> {
    match (&view.pools, &view.kubelet_problem) {
        (Some(pools), _) => Ok(AllocatorNode::new(
            &view.topology,
            pools.pools.clone(),
            &pools.held,
            pools.policies.clone(),
        )),
        (None, Some(reason)) => Err(allocator::kubelet_unknown(reason)),
        (None, None) if view.cpu_source.allocates() => Err(allocator::kubelet_unknown("it was not read yet")),
        (None, None) => Err(stelia_koordinator::allocator::chosen_by_kubelet()),
    }
}

/// An instance without anything, for tests of those who show it.
#[cfg(test)]
pub(crate) fn registered(pod: PodUid) -> model::Instance {
    model::Instance {
        pod,
        float_reason: model::FloatReason::Pool,
        placement: stelia_settings::AdoptPlacement::By(stelia_settings::PlacementPolicy::Linear),
        scope: CgroupPath::slice(),
        origin: CgroupPath::slice(),
        ..model::Instance::default()
    }
}

/// One instance, as its D-Bus object shows it. `unplug_deadline_us`: until when it waits for its vCPUs to be unplugged, if it does.
/// `wait`: what it waits for in vain. `failures`: the steps for it that failed. `before`: what was shown of it.
pub(super) fn instance(
    instance: &Instance,
    assessment: &Assessment,
    wait: Option<&Wait>,
    failures: &[String],
    unplug_deadline_us: Option<u64>,
    before: Option<&model::Instance>,
) -> model::Instance {
    let record = &instance.record;
    let state = shown_state(record, assessment);
    let state_since_us = match before {
        Some(before) if before.state == state && before.registered_us == record.registered_us => before.state_since_us,
        Some(_) => now_us(),
        // A daemon that was started again: a wait that its predecessor saw goes on.
        None => record.registered_us.max(record.isolated_us),
    };
    let former = before.and_then(|before| before.pending_resize);
    let pinned = assessment.pinned.filter(|_| !is_off_its_cpus(assessment));
    let degraded = assessment.degraded.iter().cloned();
    let naming = |reason: Reason| reason.naming(instance.pod_name.as_ref());
    model::Instance {
        pod: record.pod.clone(),
        pod_name: instance.pod_name.clone(),
        container: record.container.clone(),
        adopted_by: record.adopted.as_ref().map(|adopted| adopted.rule.clone()),
        state,
        state_since_us,
        not_isolated: not_isolated(instance, assessment, wait).map(naming),
        degraded: degraded
            .chain(lacks_cpus(instance, state, failures))
            .map(naming)
            .collect(),
        exclusive: record.exclusive.clone(),
        allocation: record.allocation.clone(),
        float: instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default(),
        float_reason: assessment.float_reason,
        quiet: record.quiet.clone(),
        pinned_reason: pinned,
        isolation: record.home.isolation(),
        mems: record.mems.clone(),
        partition: instance.vcpu().map(|leaf| leaf.partition.clone()).unwrap_or_default(),
        placement: placement_of(record),
        scope: instance.scope().clone(),
        origin: record.origin.clone(),
        registered_us: record.registered_us,
        isolated_us: record.isolated_us,
        memory_limit: memory_limit(instance),
        vcpus: model::PinnedThread::of(record),
        pending_resize: pending_resize(instance, &assessment.entitlement, unplug_deadline_us, former),
    }
}

/// What keeps an isolated VM from CPUs that it is to have.
fn lacks_cpus(instance: &Instance, state: State, failures: &[String]) -> Vec<Reason> {
    let lacks = instance.lacked();
    if state != State::Isolated || lacks.is_empty() {
        return Vec::new();
    }
    let text = |failure: &String| format!("the VM does not have its CPUs {lacks} yet: {failure}");
    let reason = |failure| Reason::of(&instance.record.pod, ReasonCode::StepFailed, text(failure));
    failures.iter().map(reason).collect()
}

/// The scope's limit is the higher one while a new, lower one does not fit, and the lower one until a higher one was applied.
fn memory_limit(instance: &Instance) -> Option<u64> {
    let origin = instance.origin_limits.as_ref().and_then(|limits| limits.memory_max);
    origin.into_iter().chain(instance.scope_limits.memory_max).min()
}

/// It ends when the record has the CPUs that remain: who reads both finds no moment at which the instance neither has fewer nor waits.
fn pending_resize(
    instance: &Instance,
    entitlement: &Entitlement,
    deadline_us: Option<u64>,
    former: Option<model::PendingResize>,
) -> Option<model::PendingResize> {
    let shrink = match entitlement {
        Entitlement::Shrinks(shrink) => shrink,
        Entitlement::Changed { own, .. } => {
            let now = instance.record.own();
            return former.filter(|_| own.is_subset(&now) && *own != now);
        }
        _ => return None,
    };
    let count = |cpus: usize| cpus.try_into().unwrap_or(u32::MAX);
    deadline_us.map(|deadline_us| model::PendingResize {
        from: count(shrink.from),
        to: count(shrink.to),
        deadline_us,
    })
}

/// Read what every instance uses. What cannot be read counts as 0: an instance may end at any moment.
pub fn usage(cgroups: &dyn Cgroups, view: &model::Node) -> BTreeMap<PodUid, model::Usage> {
    let memory = |cgroup: &CgroupPath| {
        let text = cgroups.read(cgroup, File::MemoryCurrent).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    let cpu = |cgroup: &CgroupPath| {
        let text = cgroups.read(cgroup, File::CpuStat).unwrap_or_default();
        cgroup::value(&text, "usage_usec").unwrap_or(0)
    };
    let one = |instance: &model::Instance| model::Usage {
        memory_bytes: memory(&instance.scope),
        // In place it is the same cgroup.
        origin_memory_bytes: if instance.origin == instance.scope {
            0
        } else {
            memory(&instance.origin)
        },
        cpu_usec: cpu(&instance.scope),
    };
    let instances = view.instances.iter();
    instances.map(|(pod, instance)| (pod.clone(), one(instance))).collect()
}
