//! Reading limits: those of the scope, and those of the container with its pod's and its ancestors'.

use std::collections::BTreeMap;

use stelia_decide::is_throttled;
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, CpuQuota, File, HugePage, IoMax, Limits, optional};
use stelia_model::record::Record;

/// A number in a file; `None` for `max` and where there is no such file.
pub(super) fn number(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<Option<u64>, CgroupError> {
    Ok(optional(cgroups.read(cgroup, file))?.and_then(|text| text.parse().ok()))
}

/// Protected memory, bytes; `max` is `u64::MAX`. `None` where there is no such file.
pub(super) fn protection(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<Option<u64>, CgroupError> {
    let all = |text: String| {
        if text == "max" {
            Some(u64::MAX)
        } else {
            text.parse().ok()
        }
    };
    Ok(optional(cgroups.read(cgroup, file))?.and_then(all))
}

/// Which files of limits this kernel has: that does not change while it runs.
#[derive(Debug, Clone)]
pub(super) struct LimitFiles {
    /// Whether it clamps utilization.
    clamps: bool,
    huge_pages: Vec<HugePage>,
}

impl LimitFiles {
    pub(super) fn find(system: &System) -> Self {
        let sizes = system.sys.join("kernel/mm/hugepages");
        let here = |size: &HugePage| sizes.join(size.directory()).exists();
        let mut huge_pages: Vec<HugePage> = HugePage::ALL.into_iter().filter(here).collect();
        // Where the kernel lists no sizes, every size is tried.
        if huge_pages.is_empty() {
            huge_pages = HugePage::ALL.to_vec();
        }
        Self {
            clamps: system.root().join("proc/sys/kernel/sched_util_clamp_max").exists(),
            huge_pages,
        }
    }

    fn without_huge_pages(&self) -> Self {
        Self {
            huge_pages: Vec::new(),
            ..*self
        }
    }
}

/// A cgroup's own limits. `cpu.max` is read only if `quota_counts`.
fn own_limits(
    cgroups: &dyn Cgroups,
    cgroup: &CgroupPath,
    quota_counts: bool,
    files: &LimitFiles,
) -> Result<Limits, CgroupError> {
    let (mut hugetlb, mut hugetlb_reserved) = (BTreeMap::new(), BTreeMap::new());
    for size in files.huge_pages.iter().copied() {
        // Where one of a size is missing, so is the other.
        let Some(text) = optional(cgroups.read(cgroup, File::HugetlbMax(size)))? else {
            continue;
        };
        hugetlb.insert(size, text.parse().ok());
        if let Some(text) = optional(cgroups.read(cgroup, File::HugetlbReservedMax(size)))? {
            hugetlb_reserved.insert(size, text.parse().ok());
        }
    }
    let text = |file| optional(cgroups.read(cgroup, file));
    let clamp = |file| if files.clamps { text(file) } else { Ok(None) };
    Ok(Limits {
        memory_max: number(cgroups, cgroup, File::MemoryMax)?,
        memory_high: number(cgroups, cgroup, File::MemoryHigh)?,
        memory_min: protection(cgroups, cgroup, File::MemoryMin)?.unwrap_or_default(),
        memory_low: protection(cgroups, cgroup, File::MemoryLow)?.unwrap_or_default(),
        memory_swap_max: number(cgroups, cgroup, File::MemorySwapMax)?,
        pids_max: number(cgroups, cgroup, File::PidsMax)?,
        cpu_weight: number(cgroups, cgroup, File::CpuWeight)?,
        cpu_max: if quota_counts { quota(cgroups, cgroup)? } else { None },
        uclamp_min: clamp(File::UclampMin)?,
        uclamp_max: clamp(File::UclampMax)?,
        io_weight: text(File::IoWeight)?.and_then(|text| default_weight(&text)),
        io_max: IoMax::parse(&text(File::IoMax)?.unwrap_or_default()),
        oom_group: text(File::MemoryOomGroup)?.is_some_and(|text| text == "1"),
        hugetlb,
        hugetlb_reserved,
    })
}

fn quota(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<Option<CpuQuota>, CgroupError> {
    Ok(optional(cgroups.read(cgroup, File::CpuMax))?.and_then(|text| CpuQuota::parse(&text)))
}

/// The default of `io.weight`; weights of single devices are not carried over.
fn default_weight(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("default "))?
        .parse()
        .ok()
}

/// The limits of a container whose processes are in a subgroup of its scope. Not every limit is on both; by its weight the
/// scope competes with others.
fn tighter(scope: Limits, subgroup: Limits) -> Limits {
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let sizes = |scope: &BTreeMap<HugePage, Option<u64>>, subgroup: &BTreeMap<HugePage, Option<u64>>| {
        let all = scope.keys().chain(subgroup.keys());
        let of = |limits: &BTreeMap<HugePage, Option<u64>>, size| limits.get(size).copied().flatten();
        all.map(|size| (*size, least(of(scope, size), of(subgroup, size))))
            .collect()
    };
    let (hugetlb, hugetlb_reserved) = (
        sizes(&scope.hugetlb, &subgroup.hugetlb),
        sizes(&scope.hugetlb_reserved, &subgroup.hugetlb_reserved),
    );
    let mut io_max = scope.io_max.clone();
    for (device, max) in &subgroup.io_max {
        let all = io_max.entry(device.clone()).or_default();
        *all = all.least(*max);
    }
    Limits {
        memory_max: least(scope.memory_max, subgroup.memory_max),
        memory_high: least(scope.memory_high, subgroup.memory_high),
        memory_swap_max: least(scope.memory_swap_max, subgroup.memory_swap_max),
        pids_max: least(scope.pids_max, subgroup.pids_max),
        // What is protected in the subgroup counts up to what is on the scope.
        memory_min: scope.memory_min,
        memory_low: scope.memory_low,
        cpu_weight: scope.cpu_weight,
        cpu_max: least_quota(scope.cpu_max, subgroup.cpu_max),
        uclamp_min: scope.uclamp_min,
        uclamp_max: scope.uclamp_max,
        io_weight: scope.io_weight,
        io_max,
        oom_group: scope.oom_group || subgroup.oom_group,
        hugetlb,
        hugetlb_reserved,
    }
}

fn least_quota(one: Option<CpuQuota>, other: Option<CpuQuota>) -> Option<CpuQuota> {
    one.into_iter().chain(other).reduce(CpuQuota::least)
}

/// The limits a container lives under: of memory, swap and pids the least of its cgroup and those it is in (kubelet sets
/// podPidsLimit on the pod), of the quota the least of its own and its pod's, the rest its own. `None` when it is gone.
pub(super) fn effective_limits(
    cgroups: &dyn Cgroups,
    record: &Record,
    files: &LimitFiles,
) -> Result<Option<Limits>, CgroupError> {
    let (origin, quota_counts) = (&record.origin, is_throttled(record));
    let whole = stelia_kernel::containers::container_scope(origin);
    let mut all = own_limits(cgroups, &whole, quota_counts, files)?;
    if whole != *origin {
        all = tighter(all, own_limits(cgroups, origin, quota_counts, files)?);
    }
    if let Some(pod) = whole.parent().filter(|_| quota_counts) {
        all.cpu_max = least_quota(all.cpu_max, quota(cgroups, &pod)?);
    }
    for level in std::iter::successors(whole.parent(), CgroupPath::parent) {
        for (limit, file) in [
            (&mut all.memory_max, File::MemoryMax),
            (&mut all.memory_swap_max, File::MemorySwapMax),
            (&mut all.pids_max, File::PidsMax),
        ] {
            if let Some(above) = number(cgroups, &level, file)? {
                *limit = Some(limit.map_or(above, |own| own.min(above)));
            }
        }
    }
    Ok(Some(all))
}

/// Limits of an instance as they were last read.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLimits {
    pub(super) scope: Limits,
    pub(super) origin: Option<Limits>,
    pub(super) memory_held: Option<u64>,
    /// The side that is to be read again nevertheless.
    pub(super) but: Option<Side>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The container, its pod and its ancestors.
    Origin,
    /// The scope.
    Scope,
}

/// Read the limits of an instance: all of them, or those of one side, or what is known.
pub(super) fn read(
    cgroups: &dyn Cgroups,
    scope: &CgroupPath,
    record: &Record,
    here: bool,
    files: &LimitFiles,
    known: Option<LastLimits>,
) -> Result<LastLimits, CgroupError> {
    let but = known.as_ref().map(|known| known.but);
    if let (Some(None), Some(known)) = (but, &known) {
        return Ok(known.clone());
    }
    let (of_scope, of_origin) = known.map(|known| (known.scope, known.origin)).unwrap_or_default();
    let of_scope = match but {
        Some(Some(Side::Origin)) => of_scope,
        // A quota on the scope is always read: one that should not be there throttles the VM.
        _ => own_limits(cgroups, scope, true, files)?,
    };
    let of_origin = match (but, of_origin) {
        (Some(Some(Side::Scope)), known) => known,
        // Huge pages are not resized in place: without an event their limits are unchanged.
        (Some(Some(Side::Origin)), Some(known)) if here => {
            let now = effective_limits(cgroups, record, &files.without_huge_pages())?;
            now.map(|now| Limits {
                hugetlb: known.hugetlb,
                hugetlb_reserved: known.hugetlb_reserved,
                ..now
            })
        }
        _ if here => effective_limits(cgroups, record, files)?,
        _ => None,
    };
    let max = of_origin.as_ref().and_then(|origin| origin.memory_max);
    let less = max.filter(|limit| of_scope.memory_max.is_none_or(|now| now > *limit));
    Ok(LastLimits {
        memory_held: less.map(|_| memory_held(cgroups, scope)).transpose()?.flatten(),
        scope: of_scope,
        origin: of_origin,
        but: None,
    })
}

/// Memory of a cgroup that cannot be reclaimed, bytes: all but the page cache of files.
fn memory_held(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<Option<u64>, CgroupError> {
    let Some(all) = number(cgroups, cgroup, File::MemoryCurrent)? else {
        return Ok(None);
    };
    let stat = optional(cgroups.read(cgroup, File::MemoryStat))?.unwrap_or_default();
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        matches!(name, "active_file" | "inactive_file").then(|| bytes.parse::<u64>().ok())?
    });
    Ok(Some(all.saturating_sub(cached.sum())))
}
