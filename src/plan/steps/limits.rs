//! Limits follow the processes: what kubelet set on the container's own cgroup is set on the scope, at every pass, so that
//! a resize in place arrives too.

use super::Step;
use crate::cgroup::{CgroupPath, File, Limits};
use crate::plan::totals::DEFAULT_WEIGHT;
use crate::plan::{Instance, Snapshot, Totals};

/// The largest weight the kernel takes.
const MAX_WEIGHT: u64 = 10_000;

pub(super) fn scope(instance: &Instance) -> Vec<Step> {
    let Some(origin) = &instance.origin_limits else {
        return Vec::new();
    };
    let now = &instance.scope_limits;
    let mut steps = Vec::new();
    // systemd owns these files of a unit; the others it does not know.
    let by_systemd = |limits: &Limits| Limits {
        oom_group: false,
        hugetlb: Default::default(),
        ..limits.clone()
    };
    let mut want = by_systemd(origin);
    if too_much_memory(instance).is_some() {
        want.memory_max = now.memory_max;
    }
    if want != by_systemd(now) {
        steps.push(Step::Limit(instance.scope().name().to_owned(), want));
    }
    if origin.oom_group != now.oom_group {
        let value = u8::from(origin.oom_group).to_string();
        steps.push(Step::Write(instance.scope().clone(), File::MemoryOomGroup, value));
    }
    for (size, limit) in &origin.hugetlb {
        // A size the scope has no file for appears once the slice has the controller.
        if now.hugetlb.get(size).is_some_and(|now| now != limit) {
            let value = limit.map_or("max".to_owned(), |bytes| bytes.to_string());
            steps.push(Step::Write(instance.scope().clone(), File::HugetlbMax(*size), value));
        }
    }
    steps
}

/// Memory of which the container may have less from now on than its VM holds: the limit and what is held, bytes.
///
/// kubelet lets a limit be lowered in place as soon as the container's own cgroup uses less, and that is nearly empty: the VM is
/// in the scope. There the kernel would kill it, so what it has stays until the new limit fits.
pub fn too_much_memory(instance: &Instance) -> Option<(u64, u64)> {
    let limit = instance.origin_limits.as_ref()?.memory_max?;
    let held = instance.memory_held.filter(|held| *held > limit)?;
    let is_less = instance.scope_limits.memory_max.is_none_or(|now| now > limit);
    is_less.then_some((limit, held))
}

/// Whether the scope has what its container has, so that there is nothing to set.
pub fn limits_are_carried(instance: &Instance) -> bool {
    let sizes = instance.origin_limits.iter().flat_map(|origin| &origin.hugetlb);
    let mut limited = sizes.filter(|(_, limit)| limit.is_some());
    let has = |size| instance.scope_limits.hugetlb.contains_key(size);
    limited.all(|(size, _)| has(size)) && scope(instance).is_empty()
}

/// The slice competes with kubepods.slice, whose weight grows with its pods: it weighs what its instances weigh.
pub(super) fn slice(snapshot: &Snapshot, totals: &Totals) -> Vec<Step> {
    let mut steps = Vec::new();
    if totals.limits_huge_pages() && !snapshot.slice.controllers.contains("hugetlb") {
        let slice = CgroupPath::slice();
        steps.push(Step::Write(slice, File::SubtreeControl, "+hugetlb".into()));
    }
    let sum = totals.weight();
    let want = if sum == 0 { DEFAULT_WEIGHT } else { sum.min(MAX_WEIGHT) };
    if snapshot.slice.weight.is_some_and(|now| now != want) {
        steps.push(Step::Weigh(want));
    }
    steps
}
