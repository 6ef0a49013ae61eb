//! Resource limits, as the kernel's files hold them.

use std::collections::BTreeMap;

use super::HugePage;

/// Resource limits of a cgroup, by the kernel's files. `None` where there is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// `memory.max`, bytes.
    pub memory_max: Option<u64>,
    /// `memory.high`, bytes.
    pub memory_high: Option<u64>,
    /// `memory.swap.max`, bytes.
    pub memory_swap_max: Option<u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
    /// `memory.oom.group`: whether the OOM killer takes the whole cgroup.
    pub oom_group: bool,
    /// `hugetlb.<size>.max`, bytes, by the size as the file names spell it; only sizes the kernel has.
    pub hugetlb: BTreeMap<HugePage, Option<u64>>,
}
