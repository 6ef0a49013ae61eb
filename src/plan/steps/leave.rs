//! Everything back where it came from; the emptied scope is removed by systemd.

use super::{Step, partition};
use crate::plan::{Instance, Snapshot};

pub(super) fn steps(instance: &Instance) -> Vec<Step> {
    let Some(inner) = &instance.inner else {
        return Vec::new();
    };
    if instance.origin_procs.is_none() {
        // The origin is gone: the processes stay in float until the container's PID namespace takes them along.
        return partition::undo(instance);
    }
    let mut steps = Vec::new();
    if let Some(vcpu) = &inner.vcpu {
        steps.extend(partition::give_up(instance, inner, vcpu));
    }
    for pid in instance.scope_procs.iter().chain(&inner.procs) {
        // A pinned thread would stay pinned in the origin; reset first, as whoever dies in between leaves it to be found.
        steps.push(Step::ResetProcess(*pid));
        steps.push(Step::MoveProcess(*pid, instance.record.origin.clone()));
    }
    if inner.vcpu.is_some() {
        steps.push(Step::Remove(instance.vcpu_path()));
    }
    if inner.float.is_some() {
        steps.push(Step::Remove(instance.float_path()));
    }
    steps.push(Step::Remove(instance.inner_path()));
    steps
}

/// Scopes that systemd leaves behind, with what is still in them.
pub(super) fn abandoned(snapshot: &Snapshot) -> Vec<Step> {
    let mut steps = Vec::new();
    for scope in &snapshot.abandoned {
        let known = snapshot.instances.iter().find(|instance| instance.scope == *scope);
        if let Some((instance, inner)) = known.and_then(|instance| Some((instance, instance.inner.as_ref()?))) {
            steps.extend(inner.vcpu.iter().map(|_| Step::Remove(instance.vcpu_path())));
            steps.extend(inner.float.iter().map(|_| Step::Remove(instance.float_path())));
            steps.push(Step::Remove(instance.inner_path()));
        }
        steps.push(Step::Forget(scope.clone()));
    }
    steps
}
