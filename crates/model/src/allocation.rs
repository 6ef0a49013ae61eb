//! What an instance asked of steliad's allocator, and what it was given.

use serde::{Deserialize, Serialize};
use stelia_allocator::{
    CpuBindPolicy, CpuExclusivePolicy, Exclusivity, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
};
use stelia_api::Word;

/// As [`stelia_allocator::Allocation`], which is recorded, in words of which a newer daemon may know more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub qos: Word<Qos>,
    /// How many exclusive CPUs; 0 for LS and BE.
    pub cpus: u32,
    pub bind: Word<CpuBindPolicy>,
    /// Whether the node or the pod requires the bind policy.
    pub required: bool,
    pub exclusive: Word<CpuExclusivePolicy>,
    pub strategy: Word<NumaAllocateStrategy>,
    pub alignment: Word<NumaTopologyAlignmentPolicy>,
    /// The pod's CPU limit in thousandths of a CPU; 0: none.
    pub limit_milli: u64,
    /// The NUMA node whose shared pool it runs on; `None`: the pool of all.
    pub numa_node: Option<u32>,
    /// Whether the exclusive policy is satisfied.
    pub exclusivity: Word<Exclusivity>,
    /// Why the allocator chose these CPUs, line by line.
    pub explanation: Vec<String>,
}

impl From<&stelia_allocator::Allocation> for Allocation {
    fn from(recorded: &stelia_allocator::Allocation) -> Self {
        Self {
            qos: recorded.qos.into(),
            cpus: recorded.cpus,
            bind: recorded.bind.into(),
            required: recorded.required,
            exclusive: recorded.exclusive.into(),
            strategy: recorded.strategy.into(),
            alignment: recorded.alignment.into(),
            limit_milli: recorded.limit_milli,
            numa_node: recorded.numa_node,
            exclusivity: recorded.exclusivity.into(),
            explanation: recorded.explanation.clone(),
        }
    }
}
