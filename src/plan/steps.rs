//! From what is to what must be: the steps of one pass.

use std::collections::BTreeSet;

use super::{Inner, Instance, Leaf, Phase, Snapshot};
use crate::cgroup::{CgroupPath, File};
use crate::cpuset::CpuSet;
use crate::kubelet::PodUid;

/// One change to the system. Each is idempotent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make a cgroup.
    Create(CgroupPath),
    /// Write a cgroup file.
    Write(CgroupPath, File, String),
    /// Move a whole process.
    MoveProcess(i32, CgroupPath),
    /// Move one thread within its domain.
    MoveThread(i32, CgroupPath),
    /// Let every thread of a process run wherever its cpuset allows.
    ResetProcess(i32),
    /// Let a thread run wherever its cpuset allows.
    ResetThread(i32),
    /// Pin a thread to one CPU.
    Pin(i32, u32),
    /// Remove an empty cgroup.
    Remove(CgroupPath),
    /// Record that the instance (its scope is given) has reached a phase.
    Enter(CgroupPath, Phase),
}

/// A step and the instance it is for; `None` for what all share. When a step fails, the later ones of the same instance
/// are not taken in that pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The instance.
    pub pod: Option<PodUid>,
    /// What to do.
    pub step: Step,
}

/// The controllers `float/` and `vcpu/` need.
const CONTROLLERS: [&str; 2] = ["cpuset", "cpu"];

/// What the kernel prints for a partition in force.
const ISOLATED: &str = "isolated";

/// The CPUs everything but vCPU threads runs on: kubelet's pool less every instance's CPUs. `None` when kubelet's word
/// cannot be used or nothing is left: then each float keeps what it has.
pub fn float_cpus(snapshot: &Snapshot) -> Option<CpuSet> {
    let pool = snapshot.pool.as_ref().ok()?;
    let float = pool.difference(&owned(snapshot));
    (!float.is_empty()).then_some(float)
}

fn owned(snapshot: &Snapshot) -> CpuSet {
    snapshot
        .instances
        .iter()
        .flat_map(|instance| instance.record.exclusive.iter())
        .collect()
}

/// The steps that bring the system to what the records say; empty when it is.
pub fn plan(snapshot: &Snapshot) -> Vec<Planned> {
    let mut steps = Vec::new();
    let mut instances: Vec<&Instance> = snapshot
        .instances
        .iter()
        .filter(|instance| instance.populated)
        .collect();
    instances.sort_by(|a, b| a.record.pod.cmp(&b.record.pod));
    let float = float_cpus(snapshot);
    let owned = owned(snapshot);

    // Floats first: nothing of an instance may stand on CPUs that are about to become another's partition.
    let mut per_instance: Vec<(PodUid, Vec<Step>)> = Vec::new();
    for instance in &instances {
        if instance.record.phase != Phase::Leaving {
            per_instance.push((
                instance.record.pod.clone(),
                tree_steps(instance, float.as_ref(), &owned),
            ));
        }
    }
    flush(&mut steps, per_instance);

    let wanted: CpuSet = instances
        .iter()
        .filter(|instance| instance.record.phase.has_vcpus())
        .flat_map(|instance| instance.record.exclusive.iter())
        .collect();
    // While a scope still holds its list the slice must cover it: to grow, outer levels first; to shrink, inner first.
    let held: CpuSet = snapshot
        .instances
        .iter()
        .flat_map(|instance| instance.scope_exclusive.iter())
        .collect();
    let mut slice = snapshot.slice_exclusive.clone().unwrap_or_default();
    if !wanted.is_subset(&slice) {
        slice = wanted.union(&held);
        steps.push(Planned {
            pod: None,
            step: exclusive(&CgroupPath::slice(), &slice),
        });
    }

    let mut per_instance = Vec::new();
    for instance in &instances {
        let list = match instance.record.phase {
            Phase::Leaving => leave_steps(instance),
            phase if phase.has_vcpus() => isolate_steps(instance),
            _ => undo_partition(instance),
        };
        per_instance.push((instance.record.pod.clone(), list));
    }
    flush(&mut steps, per_instance);

    // A scope that died took its list along, but not its share of the slice's.
    let dead: CpuSet = snapshot
        .instances
        .iter()
        .filter(|instance| !instance.populated)
        .flat_map(|instance| instance.scope_exclusive.iter())
        .collect();
    let keep = wanted.union(&dead);
    if slice != keep {
        steps.push(Planned {
            pod: None,
            step: exclusive(&CgroupPath::slice(), &keep),
        });
    }

    // An instance for which nothing is left to do has reached the next phase.
    for instance in &instances {
        let pod = &instance.record.pod;
        let next = match instance.record.phase {
            Phase::Registered if has_float_cpus(instance) => Phase::Floating,
            Phase::Attaching => Phase::Isolated,
            _ => continue,
        };
        let busy = steps
            .iter()
            .any(|planned| planned.pod.as_ref() == Some(pod) || planned.pod.is_none());
        if !busy {
            steps.push(Planned {
                pod: Some(pod.clone()),
                step: Step::Enter(instance.scope.clone(), next),
            });
        }
    }
    steps
}

