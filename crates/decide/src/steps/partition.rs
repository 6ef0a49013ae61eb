//! `vcpu/`: its partition, the vCPU threads pinned in it and no others; the partition of a whole container; and how these are undone.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_model::record::VcpuThread;
use stelia_settings::Partition;

use super::{Step, exclusive, in_place};
use crate::{Derived, Instance, InstanceCgroup, ThreadedCgroup, VcpuNow};

/// The exclusive list of scope, `instance/` and `vcpu/` in this turn. A live partition changes by way of the union of old and
/// new, so that no thread is ever outside it.
pub(crate) fn growing_list(instance: &Instance) -> CpuSet {
    let wanted = &instance.record.exclusive;
    let has = instance.vcpu_lists().exclusive;
    if instance.vcpu().is_some() && !wanted.is_subset(&has) {
        wanted.union(&has)
    } else {
        wanted.clone()
    }
}

pub(super) fn hold(facts: &Derived, instance: &Instance) -> Vec<Step> {
    let mut steps = Vec::new();
    let (float_path, vcpu_path) = (instance.tree.float(), instance.tree.vcpu());
    let nothing = (InstanceCgroup::default(), ThreadedCgroup::default());
    let inner = instance.inner.as_ref().unwrap_or(&nothing.0);
    let vcpu = inner.vcpu.as_ref().unwrap_or(&nothing.1);
    let record = &instance.record;
    let partitioned = record.partition != Partition::Member;

    if instance.is_container() {
        return hold_container(facts, instance);
    }
    // A late thread (vhost, a helper of KVM) inherits cgroup and mask of the vCPU thread that made it.
    for tid in strangers(instance, vcpu) {
        steps.push(Step::ResetThread(tid));
        steps.push(Step::MoveThread(tid, float_path.clone()));
    }
    let want = growing_list(instance);
    // Growing: outer levels first.
    let grown = instance.vcpu_lists().cpus.union(&record.exclusive);
    if !record.exclusive.is_subset(&vcpu.cpus) {
        let first = if vcpu.cpus.is_empty() {
            &record.exclusive
        } else {
            &grown
        };
        steps.push(Step::Write(vcpu_path.clone(), File::Cpus, first.to_string()));
    }
    if partitioned {
        steps.extend(grow(instance, inner, vcpu, &want));
    }
    let online = facts.online();
    steps.extend(kind(facts, instance, vcpu));
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if let Some(now) = now {
            steps.extend(seat(instance, thread, now, online));
        }
    }
    // Shrinking: inner levels first, and only once no thread is pinned to the CPUs that go.
    if vcpu.cpus != record.exclusive && record.exclusive.is_subset(&vcpu.cpus) {
        steps.push(Step::Write(vcpu_path.clone(), File::Cpus, record.exclusive.to_string()));
    }
    if partitioned {
        steps.extend(shrink(instance, inner, vcpu, &want));
    } else {
        steps.extend(give_up(instance, inner, vcpu));
    }
    steps
}

/// The partition of a whole container. `cpuset.cpus` there, empty if steliad chose the CPUs, is not written: the partition has the CPUs of
/// the exclusive list, even if `cpuset.cpus` differs.
fn hold_container(facts: &Derived, instance: &Instance) -> Vec<Step> {
    let (Some(inner), Some(vcpu)) = (&instance.inner, instance.vcpu()) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    let want = growing_list(instance);
    let partitioned = instance.record.partition != Partition::Member;
    if partitioned {
        steps.extend(grow(instance, inner, vcpu, &want));
    }
    steps.extend(kind(facts, instance, vcpu));
    steps.extend(pins(facts, instance));
    if partitioned {
        steps.extend(shrink(instance, inner, vcpu, &want));
    } else {
        steps.extend(give_up(instance, inner, vcpu));
    }
    steps
}

/// Pin the vCPU threads of a container whose own cgroup is the partition, where nobody else pins them. Those without a CPU of their own stay
/// as they are.
fn pins(facts: &Derived, instance: &Instance) -> Vec<Step> {
    if instance.record.keeps_pins() {
        return Vec::new();
    }
    let threads = instance.record.vcpus.iter().zip(&instance.vcpus);
    let differs = |(thread, now): (&VcpuThread, &Option<VcpuNow>)| {
        let now = now.as_ref().filter(|now| instance.has(&now.cgroup))?;
        let cpu = thread.cpu.filter(|cpu| facts.online().contains(*cpu))?;
        let is_pinned = now.affinity.len() == 1 && now.affinity.contains(cpu);
        (!is_pinned).then_some(Step::Pin(thread.task.id, cpu))
    };
    threads.filter_map(differs).collect()
}

