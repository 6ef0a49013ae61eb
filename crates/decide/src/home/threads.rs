//! Two threaded cgroups, `vcpu/` for the vCPU threads and `float/` for all others, in a scope or below the container's own cgroup.

use std::collections::BTreeSet;

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_koordinator::allocator::Qos;
use stelia_model::FloatReason;
use stelia_model::record::VcpuThread;
use stelia_settings::FloatPolicy;

use crate::float::{Shared, choose};
use crate::steps::{Inputs, Step, limits, partition};
use crate::{Derived, Instance, InstanceCgroup, ThreadedCgroup, VcpuNow, pod_pool};

/// The controllers `float/` and `vcpu/` need.
pub(super) const CONTROLLERS: [&str; 2] = ["cpuset", "cpu"];

/// The CPUs an instance floats on, and what decided. `None` when kubelet's file cannot be used or no CPU is free: then the
/// float keeps its list.
pub(crate) fn float_cpus(inputs: &Inputs<'_>, instance: &Instance) -> Option<(CpuSet, FloatReason)> {
    let Inputs {
        snapshot,
        facts,
        policies,
    } = inputs;
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

/// The domain of the two cgroups.
pub(super) fn make_domain(instance: &Instance) -> Vec<Step> {
    let mut steps = Vec::new();
    if instance.inner.is_none() {
        steps.push(Step::Create(instance.tree.inner().clone()));
    }
    // It was frozen to leave, and does not leave any more.
    if instance.inner.as_ref().is_some_and(|inner| inner.freeze) {
        steps.push(freeze(instance, false));
    }
    steps
}

/// The two cgroups made and float's CPUs set.
pub(super) struct Leaves {
    pub(super) steps: Vec<Step>,
    /// Whether processes may be moved to float. With an empty list they would run wherever the scope may, the exclusive CPUs
    /// included. Nor before the scope has the limits of huge pages, which count from the first process on.
    pub(super) may_be_filled: bool,
}

/// The two cgroups, float's CPUs, and threads that belong in float.
pub(super) fn make_leaves(inputs: &Inputs<'_>, instance: &Instance, float: Option<&CpuSet>) -> Leaves {
    let (inner_path, float_path, vcpu_path) = (instance.tree.inner(), instance.tree.float(), instance.tree.vcpu());
    let nothing = InstanceCgroup::default();
    let inner = instance.inner.as_ref().unwrap_or(&nothing);
    let mut steps = Vec::new();
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
    steps.extend(enable_controllers(inner_path, &inner.controllers));

    let now = inner.float.as_ref().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let list = float_list(inputs, instance, float);
    let write = float_write(instance, list.as_ref());
    let changes = write.is_some();
    steps.extend(write);
    steps.extend(confine(instance, list.as_ref().unwrap_or(&now), changes));
    // The kernel prints a period of its own after "max".
    let limit = inner.float.as_ref().map_or("", |leaf| leaf.cpu_max.as_str());
    let is_limited = |text: &str| !text.is_empty() && !text.starts_with("max");
    let want = inputs.policies.float_cpu_max.as_str();
    if limit != want && (is_limited(limit) || is_limited(want)) {
        steps.push(Step::Write(float_path.clone(), File::CpuMax, want.to_owned()));
    }
    let may_be_filled = (changes || !now.is_empty()) && limits::huge_pages_are_limited(instance);
    if may_be_filled {
        steps.extend(gather(instance));
    }
    Leaves { steps, may_be_filled }
}

/// Keep these threads on float's CPUs. While their cpuset has none of float's CPUs nothing is done: the kernel would refuse such an
/// affinity, and the threads are on the container's own CPUs.
///
/// `changes`: float's list is written now, and what the kernel gives the container changes with it.
fn confine(instance: &Instance, float: &CpuSet, changes: bool) -> Vec<Step> {
    let within = float.intersection(&instance.origin_effective);
    let differs = |affinity: &CpuSet| !within.is_empty() && (changes || *affinity != within);
    let threads = instance.origin_threads.iter();
    threads
        .filter(|remaining| differs(&remaining.affinity))
        .map(|remaining| Step::Confine(remaining.thread, float.clone()))
        .collect()
}

/// Threads beside `float` and `vcpu`, moved to float: what is exec'd into the container is there, and would run on every CPU
/// that is in no partition, another pod's exclusive ones included. So would threads in cgroups that the container made.
///
/// At registration whole processes are moved. Later a process may have threads in `vcpu` that must stay.
fn gather(instance: &Instance) -> Vec<Step> {
    let float = instance.tree.float();
    let mut steps = Vec::new();
    if instance.record.vcpus.is_empty() {
        let mut processes: Vec<i32> = instance.strays.iter().map(|stray| stray.process).collect();
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            steps.push(Step::ResetProcess(process));
            steps.push(Step::MoveProcess(process, float.clone()));
        }
        return steps;
    }
    let pinned = |thread: i32| instance.record.vcpus.iter().any(|vcpu| vcpu.task.id == thread);
    for stray in instance.strays.iter().filter(|stray| !pinned(stray.thread)) {
        steps.push(Step::ResetThread(stray.thread));
        steps.push(Step::MoveThread(stray.thread, float.clone()));
    }
    steps
}

