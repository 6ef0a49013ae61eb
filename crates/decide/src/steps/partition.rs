//! The partition of an instance, the exclusive lists that it needs, and how these are undone.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_model::record::Phase;
use stelia_settings::Partition;

use super::{Step, set_exclusive};
use crate::{Derived, Instance, InstanceCgroup, Snapshot, ThreadedCgroup};

/// The exclusive list of scope, `instance/` and `vcpu/` in this turn. A live partition changes by way of the union of old and
/// new, so that no thread is ever outside it.
pub(crate) fn growing_list(instance: &Instance) -> CpuSet {
    let wanted = &instance.record.exclusive;
    let has = instance.behaviour().lists_in_force(instance).exclusive;
    if instance.vcpu().is_some() && !wanted.is_subset(&has) {
        wanted.union(&has)
    } else {
        wanted.clone()
    }
}

/// The list above all instances, where it lacks CPUs that this one's partition is to have. Those that it is to leave are no reason: another
/// program may have them.
pub(crate) fn extend_above(snapshot: &Snapshot, instance: &Instance) -> Option<Step> {
    let (above, want) = (instance.above(), &instance.record.exclusive);
    let lacks = instance.record.has_partition() && !want.is_empty() && !above.has(snapshot, want);
    if !lacks {
        return None;
    }
    Some(Step::Extend(above.path(snapshot)?, want.clone()))
}

impl Instance {
    /// Whether a step of this instance is to come only after the list above has all of its CPUs. A valid partition gets none that come into the
    /// lists above it later, until its own list is written otherwise and back (kernel: `update_cpumasks_hier`): so these go from above to below, and
    /// no partition is made that would have a part of them.
    pub fn needs_list_above(&self, step: &Step) -> bool {
        match step {
            Step::Extend(..) => true,
            Step::Write(path, File::CpusExclusive, list) => {
                let (nothing, no_leaf) = (InstanceCgroup::default(), ThreadedCgroup::default());
                let (inner, vcpu) = (self.inner.as_ref().unwrap_or(&nothing), self.vcpu().unwrap_or(&no_leaf));
                let lists = exclusive_lists(self, inner, vcpu);
                let now = lists.into_iter().find(|(of, _)| *of == path).map(|(_, now)| now);
                let has_all = |list: CpuSet| now.is_some_and(|now| list.is_subset(now));
                !list.is_empty() && !list.parse().is_ok_and(has_all)
            }
            Step::Write(_, File::Partition, kind) => {
                let is_valid =
                    |vcpu: &ThreadedCgroup| Partition::parse(&vcpu.partition).is_some_and(Partition::is_partition);
                let has_lost_it =
                    self.record.phase == Phase::Isolated && self.vcpu().is_some_and(|vcpu| !is_valid(vcpu));
                has_lost_it && kind != Partition::Member.name()
            }
            _ => false,
        }
    }
}

/// Lists that grow, before the partition is made: the outer levels first.
pub(crate) fn grow(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup) -> Vec<Step> {
    if !instance.record.has_partition() {
        return Vec::new();
    }
    let want = growing_list(instance);
    let pod = instance.pod_level.as_ref().filter(|level| !level.has(&want));
    let pod = pod.map(|level| Step::Extend(level.path.clone(), want.clone()));
    let lists = exclusive_lists(instance, inner, vcpu);
    let growing = lists.iter().filter(|(_, now)| !want.is_subset(now));
    pod.into_iter()
        .chain(growing.map(|(path, _)| set_exclusive(path, &want)))
        .collect()
}

/// Lists that shrink, once no thread is pinned to the CPUs that go: the inner levels first. All of them where there is to be no partition.
pub(crate) fn shrink(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup) -> Vec<Step> {
    if !instance.record.has_partition() {
        return give_up(instance, inner, vcpu);
    }
    let want = growing_list(instance);
    let lists = exclusive_lists(instance, inner, vcpu);
    let shrinking = lists
        .iter()
        .rev()
        .filter(|(_, now)| want.is_subset(now) && **now != want);
    let mut steps: Vec<Step> = shrinking.map(|(path, _)| set_exclusive(path, &want)).collect();
    steps.extend(narrow_pod(instance, &want));
    steps
}

/// The list of the pod in place, after the container's has shrunk.
fn narrow_pod(instance: &Instance, want: &CpuSet) -> Option<Step> {
    let level = instance.pod_level.as_ref()?;
    let wider = level.ours != *want && want.is_subset(&level.ours);
    wider.then(|| Step::SetOurs(level.path.clone(), want.clone()))
}

/// The kind of the partition, where it differs.
pub(crate) fn set_kind(facts: &Derived, instance: &Instance, vcpu: &ThreadedCgroup) -> Vec<Step> {
    let record = &instance.record;
    // While none of its CPUs is online the kernel makes no partition.
    let possible = !record.exclusive.is_disjoint(facts.online());
    let known = record.has_partition() || !vcpu.partition.is_empty();
    if vcpu.partition == record.partition.name() || !possible || !known {
        return Vec::new();
    }
    // A partition that became invalid stays so when only its kind is written again (seen on 6.12): it must be none first.
    let first = vcpu.partition.contains("invalid").then_some(Partition::Member);
    let kinds = first.into_iter().chain([record.partition]);
    kinds.map(|kind| become_kind(instance, kind)).collect()
}

fn become_kind(instance: &Instance, kind: Partition) -> Step {
    Step::Write(instance.tree.vcpu().clone(), File::Partition, kind.name().to_owned())
}

/// The cgroups of the instance that have exclusive lists, outermost first, with their lists.
fn exclusive_lists<'a>(
    instance: &'a Instance,
    inner: &'a InstanceCgroup,
    vcpu: &'a ThreadedCgroup,
) -> Vec<(&'a CgroupPath, &'a CpuSet)> {
    let tree = &instance.tree;
    let mut lists = vec![
        (tree.outer(), &instance.scope_exclusive),
        (tree.inner(), &inner.exclusive),
        (tree.vcpu(), &vcpu.exclusive),
    ];
    // In place they are one cgroup, unless the runtime put the processes one level below (crun). A whole container has one list.
    lists.dedup_by_key(|(path, _)| *path);
    lists
}

/// No partition, no exclusive CPUs, no thread in `vcpu/`.
pub(crate) fn undo(instance: &Instance) -> Vec<Step> {
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

/// No partition and no exclusive CPUs.
pub(crate) fn give_up(instance: &Instance, inner: &InstanceCgroup, vcpu: &ThreadedCgroup) -> Vec<Step> {
    let mut steps = Vec::new();
    if !matches!(vcpu.partition.as_str(), "" | "member") {
        steps.push(become_kind(instance, Partition::Member));
    }
    for (path, now) in exclusive_lists(instance, inner, vcpu).into_iter().rev() {
        if !now.is_empty() {
            steps.push(set_exclusive(path, &CpuSet::new()));
        }
    }
    steps.extend(narrow_pod(instance, &CpuSet::new()));
    steps
}
