//! `instance/`, `float/` and `vcpu/`, float's CPUs, and at registration the container's processes in it.

use std::collections::BTreeSet;

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_koordinator::allocator::Qos;
use stelia_model::FloatReason;
use stelia_model::record::Phase;
use stelia_settings::{FloatPolicy, Partition, Policies};

use super::{Step, ThreadPlacement, in_place, limits, origin};
use crate::float::{Shared, choose, has_idle_cpus};
use crate::{Derived, Instance, InstanceCgroup, Snapshot, pod_pool};

/// The controllers `float/` and `vcpu/` need.
pub(super) const CONTROLLERS: [&str; 2] = ["cpuset", "cpu"];

/// The CPUs an instance floats on, and what decided. `None` when kubelet's file cannot be used or no CPU is free: then the
/// float keeps its list.
pub(crate) fn float_cpus(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    instance: &Instance,
) -> Option<(CpuSet, FloatReason)> {
    snapshot.kubelet.as_ref().ok()?;
    let record = &instance.record;
    let pod = pod_pool::of(snapshot, instance);
    let near = facts.near(&record.exclusive);
    let of = |pool: &CpuSet, float: FloatPolicy| {
        let shared = Shared {
            pool,
            pod: pod.as_ref(),
            near: &near,
            owned: facts.totals().closed_to(record.qos()),
        };
        choose(float, policies.float_min_cpus, &shared, facts.online())
    };
    // A class without CPUs of its own has a pool instead, or the shared pool of all when that has no free CPU.
    let own_pool = match (&record.allocation, facts.pools()) {
        (Some(allocation), Some(pools)) if allocation.qos == Qos::Be => {
            of(&pools.be_shared, FloatPolicy::Node).map(|(cpus, _)| (cpus, FloatReason::BePool))
        }
        (Some(allocation), Some(pools)) => allocation
            .numa_node
            .and_then(|node| pools.shared_by_node.get(&node))
            .and_then(|pool| of(&pool.cpus, FloatPolicy::Node))
            .map(|(cpus, _)| (cpus, FloatReason::NodePool)),
        _ => None,
    };
    own_pool.or_else(|| of(facts.shared_pool(), policies.float))
}

pub(super) fn steps(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    instance: &Instance,
    thread_placement: ThreadPlacement,
    float: Option<&CpuSet>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let (inner_path, float_path, vcpu_path) = (instance.tree.inner(), instance.tree.float(), instance.tree.vcpu());
    let nothing = InstanceCgroup::default();
    let inner = instance.inner.as_ref().unwrap_or(&nothing);
    if instance.inner.is_none() {
        steps.push(Step::Create(inner_path.clone()));
    }
    // It was frozen to leave, and does not leave any more.
    if inner.freeze {
        steps.push(Step::Write(instance.tree.freezer().clone(), File::Freeze, "0".into()));
    }
    // No process may be in the scope itself once it enables controllers for its children.
    steps.extend(
        instance
            .scope_procs
            .iter()
            .map(|pid| Step::MoveProcess(*pid, inner_path.clone())),
    );
    if !instance.is_in_place() {
        steps.extend(controllers(instance.scope(), &instance.scope_controllers));
    }
    if !instance.is_in_place() && !instance.record.mems.is_empty() && inner.mems != instance.record.mems {
        // Before any process of the container is in the tree: a later write would migrate its pages.
        steps.push(Step::Write(
            inner_path.clone(),
            File::Mems,
            instance.record.mems.to_string(),
        ));
    }
    for (path, leaf) in [(float_path, &inner.float), (vcpu_path, &inner.vcpu)] {
        if leaf.is_none() {
            steps.push(Step::Create(path.clone()));
        }
        // Before anything of the container is in it, which could make cgroups there. Their threads would be in none of the lists that are read.
        if leaf.as_ref().is_none_or(|leaf| leaf.max_descendants.is_some()) {
            steps.push(Step::Write(path.clone(), File::MaxDescendants, "0".into()));
        }
        if !leaf.as_ref().is_some_and(|leaf| leaf.threaded) {
            steps.push(Step::Write(path.clone(), File::Type, "threaded".into()));
        }
    }
    steps.extend(controllers(inner_path, &inner.controllers));

    let now = inner.float.as_ref().map(|leaf| &leaf.cpus);
    let now = now.cloned().unwrap_or_default();
    let list = float_list(snapshot, facts, policies, instance, float);
    let write = float_write(instance, list.as_ref());
    let changes = write.is_some();
    steps.extend(write);
    steps.extend(origin::confine(instance, list.as_ref().unwrap_or(&now), changes));
    // The kernel prints a period of its own after "max".
    let limit = inner.float.as_ref().map_or("", |leaf| leaf.cpu_max.as_str());
    let is_limited = |text: &str| !text.is_empty() && !text.starts_with("max");
    let want = policies.float_cpu_max.as_str();
    if limit != want && (is_limited(limit) || is_limited(want)) {
        steps.push(Step::Write(float_path.clone(), File::CpuMax, want.to_owned()));
    }

    // With an empty list float would run wherever the scope may, the exclusive CPUs included, so no process is moved in. Nor
    // before the scope has the limits of huge pages, which count from the first process on.
    let has_cpus = steps.iter().any(|step| matches!(step, Step::Write(_, File::Cpus, _))) || !now.is_empty();
    let ready = has_cpus && limits::huge_pages_are_limited(instance);
    if ready {
        steps.extend(in_place::gather(instance));
    }
    if ready && !instance.is_in_place() && takes_in(instance, thread_placement) {
        let anchor = instance.record.anchor.map(|anchor| anchor.id);
        for pid in instance.origin_procs.iter().flatten() {
            if Some(*pid) != anchor {
                // Reset, then move: a daemon that dies in between would never learn of a thread left pinned.
                steps.push(Step::ResetProcess(*pid));
                steps.push(Step::MoveProcess(*pid, float_path.clone()));
            }
        }
    }
    steps
}