/// The cgroups that the container made below those of the threads. Their threads are moved before.
pub(crate) fn remove_below(instance: &Instance) -> Vec<Step> {
    let leaves = [instance.float(), instance.vcpu()].into_iter().flatten();
    leaves
        .flat_map(|leaf| leaf.below.iter().cloned().map(Step::Remove))
        .collect()
}

/// Float's list, where it differs.
pub(crate) fn set_float(inputs: &Inputs<'_>, instance: &Instance, float: Option<&CpuSet>) -> Option<Step> {
    float_write(instance, float_list(inputs, instance, float).as_ref())
}

/// The CPUs that float is to have, where it has others that it must leave.
pub(crate) fn float_must_leave(inputs: &Inputs<'_>, instance: &Instance, float: Option<&CpuSet>) -> Option<CpuSet> {
    let now = &instance.float()?.cpus;
    float_list(inputs, instance, float).filter(|list| !now.is_subset(list))
}

fn float_write(instance: &Instance, list: Option<&CpuSet>) -> Option<Step> {
    let now = instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let list = list.filter(|list| **list != now)?;
    Some(Step::Write(instance.tree.float().clone(), File::Cpus, list.to_string()))
}

/// The list that float is to have; `None` where it has none and none can be chosen.
fn float_list(inputs: &Inputs<'_>, instance: &Instance, float: Option<&CpuSet>) -> Option<CpuSet> {
    let Inputs {
        snapshot,
        facts,
        policies,
    } = inputs;
    let now = instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let of_others = || {
        let closed = facts.totals().closed_to(instance.record.qos());
        let closed = closed.union(facts.assigned()).union(&snapshot.leftover);
        if instance.behaviour().has_idle_cpus(instance) {
            closed.difference(&instance.record.exclusive)
        } else {
            closed
        }
    };
    let open = |cpus: &CpuSet| Some(cpus.difference(&of_others())).filter(|cpus| !cpus.is_empty());
    // A float whose list has CPUs of instances only (another program wrote it) must leave them even while kubelet's file
    // cannot be used, or no partition of theirs can be valid: to the reserved CPUs, else to any online CPU that is free.
    let anywhere = || open(&policies.allocator.reserved).or_else(|| open(facts.online()));
    // Where no CPU is free, it shares those that are kept for evicted VMs rather than run on another pod's.
    let kept_idle = || {
        let others = facts.assigned().union(&snapshot.leftover);
        let idle = facts
            .totals()
            .kept_idle()
            .intersection(facts.online())
            .difference(&others);
        Some(idle).filter(|idle| snapshot.kubelet.is_ok() && !idle.is_empty())
    };
    float
        .cloned()
        .or_else(|| open(&now))
        .or_else(|| anywhere().or_else(kept_idle).filter(|_| !now.is_empty()))
}

/// Enable the controllers of the two cgroups for the children of a cgroup, where one is missing.
pub(super) fn enable_controllers(cgroup: &CgroupPath, enabled: &BTreeSet<String>) -> Option<Step> {
    let missing = CONTROLLERS.iter().any(|name| !enabled.contains(*name));
    missing.then(|| {
        let text = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        Step::Write(cgroup.clone(), File::SubtreeControl, text)
    })
}

/// The partition, the vCPU threads pinned in it, and no other thread in `vcpu/`.
pub(super) fn hold(facts: &Derived, instance: &Instance) -> Vec<Step> {
    let mut steps = Vec::new();
    let nothing = (InstanceCgroup::default(), ThreadedCgroup::default());
    let inner = instance.inner.as_ref().unwrap_or(&nothing.0);
    let vcpu = inner.vcpu.as_ref().unwrap_or(&nothing.1);
    let (record, vcpu_path) = (&instance.record, instance.tree.vcpu());
    // A late thread (vhost, a helper of KVM) inherits cgroup and mask of the vCPU thread that made it.
    for tid in strangers(instance, vcpu) {
        steps.push(Step::ResetThread(tid));
        steps.push(Step::MoveThread(tid, instance.tree.float().clone()));
    }
    // Growing: outer levels first.
    let grown = instance
        .behaviour()
        .lists_in_force(instance)
        .cpus
        .union(&record.exclusive);
    if !record.exclusive.is_subset(&vcpu.cpus) {
        let first = if vcpu.cpus.is_empty() {
            &record.exclusive
        } else {
            &grown
        };
        steps.push(Step::Write(vcpu_path.clone(), File::Cpus, first.to_string()));
    }
    steps.extend(partition::grow(instance, inner, vcpu));
    steps.extend(partition::set_kind(facts, instance, vcpu));
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if let Some(now) = now {
            steps.extend(seat(instance, thread, now, facts.online()));
        }
    }
    // Shrinking: inner levels first, and only once no thread is pinned to the CPUs that go.
    if vcpu.cpus != record.exclusive && record.exclusive.is_subset(&vcpu.cpus) {
        steps.push(Step::Write(vcpu_path.clone(), File::Cpus, record.exclusive.to_string()));
    }
    steps.extend(partition::shrink(instance, inner, vcpu));
    steps
}

