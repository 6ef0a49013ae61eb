//! Limits follow the processes: what kubelet set on the container's own cgroup is set on the scope, at every pass, so that
//! a resize in place arrives too.

use std::collections::{BTreeMap, BTreeSet};

use stelia_kernel::cgroup::{CgroupPath, File, HugePage, IoMax, Limits};
use stelia_model::record::Record;

use super::Step;
use crate::totals::DEFAULT_WEIGHT;
use crate::{Instance, Snapshot, Totals};

/// The largest weight the kernel accepts.
const MAX_WEIGHT: u64 = 10_000;

/// Whether a CPU quota holds for an instance. One with exclusive CPUs has none: it could not use more than those, and a quota
/// would throttle vCPUs that have their CPUs to themselves. kubelet takes the container's and the pod's away for the same reason
/// (gate `DisableCPUQuotaWithExclusiveCPUs`, since 1.33); before that, and where steliad chooses the CPUs, they stay on the container's cgroup.
pub fn is_throttled(record: &Record) -> bool {
    record.exclusive.is_empty()
}

/// What the scope is to have of what its container has.
pub fn limits_of_scope(record: &Record, origin: &Limits) -> Limits {
    Limits {
        cpu_max: origin.cpu_max.filter(|_| is_throttled(record)),
        ..origin.clone()
    }
}

/// What systemd sets: these files of a unit are its own. The others it does not know, or (io.max) leaves alone.
fn by_systemd(limits: &Limits) -> Limits {
    Limits {
        uclamp_min: None,
        uclamp_max: None,
        io_max: BTreeMap::new(),
        oom_group: false,
        hugetlb: BTreeMap::new(),
        hugetlb_reserved: BTreeMap::new(),
        ..limits.clone()
    }
}

pub(super) fn scope(instance: &Instance) -> Vec<Step> {
    let Some(origin) = &instance.origin_limits else {
        return Vec::new();
    };
    let now = &instance.scope_limits;
    let mut want = limits_of_scope(&instance.record, origin);
    if too_much_memory(instance).is_some() {
        want.memory_max = now.memory_max;
    }
    // Without io.weight on the container the scope keeps its own.
    want.io_weight = want.io_weight.or(now.io_weight);
    let mut steps = Vec::new();
    let want = by_systemd(&want);
    if want != by_systemd(now) {
        steps.push(Step::Limit(instance.scope().name().to_owned(), Box::new(want)));
    }
    let write = |file, value| Step::Write(instance.scope().clone(), file, value);
    if origin.oom_group != now.oom_group {
        steps.push(write(File::MemoryOomGroup, u8::from(origin.oom_group).to_string()));
    }
    let huge_pages = differing(&origin.hugetlb, &now.hugetlb);
    steps.extend(huge_pages.map(|(size, value)| write(File::HugetlbMax(size), value)));
    let reserved = differing(&origin.hugetlb_reserved, &now.hugetlb_reserved);
    steps.extend(reserved.map(|(size, value)| write(File::HugetlbReservedMax(size), value)));
    let devices: BTreeSet<&String> = origin.io_max.keys().chain(now.io_max.keys()).collect();
    for device in devices {
        let of = |limits: &Limits| limits.io_max.get(device).copied().unwrap_or_default();
        let want: IoMax = of(origin);
        if want != of(now) {
            steps.push(write(File::IoMax, format!("{device} {want}")));
        }
    }
    steps.extend(clamps(instance, origin));
    steps
}

/// Sizes whose limits differ, with the limit to be written. A size the scope has no file for appears once the slice has the
/// controller.
fn differing<'a>(
    origin: &'a BTreeMap<HugePage, Option<u64>>,
    now: &'a BTreeMap<HugePage, Option<u64>>,
) -> impl Iterator<Item = (HugePage, String)> + 'a {
    let differs = |(size, limit): &(&HugePage, &Option<u64>)| now.get(size).is_some_and(|now| now != *limit);
    let text = |limit: &Option<u64>| limit.map_or("max".to_owned(), |bytes| bytes.to_string());
    origin
        .iter()
        .filter(differs)
        .map(move |(size, limit)| (*size, text(limit)))
}

/// `cpu.uclamp.*`. An upper clamp of the scope binds what is below it; of a lower one the leaves get no more than they ask for
/// themselves, so they ask for the same, before the scope says that it is done.
fn clamps(instance: &Instance, origin: &Limits) -> Vec<Step> {
    let now = &instance.scope_limits;
    let mut steps = Vec::new();
    let differs = |want: &Option<String>, now: &Option<String>| want.is_some() && now.is_some() && want != now;
    let has_leaves = instance.float().is_some() && instance.vcpu().is_some();
    if has_leaves && differs(&origin.uclamp_min, &now.uclamp_min) {
        let value = origin.uclamp_min.clone().unwrap_or_default();
        for cgroup in [instance.tree.float(), instance.tree.vcpu(), instance.scope()] {
            steps.push(Step::Write(cgroup.clone(), File::UclampMin, value.clone()));
        }
    }
    if differs(&origin.uclamp_max, &now.uclamp_max) {
        let value = origin.uclamp_max.clone().unwrap_or_default();
        steps.push(Step::Write(instance.scope().clone(), File::UclampMax, value));
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

/// Whether the scope has its container's limits of huge pages. What was charged or reserved before stays charged, so no
/// process is moved in earlier.
pub(crate) fn huge_pages_are_limited(instance: &Instance) -> bool {
    let Some(origin) = &instance.origin_limits else {
        return true;
    };
    let now = &instance.scope_limits;
    [
        (&origin.hugetlb, &now.hugetlb),
        (&origin.hugetlb_reserved, &now.hugetlb_reserved),
    ]
    .into_iter()
    .all(|(want, now)| {
        let mut limited = want.iter().filter(|(_, limit)| limit.is_some());
        limited.all(|(size, limit)| now.get(size) == Some(limit))
    })
}

/// Whether the scope has what its container has, so that there is nothing to set.
pub fn limits_are_carried(instance: &Instance) -> bool {
    huge_pages_are_limited(instance) && scope(instance).is_empty()
}

/// The slice competes with kubepods.slice, whose weight grows with its pods: it weighs what its instances weigh. And of the
/// memory that is protected below it counts as much as is protected on it.
pub(super) fn slice(snapshot: &Snapshot, totals: &Totals) -> Vec<Step> {
    let mut steps = Vec::new();
    if totals.limits_huge_pages() && !snapshot.slice.controllers.contains("hugetlb") {
        let slice = CgroupPath::slice();
        steps.push(Step::Write(slice, File::SubtreeControl, "+hugetlb".into()));
    }
    let sum = totals.weight();
    let want = if sum == 0 { DEFAULT_WEIGHT } else { sum.min(MAX_WEIGHT) };
    let (min, low) = totals.protected_memory();
    if snapshot.slice.weight.is_some_and(|now| now != want) {
        steps.push(Step::Weigh(want));
    } else if snapshot.slice.protected.is_some_and(|now| now != (min, low)) {
        // One call to systemd about a unit at a time.
        steps.push(Step::Protect { min, low });
    }
    steps
}
