//! Resource limits, as the kernel's files hold them.

use std::collections::BTreeMap;
use std::fmt;

use super::{File, HugePage};

/// Resource limits of a cgroup, by the kernel's files. `None` where there is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// `memory.max`, bytes.
    pub memory_max: Option<u64>,
    /// `memory.high`, bytes.
    pub memory_high: Option<u64>,
    /// `memory.min`, bytes that are never reclaimed; 0 by default.
    pub memory_min: u64,
    /// `memory.low`, bytes that are reclaimed only when there is nothing else to reclaim; 0 by default.
    pub memory_low: u64,
    /// `memory.swap.max`, bytes.
    pub memory_swap_max: Option<u64>,
    pub pids_max: Option<u64>,
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
    pub cpu_max: Option<CpuQuota>,
    /// `cpu.uclamp.min` as printed; `None` where the kernel has no such file.
    pub uclamp_min: Option<String>,
    /// `cpu.uclamp.max` likewise.
    pub uclamp_max: Option<String>,
    /// The default of `io.weight`, 1 to 10000; `None` where the kernel has no such file.
    pub io_weight: Option<u64>,
    /// `io.max`, by the device's numbers as in `8:0`.
    pub io_max: BTreeMap<String, IoMax>,
    /// `memory.oom.group`: whether the OOM killer takes the whole cgroup.
    pub oom_group: bool,
    /// `hugetlb.<size>.max`, bytes, by the size as the file names spell it; only sizes the kernel has.
    pub hugetlb: BTreeMap<HugePage, Option<u64>>,
    /// `hugetlb.<size>.rsvd.max`: what may be reserved by mappings, whether it is touched or not.
    pub hugetlb_reserved: BTreeMap<HugePage, Option<u64>>,
}

impl Limits {
    /// The files that it is read from; those of huge pages for one size, which stands for all.
    pub const FILES: [File; 15] = [
        File::MemoryMax,
        File::MemoryHigh,
        File::MemoryMin,
        File::MemoryLow,
        File::MemorySwapMax,
        File::PidsMax,
        File::CpuWeight,
        File::CpuMax,
        File::UclampMin,
        File::UclampMax,
        File::IoWeight,
        File::IoMax,
        File::MemoryOomGroup,
        File::HugetlbMax(HugePage::Mb2),
        File::HugetlbReservedMax(HugePage::Mb2),
    ];
}

/// A CPU limit: `quota` microseconds of CPU time in each `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time in a period.
    pub quota: u64,
    /// The period, microseconds; never 0.
    pub period: u64,
}

impl CpuQuota {
    /// What `cpu.max` says; `None` for `max`.
    pub fn parse(text: &str) -> Option<Self> {
        let (quota, period) = text.split_once(' ')?;
        let (quota, period) = (quota.parse().ok()?, period.parse().ok()?);
        (period > 0).then_some(Self { quota, period })
    }

    /// Thousandths of a CPU, rounded down; `None` beyond what a number holds.
    pub fn milli(self) -> Option<u64> {
        self.quota.checked_mul(1000)?.checked_div(self.period)
    }

    /// Microseconds of CPU time a second, the unit of systemd's `CPUQuotaPerSecUSec`. Rounded up, so that systemd
    /// computes the same quota for the period again.
    pub(crate) fn per_second(self) -> u64 {
        let exact = (u128::from(self.quota) * 1_000_000).div_ceil(u128::from(self.period.max(1)));
        u64::try_from(exact).unwrap_or(u64::MAX - 1)
    }

    /// The quota that gives less CPU time.
    pub fn least(self, other: Self) -> Self {
        let share = |one: Self, period: u64| u128::from(one.quota) * u128::from(period);
        if share(other, self.period) < share(self, other.period) {
            other
        } else {
            self
        }
    }
}

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.quota, self.period)
    }
}

/// What a cgroup may read from and write to a device in a second: bytes and operations. `None` where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoMax([Option<u64>; 4]);

/// As `io.max` names them.
const IO_MAX: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];

impl IoMax {
    /// The text of `io.max`, or of what is to be written to it: a line for each device with a limit.
    pub fn parse(text: &str) -> BTreeMap<String, Self> {
        let line = |line: &str| {
            let (device, limits) = line.split_once(' ')?;
            let mut all = Self::default();
            for (name, value) in limits.split_whitespace().filter_map(|limit| limit.split_once('=')) {
                if let Some(place) = IO_MAX.iter().position(|known| *known == name) {
                    all.0[place] = value.parse().ok();
                }
            }
            (all != Self::default()).then(|| (device.to_owned(), all))
        };
        text.lines().filter_map(line).collect()
    }

    /// The lower limit of each kind.
    pub fn least(self, other: Self) -> Self {
        let mut all = self;
        for (one, other) in all.0.iter_mut().zip(other.0) {
            *one = (*one).into_iter().chain(other).min();
        }
        all
    }
}

impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in IO_MAX.iter().zip(self.0).enumerate() {
            let gap = if place == 0 { "" } else { " " };
            match value {
                Some(value) => write!(f, "{gap}{name}={value}")?,
                None => write!(f, "{gap}{name}=max")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_of_two_quotas_is_so_by_its_period() {
        let quota = |text| CpuQuota::parse(text).unwrap();
        assert_eq!(CpuQuota::parse("max 100000"), None);
        assert_eq!(
            quota("150000 100000").least(quota("20000 10000")),
            quota("150000 100000")
        );
        assert_eq!(
            quota("20000 10000").least(quota("150000 100000")),
            quota("150000 100000")
        );
        assert_eq!(quota("150000 100000").milli(), Some(1500));
        assert_eq!(quota("150000 100000").to_string(), "150000 100000");
    }

    #[test]
    fn systemd_makes_the_same_quota_of_what_it_is_told() {
        for text in [
            "150000 100000",
            "10000 30000",
            "12345 100000",
            "1000 7",
            "33333 1000000",
        ] {
            let quota = CpuQuota::parse(text).unwrap();
            assert_eq!(quota.per_second() * quota.period / 1_000_000, quota.quota, "{text}");
        }
    }

    #[test]
    fn limits_of_devices_are_read_and_written_in_the_kernels_words() {
        let text = "8:16 rbps=2097152 wbps=max riops=max wiops=120\n8:0 rbps=max wbps=max riops=max wiops=max";
        let all = IoMax::parse(text);
        assert_eq!(all.len(), 1);
        assert_eq!(all["8:16"].to_string(), "rbps=2097152 wbps=max riops=max wiops=120");
        let other = IoMax::parse("8:16 rbps=1048576 wiops=200")["8:16"];
        let least = all["8:16"].least(other);
        assert_eq!(least.to_string(), "rbps=1048576 wbps=max riops=max wiops=120");
        assert_eq!(IoMax::default().to_string(), "rbps=max wbps=max riops=max wiops=max");
    }
}