/// The cgroups that the container made below those of the threads. Their threads are moved before.
pub(super) fn close(instance: &Instance) -> Vec<Step> {
    let leaves = [instance.float(), instance.vcpu()].into_iter().flatten();
    leaves
        .flat_map(|leaf| leaf.below.iter().cloned().map(Step::Remove))
        .collect()
}

/// Float's list, where it differs.
pub(super) fn float_step(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    instance: &Instance,
    float: Option<&CpuSet>,
) -> Option<Step> {
    float_write(
        instance,
        float_list(snapshot, facts, policies, instance, float).as_ref(),
    )
}

fn float_write(instance: &Instance, list: Option<&CpuSet>) -> Option<Step> {
    let now = instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let list = list.filter(|list| **list != now)?;
    Some(Step::Write(instance.tree.float().clone(), File::Cpus, list.to_string()))
}

/// The list that float is to have; `None` where it has none and none can be chosen.
fn float_list(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    instance: &Instance,
    float: Option<&CpuSet>,
) -> Option<CpuSet> {
    let now = instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let taken = || {
        let closed = facts.totals().closed_to(instance.record.qos());
        let closed = closed.union(facts.assigned()).union(&snapshot.leftover);
        if has_idle_cpus(instance) {
            closed.difference(&instance.record.exclusive)
        } else {
            closed
        }
    };
    let open = |cpus: &CpuSet| Some(cpus.difference(&taken())).filter(|cpus| !cpus.is_empty());
    // A float whose list has CPUs of instances only (another program wrote it) must leave them even while kubelet's file
    // cannot be used, or no partition of theirs can be valid: to the reserved CPUs, else to any online CPU that is free.
    let anywhere = || open(&policies.allocator.reserved).or_else(|| open(facts.online()));
    float
        .cloned()
        .or_else(|| open(&now))
        .or_else(|| anywhere().filter(|_| !now.is_empty()))
}

/// Whether processes of the origin belong in float: at registration; and while no partition keeps them off the vCPUs' CPUs.
fn takes_in(instance: &Instance, thread_placement: ThreadPlacement) -> bool {
    let pinned = instance.record.partition == Partition::Member && thread_placement == ThreadPlacement::Hold;
    instance.record.phase == Phase::Registered || pinned
}

fn controllers(cgroup: &CgroupPath, enabled: &BTreeSet<String>) -> Option<Step> {
    let missing = CONTROLLERS.iter().any(|name| !enabled.contains(*name));
    missing.then(|| {
        let text = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        Step::Write(cgroup.clone(), File::SubtreeControl, text)
    })
}