fn has_float_cpus(instance: &Instance) -> bool {
    let float = instance.inner.as_ref().and_then(|inner| inner.float.as_ref());
    float.is_some_and(|float| !float.cpus.is_empty())
}

fn flush(steps: &mut Vec<Planned>, per_instance: Vec<(PodUid, Vec<Step>)>) {
    for (pod, list) in per_instance {
        steps.extend(list.into_iter().map(|step| Planned {
            pod: Some(pod.clone()),
            step,
        }));
    }
}

fn exclusive(cgroup: &CgroupPath, cpus: &CpuSet) -> Step {
    Step::Write(cgroup.clone(), File::CpusExclusive, cpus.to_string())
}

fn controllers(cgroup: &CgroupPath, enabled: &BTreeSet<String>) -> Option<Step> {
    let missing = CONTROLLERS.iter().any(|name| !enabled.contains(*name));
    missing.then(|| {
        let text = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        Step::Write(cgroup.clone(), File::SubtreeControl, text)
    })
}

/// `instance/`, `float/` and `vcpu/` as they must be, float's CPUs, and at registration the container's processes in it.
fn tree_steps(instance: &Instance, float: Option<&CpuSet>, owned: &CpuSet) -> Vec<Step> {
    let mut steps = Vec::new();
    let inner_path = instance.scope.child("instance");
    let float_path = inner_path.child("float");
    let vcpu_path = inner_path.child("vcpu");
    let nothing = Inner::default();
    let inner = instance.inner.as_ref().unwrap_or(&nothing);
    if instance.inner.is_none() {
        steps.push(Step::Create(inner_path.clone()));
    }
    // No process may be in the scope itself once it enables controllers for its children.
    steps.extend(
        instance
            .scope_procs
            .iter()
            .map(|pid| Step::MoveProcess(*pid, inner_path.clone())),
    );
    steps.extend(controllers(&instance.scope, &instance.scope_controllers));
    if !instance.record.mems.is_empty() && inner.mems != instance.record.mems {
        // Before any process of the container is in the tree: a later write would migrate its pages.
        steps.push(Step::Write(
            inner_path.clone(),
            File::Mems,
            instance.record.mems.clone(),
        ));
    }
    for (path, leaf) in [(&float_path, &inner.float), (&vcpu_path, &inner.vcpu)] {
        if leaf.is_none() {
            steps.push(Step::Create(path.clone()));
        }
        if !leaf.as_ref().is_some_and(|leaf| leaf.threaded) {
            steps.push(Step::Write(path.clone(), File::Type, "threaded".into()));
        }
    }
    steps.extend(controllers(&inner_path, &inner.controllers));

    let now = inner.float.as_ref().map(|leaf| leaf.cpus.clone()).unwrap_or_default();
    let kept = now.difference(owned);
    let want = float.cloned().or((!kept.is_empty()).then_some(kept));
    if let Some(want) = want
        && want != now
    {
        steps.push(Step::Write(float_path.clone(), File::Cpus, want.to_string()));
    }

    // Without CPUs of its own float would run wherever the scope may, the exclusive CPUs included: move nobody in.
    let ready = steps.iter().any(|step| matches!(step, Step::Write(_, File::Cpus, _))) || !now.is_empty();
    if instance.record.phase == Phase::Registered && ready {
        for pid in instance.origin_procs.iter().flatten() {
            if *pid != instance.record.anchor.id {
                // Reset, then move: cut off in between, the next pass finds it here and does both again.
                steps.push(Step::ResetProcess(*pid));
                steps.push(Step::MoveProcess(*pid, float_path.clone()));
            }
        }
    }
    steps
}

/// The vCPU threads in `vcpu/`, pinned, the partition in force, nobody else there.
fn isolate_steps(instance: &Instance) -> Vec<Step> {
    let mut steps = Vec::new();
    let inner_path = instance.scope.child("instance");
    let vcpu_path = inner_path.child("vcpu");
    let float_path = inner_path.child("float");
    let nothing = (Inner::default(), Leaf::default());
    let inner = instance.inner.as_ref().unwrap_or(&nothing.0);
    let vcpu = inner.vcpu.as_ref().unwrap_or(&nothing.1);
    let cpus = &instance.record.exclusive;

    // A late thread (vhost, a helper of KVM) inherits cgroup and mask of the vCPU thread that made it.
    for tid in strangers(instance, vcpu) {
        steps.push(Step::ResetThread(tid));
        steps.push(Step::MoveThread(tid, float_path.clone()));
    }
    if vcpu.cpus != *cpus {
        steps.push(Step::Write(vcpu_path.clone(), File::Cpus, cpus.to_string()));
    }
    for (path, now) in [
        (&instance.scope, &instance.scope_exclusive),
        (&inner_path, &inner.exclusive),
        (&vcpu_path, &vcpu.exclusive),
    ] {
        if now != cpus {
            steps.push(exclusive(path, cpus));
        }
    }
    if vcpu.partition != ISOLATED {
        steps.push(Step::Write(vcpu_path.clone(), File::Partition, ISOLATED.into()));
    }
    for (thread, now) in instance.record.vcpus.iter().zip(&instance.vcpus) {
        let Some(now) = now else { continue };
        let moved = now.cgroup != vcpu_path;
        if moved {
            steps.push(Step::MoveThread(thread.task.id, vcpu_path.clone()));
        }
        // Move, then pin: a mask outside the cpuset is EINVAL.
        if moved || !(now.affinity.len() == 1 && now.affinity.contains(thread.cpu)) {
            steps.push(Step::Pin(thread.task.id, thread.cpu));
        }
    }
    steps
}

