//! The files of a cgroup, by the kernel's names.

macro_rules! files {
    ($($file:ident = $name:literal,)+; $($of_size:ident = $ending:literal,)+) => {
        /// The cgroup files this program reads or writes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum File {
            $(#[doc = concat!("`", $name, "`")] $file,)+
            $(#[doc = concat!("`hugetlb.<size>.", $ending, "`")] $of_size(HugePage),)+
        }

        impl File {
            /// The file's name in the cgroup's directory.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$file => $name,)+
                    $(Self::$of_size(size) => match size {
                        HugePage::Kb64 => concat!("hugetlb.64KB.", $ending),
                        HugePage::Mb2 => concat!("hugetlb.2MB.", $ending),
                        HugePage::Mb32 => concat!("hugetlb.32MB.", $ending),
                        HugePage::Mb512 => concat!("hugetlb.512MB.", $ending),
                        HugePage::Gb1 => concat!("hugetlb.1GB.", $ending),
                        HugePage::Gb16 => concat!("hugetlb.16GB.", $ending),
                    },)+
                }
            }
        }
    };
}

files! {
    Procs = "cgroup.procs",
    Threads = "cgroup.threads",
    Type = "cgroup.type",
    SubtreeControl = "cgroup.subtree_control",
    Events = "cgroup.events",
    Freeze = "cgroup.freeze",
    MaxDescendants = "cgroup.max.descendants",
    Stat = "cgroup.stat",
    Cpus = "cpuset.cpus",
    CpusEffective = "cpuset.cpus.effective",
    CpusExclusive = "cpuset.cpus.exclusive",
    CpusExclusiveEffective = "cpuset.cpus.exclusive.effective",
    CpusIsolated = "cpuset.cpus.isolated",
    Partition = "cpuset.cpus.partition",
    Mems = "cpuset.mems",
    PidsMax = "pids.max",
    MemoryMax = "memory.max",
    MemoryHigh = "memory.high",
    MemoryMin = "memory.min",
    MemoryLow = "memory.low",
    MemorySwapMax = "memory.swap.max",
    MemoryOomGroup = "memory.oom.group",
    MemoryCurrent = "memory.current",
    MemoryStat = "memory.stat",
    MemoryNumaStat = "memory.numa_stat",
    CpuWeight = "cpu.weight",
    CpuMax = "cpu.max",
    UclampMin = "cpu.uclamp.min",
    UclampMax = "cpu.uclamp.max",
    CpuStat = "cpu.stat",
    IoWeight = "io.weight",
    IoMax = "io.max",
    ;
    HugetlbMax = "max",
    HugetlbReservedMax = "rsvd.max",
    HugetlbNumaStat = "numa_stat",
}

/// The sizes of huge pages the kernel has names for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HugePage {
    Kb64,
    Mb2,
    Mb32,
    Mb512,
    Gb1,
    Gb16,
}

impl HugePage {
    pub const ALL: [Self; 6] = [Self::Kb64, Self::Mb2, Self::Mb32, Self::Mb512, Self::Gb1, Self::Gb16];

    /// Its directory in `/sys/kernel/mm/hugepages`.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Kb64 => "hugepages-64kB",
            Self::Mb2 => "hugepages-2048kB",
            Self::Mb32 => "hugepages-32768kB",
            Self::Mb512 => "hugepages-524288kB",
            Self::Gb1 => "hugepages-1048576kB",
            Self::Gb16 => "hugepages-16777216kB",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In kB, by the size of a page: arch/arm64/mm/hugetlbpage.c.
    #[test]
    fn every_size_of_arm64s_huge_pages_has_its_directory_and_files() {
        let all = HugePage::ALL.map(|size| (size.directory().to_owned(), File::HugetlbMax(size).name()));
        for (page, sizes) in [
            (
                4,
                &[(64, "64KB"), (2048, "2MB"), (32_768, "32MB"), (1_048_576, "1GB")][..],
            ),
            (16, &[(2048, "2MB"), (32_768, "32MB"), (1_048_576, "1GB")]),
            (64, &[(2048, "2MB"), (524_288, "512MB"), (16_777_216, "16GB")]),
        ] {
            for (kib, name) in sizes {
                let expected = (format!("hugepages-{kib}kB"), format!("hugetlb.{name}.max"));
                let is_there = all
                    .iter()
                    .any(|one| (one.0.as_str(), one.1) == (&expected.0, &expected.1));
                assert!(is_there, "{page}: {expected:?}");
            }
        }
    }
}