/// Let the vCPU threads that were pinned here run wherever their cpuset allows, before their container is deregistered.
pub(super) fn unpin(instance: &Instance) -> Vec<Step> {
    if instance.record.keeps_pins() {
        return Vec::new();
    }
    let threads = instance.record.vcpus.iter().zip(&instance.vcpus);
    let pinned = threads.filter(|(thread, now)| thread.cpu.is_some() && now.is_some());
    pinned.map(|(thread, _)| Step::ResetThread(thread.task.id)).collect()
}

/// Lists that grow, before the partition: the outer levels first.
fn grow(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup, want: &CpuSet) -> Vec<Step> {
    let mut steps: Vec<Step> = in_place::widen_pod(instance, want).into_iter().collect();
    let levels = levels(instance, inner, vcpu);
    let growing = levels.iter().filter(|(_, now)| !want.is_subset(now));
    steps.extend(growing.map(|(path, _)| exclusive(path, want)));
    steps
}

/// Lists that shrink, once no thread is pinned to the CPUs that go: the inner levels first.
fn shrink(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup, want: &CpuSet) -> Vec<Step> {
    let levels = levels(instance, inner, vcpu);
    let shrinking = levels
        .iter()
        .rev()
        .filter(|(_, now)| want.is_subset(now) && *now != want);
    let mut steps: Vec<Step> = shrinking.map(|(path, _)| exclusive(path, want)).collect();
    steps.extend(in_place::narrow_pod(instance, want));
    steps
}

/// The kind of the partition, where it differs.
fn kind(facts: &Derived, instance: &Instance, vcpu: &ThreadedCgroup) -> Vec<Step> {
    let record = &instance.record;
    // While none of its CPUs is online the kernel takes no partition.
    let possible = !record.exclusive.is_disjoint(facts.online());
    let known = record.partition != Partition::Member || !vcpu.partition.is_empty();
    if vcpu.partition == record.partition.name() || !possible || !known {
        return Vec::new();
    }
    let write = |partition: Partition| {
        let name = partition.name().to_owned();
        Step::Write(instance.tree.vcpu().clone(), File::Partition, name)
    };
    // A partition that became invalid stays so when only its kind is written again (seen on 6.12): it must be none first.
    let first = vcpu.partition.contains("invalid").then(|| write(Partition::Member));
    first.into_iter().chain([write(record.partition)]).collect()
}

/// The cgroups of the instance that have exclusive lists, outermost first, with their lists.
fn levels<'a>(
    instance: &'a Instance,
    inner: &'a InstanceCgroup,
    vcpu: &'a ThreadedCgroup,
) -> Vec<(&'a CgroupPath, &'a CpuSet)> {
    let tree = &instance.tree;
    let mut levels = vec![
        (tree.outer(), &instance.scope_exclusive),
        (tree.inner(), &inner.exclusive),
        (tree.vcpu(), &vcpu.exclusive),
    ];
    // In place they are one cgroup, unless the runtime put the processes one level below (crun). A whole container has one list.
    levels.dedup_by_key(|(path, _)| *path);
    levels
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

/// No partition, no exclusive CPUs, no thread in `vcpu/`.
pub(super) fn undo(instance: &Instance) -> Vec<Step> {
    let (Some(inner), Some(vcpu)) = (&instance.inner, instance.vcpu()) else {
        return Vec::new();
    };
    let mut steps = give_up(instance, inner, vcpu);
    for tid in &vcpu.threads {
        steps.push(Step::ResetThread(*tid));
        steps.push(Step::MoveThread(*tid, instance.tree.float().clone()));
    }
    steps
}

pub(super) fn give_up(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup) -> Vec<Step> {
    let mut steps = Vec::new();
    if !matches!(vcpu.partition.as_str(), "" | "member") {
        steps.push(Step::Write(
            instance.tree.vcpu().clone(),
            File::Partition,
            Partition::Member.name().into(),
        ));
    }
    for (path, now) in levels(instance, inner, vcpu).into_iter().rev() {
        if !now.is_empty() {
            steps.push(exclusive(path, &CpuSet::new()));
        }
    }
    steps.extend(in_place::narrow_pod(instance, &CpuSet::new()));
    steps
}
