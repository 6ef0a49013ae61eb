//! Which CPUs instances hold, and why more cannot be given.

use stelia_cpus::CpuSet;

use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy, NumaTopologyAlignmentPolicy};

/// CPUs in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    pub cpus: CpuSet,
    /// The exclusive policy they were allocated with.
    pub exclusive: CpuExclusivePolicy,
}

/// Every CPU in use, each by one instance. Derived from the live instances each time, so that nothing remains of one that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub in_use: Vec<InUse>,
}

impl Usage {
    /// The CPUs of `allocatable` that nobody holds.
    pub fn available(&self, allocatable: &CpuSet) -> CpuSet {
        let held = self.in_use.iter();
        held.fold(allocatable.clone(), |free, held| free.difference(&held.cpus))
    }
}

/// Why CPUs or a pool are not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsatisfied {
    /// Too few CPUs are free.
    #[error("{wanted} CPUs are wanted, {available} are available")]
    NotEnough {
        /// How many are wanted.
        wanted: usize,
        /// How many may be taken.
        available: usize,
    },
    /// Whole cores are required, and the number of CPUs is not a multiple of a core's.
    #[error("{wanted} CPUs are not whole cores of {threads} CPUs, which FullPCPUs requires")]
    PartOfCore {
        /// How many are wanted.
        wanted: usize,
        /// CPUs of a core.
        threads: usize,
    },
    /// A required bind policy finds too few CPUs that satisfy it.
    #[error("{wanted} CPUs are wanted, {suitable} of those available satisfy the required bind policy {}", bind.name())]
    Bind {
        /// How many are wanted.
        wanted: usize,
        /// How many satisfy it.
        suitable: usize,
        /// The policy.
        bind: CpuBindPolicy,
    },
    /// The bind policy is ConstrainedBurst, which gives no exclusive CPUs.
    #[error("the bind policy ConstrainedBurst gives no exclusive CPUs")]
    NotExclusive,
    /// No choice of NUMA nodes satisfies the alignment policy.
    #[error("{wanted} CPUs are wanted, and no NUMA nodes satisfy the alignment policy {}", policy.name())]
    Alignment {
        /// How many are wanted.
        wanted: usize,
        /// The policy.
        policy: NumaTopologyAlignmentPolicy,
    },
    /// No NUMA node's shared pool has enough CPUs.
    #[error("{wanted} CPUs are wanted, the largest shared pool of a NUMA node has {largest}")]
    NoSharedPool {
        /// How many are wanted: the limit, rounded up.
        wanted: usize,
        /// How many the largest has.
        largest: usize,
    },
}
