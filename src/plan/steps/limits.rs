//! Limits follow the processes: what kubelet set on the container's own cgroup is set on the scope, at every pass, so that
//! a resize in place arrives too.

use super::Step;
use crate::cgroup::{CgroupPath, File, Limits};
use crate::plan::{Instance, Snapshot};

/// The kernel's and systemd's default weight.
const DEFAULT_WEIGHT: u64 = 100;
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
    if by_systemd(origin) != by_systemd(now) {
        steps.push(Step::Limit(instance.scope.name().to_owned(), by_systemd(origin)));
    }
    if origin.oom_group != now.oom_group {
        let value = u8::from(origin.oom_group).to_string();
        steps.push(Step::Write(instance.scope.clone(), File::MemoryOomGroup, value));
    }
    for (size, limit) in &origin.hugetlb {
        // A size the scope has no file for appears once the slice has the controller.
        if now.hugetlb.get(size).is_some_and(|now| now != limit) {
            let value = limit.map_or("max".to_owned(), |bytes| bytes.to_string());
            steps.push(Step::Write(instance.scope.clone(), File::HugetlbMax(*size), value));
        }
    }
    steps
}

/// The slice competes with kubepods.slice, whose weight grows with its pods: it weighs what its instances weigh.
pub(super) fn slice(snapshot: &Snapshot) -> Vec<Step> {
    let mut steps = Vec::new();
    let limits = || snapshot.live().filter_map(|instance| instance.origin_limits.as_ref());
    let limited = limits().any(|limits| limits.hugetlb.values().any(Option::is_some));
    if limited && !snapshot.slice.controllers.contains("hugetlb") {
        let slice = CgroupPath::slice();
        steps.push(Step::Write(slice, File::SubtreeControl, "+hugetlb".into()));
    }
    let weights = snapshot.live().map(|instance| {
        let origin = instance.origin_limits.as_ref();
        let origin = origin.and_then(|limits| limits.cpu_weight);
        origin.or(instance.scope_limits.cpu_weight).unwrap_or(DEFAULT_WEIGHT)
    });
    let sum: u64 = weights.sum();
    let want = if sum == 0 { DEFAULT_WEIGHT } else { sum.min(MAX_WEIGHT) };
    if snapshot.slice.weight.is_some_and(|now| now != want) {
        steps.push(Step::Weigh(want));
    }
    steps
}