fn strangers(instance: &Instance, vcpu: &Leaf) -> Vec<i32> {
    let live = |tid: &i32| {
        instance.record.phase.has_vcpus()
            && instance
                .record
                .vcpus
                .iter()
                .zip(&instance.vcpus)
                .any(|(thread, now)| thread.task.id == *tid && now.is_some())
    };
    vcpu.threads.iter().copied().filter(|tid| !live(tid)).collect()
}

/// No partition, no exclusive CPUs, nobody in `vcpu/`.
fn undo_partition(instance: &Instance) -> Vec<Step> {
    let Some(inner) = &instance.inner else {
        return Vec::new();
    };
    let Some(vcpu) = &inner.vcpu else { return Vec::new() };
    let mut steps = give_up_partition(instance, inner, vcpu);
    let float_path = instance.scope.child("instance").child("float");
    for tid in strangers(instance, vcpu) {
        steps.push(Step::ResetThread(tid));
        steps.push(Step::MoveThread(tid, float_path.clone()));
    }
    steps
}

fn give_up_partition(instance: &Instance, inner: &Inner, vcpu: &Leaf) -> Vec<Step> {
    let inner_path = instance.scope.child("instance");
    let vcpu_path = inner_path.child("vcpu");
    let mut steps = Vec::new();
    if !matches!(vcpu.partition.as_str(), "" | "member") {
        steps.push(Step::Write(vcpu_path.clone(), File::Partition, "member".into()));
    }
    for (path, now) in [
        (&vcpu_path, &vcpu.exclusive),
        (&inner_path, &inner.exclusive),
        (&instance.scope, &instance.scope_exclusive),
    ] {
        if !now.is_empty() {
            steps.push(exclusive(path, &CpuSet::new()));
        }
    }
    steps
}

/// Everything back where it came from; the emptied scope is removed by systemd.
fn leave_steps(instance: &Instance) -> Vec<Step> {
    let Some(inner) = &instance.inner else {
        return Vec::new();
    };
    if instance.origin_procs.is_none() {
        // The origin is gone: the processes stay in float until the container's PID namespace takes them along.
        return undo_partition(instance);
    }
    let mut steps = Vec::new();
    if let Some(vcpu) = &inner.vcpu {
        steps.extend(give_up_partition(instance, inner, vcpu));
    }
    for pid in instance.scope_procs.iter().chain(&inner.procs) {
        // A pinned thread would stay pinned in the origin, for good when the daemon ended in between: reset, then move.
        steps.push(Step::ResetProcess(*pid));
        steps.push(Step::MoveProcess(*pid, instance.record.origin.clone()));
    }
    let inner_path = instance.scope.child("instance");
    if inner.vcpu.is_some() {
        steps.push(Step::Remove(inner_path.child("vcpu")));
    }
    if inner.float.is_some() {
        steps.push(Step::Remove(inner_path.child("float")));
    }
    steps.push(Step::Remove(inner_path));
    steps
}

/// Why an instance's promise is not whole; empty on the good day.
pub fn degraded(snapshot: &Snapshot, instance: &Instance) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Err(reason) = &snapshot.pool {
        reasons.push(format!(
            "kubelet's state cannot be used, float keeps its CPUs: {reason}"
        ));
    } else if float_cpus(snapshot).is_none() {
        reasons.push("kubelet's shared pool is empty, float keeps its CPUs".to_owned());
    }
    if instance.origin_procs.is_none() {
        reasons.push(format!("the container's own cgroup {} is gone", instance.record.origin));
    } else if !instance.anchor_lives {
        reasons.push(format!("the anchor (process {}) ended", instance.record.anchor.id));
    }
    if instance.record.phase.has_vcpus() {
        for (thread, now) in instance.record.vcpus.iter().zip(&instance.vcpus) {
            if now.is_none() {
                reasons.push(format!("the thread {} of vCPU {} ended", thread.task.id, thread.index));
            }
        }
    }
    if instance.record.phase == Phase::Isolated {
        let partition = instance
            .inner
            .as_ref()
            .and_then(|inner| inner.vcpu.as_ref())
            .map(|vcpu| &vcpu.partition);
        if partition.is_none_or(|partition| partition != ISOLATED) {
            let text = partition.map_or("absent", String::as_str);
            reasons.push(format!("the partition reads {text:?} instead of {ISOLATED:?}"));
        }
    }
    reasons
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
