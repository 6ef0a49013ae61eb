//! Processes back to the container's own cgroup; systemd removes the scope once it is empty.

use stelia_kernel::cgroup::File;
use stelia_kubelet::PodUid;

use super::{Step, in_place, origin, partition, tree};
use crate::{Instance, Snapshot, ThreadedCgroup};

pub(super) fn steps(instance: &Instance) -> Vec<Step> {
    let Some(inner) = &instance.inner else {
        return Vec::new();
    };
    if instance.origin_procs.is_none() {
        // The origin is gone: the processes stay in float until the container's PID namespace takes them along.
        let mut steps = partition::undo(instance);
        if inner.freeze {
            steps.push(Step::Write(instance.tree.freezer().clone(), File::Freeze, "0".into()));
        }
        return steps;
    }
    let mut steps = Vec::new();
    if let Some(vcpu) = &inner.vcpu {
        steps.extend(partition::give_up(instance, inner, vcpu));
    }
    if instance.is_container() {
        steps.extend(partition::unpin(instance));
        steps.push(Step::Unregister(instance.tree.outer().clone()));
        return steps;
    }
    let freeze = |value: &str| Step::Write(instance.tree.freezer().clone(), File::Freeze, value.into());
    // In place the processes are in the domain wherever they are: only the threads below count.
    let of_leaf = |leaf: &Option<ThreadedCgroup>| {
        leaf.as_ref()
            .is_some_and(|leaf| !(leaf.threads.is_empty() && leaf.below.is_empty()))
    };
    let is_populated = if instance.is_in_place() {
        of_leaf(&inner.float) || of_leaf(&inner.vcpu)
    } else {
        !inner.procs.is_empty()
    };
    match (inner.freeze, inner.frozen) {
        // A process that forks faster than the list is read would never be caught, so all are frozen first. A task that is
        // moved out of a frozen cgroup runs again.
        (false, _) if is_populated && !instance.does_not_freeze => {
            steps.push(freeze("1"));
            return steps;
        }
        (true, false) if !instance.does_not_freeze => return steps,
        (true, _) if instance.does_not_freeze => steps.push(freeze("0")),
        _ => {}
    }
    for pid in instance.scope_procs.iter().chain(&inner.procs).filter(|_| is_populated) {
        // A pinned thread would stay pinned in the origin; reset first, so that a daemon which dies in between leaves a process
        // that the next one finds here.
        steps.push(Step::ResetProcess(*pid));
        steps.push(Step::MoveProcess(*pid, instance.record.origin.clone()));
    }
    if is_populated {
        steps.extend(restored_affinities(instance));
    }
    steps.extend(origin::release(instance));
    steps.extend(tree::close(instance));
    if inner.vcpu.is_some() {
        steps.push(Step::Remove(instance.tree.vcpu().clone()));
    }
    if inner.float.is_some() {
        steps.push(Step::Remove(instance.tree.float().clone()));
    }
    if instance.is_in_place() {
        steps.extend(in_place::restore(instance, inner));
    } else {
        steps.push(Step::Remove(instance.tree.inner().clone()));
    }
    steps
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

/// Scopes that systemd did not remove, with the cgroups below them.
pub(super) fn abandoned(snapshot: &Snapshot) -> Vec<Step> {
    let mut steps = Vec::new();
    for scope in &snapshot.abandoned {
        let known = PodUid::from_scope(scope.name()).and_then(|pod| snapshot.instances.get(&pod));
        // An instance in place has no cgroup below the scope.
        let known = known.filter(|instance| !instance.is_in_place());
        if let Some((instance, inner)) = known.and_then(|instance| Some((instance, instance.inner.as_ref()?))) {
            steps.extend(inner.vcpu.iter().map(|_| Step::Remove(instance.tree.vcpu().clone())));
            steps.extend(inner.float.iter().map(|_| Step::Remove(instance.tree.float().clone())));
            steps.push(Step::Remove(instance.tree.inner().clone()));
        }
        steps.push(Step::Forget(scope.clone()));
    }
    steps
}