/// Move one vCPU thread to `vcpu/` and pin it.
fn seat(instance: &Instance, thread: &VcpuThread, now: &VcpuNow, online: &CpuSet) -> Vec<Step> {
    let mut steps = Vec::new();
    let vcpu_path = instance.tree.vcpu();
    // Another program moved it out of the container: it left the instance, whatever the record says.
    if !instance.has(&now.cgroup) {
        return steps;
    }
    if !now.cgroup.is_within(instance.tree.inner()) {
        // In the container's own cgroup. One thread cannot cross into another threaded domain: its process must.
        return vec![Step::MoveProcess(now.process, instance.tree.float().clone())];
    }
    let moved = now.cgroup != *vcpu_path;
    if moved {
        steps.push(Step::MoveThread(thread.task.id, vcpu_path.clone()));
    }
    let within = instance.record.exclusive.intersection(online);
    match thread.cpu {
        // Move, then pin: a mask outside the cpuset is EINVAL. No thread can be pinned to an offline CPU.
        Some(cpu) if online.contains(cpu) => {
            if moved || !(now.affinity.len() == 1 && now.affinity.contains(cpu)) {
                steps.push(Step::Pin(thread.task.id, cpu));
            }
        }
        Some(_) => {}
        None => {
            if moved || now.affinity != within {
                steps.push(Step::ResetThread(thread.task.id));
            }
        }
    }
    steps
}

/// Threads in `vcpu/` that are not vCPU threads.
fn strangers(instance: &Instance, vcpu: &ThreadedCgroup) -> Vec<i32> {
    let live = |tid: &i32| {
        let recorded = instance.record.vcpus.iter().zip(&instance.vcpus);
        recorded
            .filter(|(_, now)| now.is_some())
            .any(|(thread, _)| thread.task.id == *tid)
    };
    vcpu.threads.iter().copied().filter(|tid| !live(tid)).collect()
}

/// How an instance of a home ends.
pub(super) struct Ending {
    /// Whether tasks are in its cgroups, which must leave them.
    pub(super) is_populated: bool,
    /// Once they have left.
    pub(super) released: Vec<Step>,
    /// Once the two cgroups are gone.
    pub(super) last: Vec<Step>,
}

/// Processes back to the container's own cgroup; systemd removes a scope once it is empty.
pub(super) fn leave(instance: &Instance, inner: &InstanceCgroup, ending: Ending) -> Vec<Step> {
    if instance.origin_procs.is_none() {
        // The origin is gone: the processes stay in float until the container's PID namespace takes them along.
        let mut steps = partition::undo(instance);
        steps.extend(inner.freeze.then(|| freeze(instance, false)));
        return steps;
    }
    let mut steps = Vec::new();
    if let Some(vcpu) = &inner.vcpu {
        steps.extend(partition::give_up(instance, inner, vcpu));
    }
    let Ending {
        is_populated,
        released,
        last,
    } = ending;
    match (inner.freeze, inner.frozen) {
        // A process that forks faster than the list is read would never be caught, so all are frozen first. A task that is
        // moved out of a frozen cgroup runs again.
        (false, _) if is_populated && !instance.does_not_freeze => {
            steps.push(freeze(instance, true));
            return steps;
        }
        (true, false) if !instance.does_not_freeze => return steps,
        (true, _) if instance.does_not_freeze => steps.push(freeze(instance, false)),
        _ => {}
    }
    if is_populated {
        for pid in instance.scope_procs.iter().chain(&inner.procs) {
            // A pinned thread would stay pinned in the origin; reset first, so that a daemon which dies in between leaves a process
            // that the next one finds here.
            steps.push(Step::ResetProcess(*pid));
            steps.push(Step::MoveProcess(*pid, instance.record.origin.clone()));
        }
        steps.extend(restored_affinities(instance));
    }
    steps.extend(released);
    steps.extend(remove_below(instance));
    steps.extend(inner.vcpu.iter().map(|_| Step::Remove(instance.tree.vcpu().clone())));
    steps.extend(inner.float.iter().map(|_| Step::Remove(instance.tree.float().clone())));
    steps.extend(last);
    steps
}

fn freeze(instance: &Instance, frozen: bool) -> Step {
    let value = u8::from(frozen).to_string();
    Step::Write(instance.tree.freezer().clone(), File::Freeze, value)
}

/// vCPUs that ran where others had pinned them stay pinned there.
fn restored_affinities(instance: &Instance) -> Vec<Step> {
    let record = &instance.record;
    if !record.keeps_pins() {
        return Vec::new();
    }
    let living = record
        .vcpus
        .iter()
        .zip(&instance.vcpus)
        .filter(|(_, now)| now.as_ref().is_some_and(|now| instance.has(&now.cgroup)));
    living
        .filter_map(|(thread, _)| Some(Step::Pin(thread.task.id, thread.cpu?)))
        .collect()
}
