//! The settings that decisions depend on.

use stelia_allocator::AllocatorPolicies;

use crate::{FloatPolicy, Partition, PlacementPolicy};

/// What the operator chose, as plain values.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Policies {
    /// How vCPUs are placed from now on.
    pub placement: PlacementPolicy,
    /// The partition instances get from now on; `None`: what this kernel makes without danger, `isolated` or else `root`.
    pub partition: Option<Partition>,
    /// Which shared CPUs instances float on.
    pub float: FloatPolicy,
    /// With fewer CPUs than this in its NUMA nodes an instance floats on the whole pool.
    pub float_min_cpus: usize,
    /// `cpu.max` of every float, as the kernel takes it.
    pub float_cpu_max: String,
    /// Who chooses exclusive CPUs, and how.
    pub allocator: AllocatorPolicies,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            placement: PlacementPolicy::default(),
            partition: None,
            float: FloatPolicy::default(),
            float_min_cpus: 2,
            float_cpu_max: "max".into(),
            allocator: AllocatorPolicies::default(),
        }
    }
}
