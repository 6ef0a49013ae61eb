//! What is asked of the allocator: one struct for RegisterInstance's options, EvaluatePlacement's requests, command lines,
//! JSON and the decision. Its fields have the names of the options.

#[cfg(feature = "command-line")]
pub mod command_line;
pub mod koordinator;
mod schedule;

pub use schedule::Schedule;
pub(crate) use schedule::numbers;

#[cfg(feature = "command-line")]
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos};

/// Options of a node whose `cpu-source` is `steliad`; with kubelet's the daemon refuses them.
// The comments of fields are the help of the options. For an option that is not given the node's setting counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[cfg_attr(
    feature = "command-line",
    derive(Args),
    command(next_help_heading = "Options of a node whose cpu-source is steliad")
)]
pub struct AllocationRequest {
    /// QoS class. LSE: exclusive CPUs. LSR: exclusive CPUs on which BE may run. LS: the shared pool. BE: the BE shared pool
    #[cfg_attr(feature = "command-line", arg(long, value_name = "CLASS"))]
    pub qos: Option<Qos>,
    /// Number of CPUs for LSE and LSR, at most the container's CPU limit. Default: the CPU limit
    #[cfg_attr(
        feature = "command-line",
        arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))
    )]
    pub cpus: Option<u32>,
    /// How CPUs are spread over cores. ConstrainedBurst, for LS only, uses the shared pool of one NUMA node
    #[cfg_attr(feature = "command-line", arg(long, value_name = "POLICY"))]
    pub cpu_bind_policy: Option<CpuBindPolicy>,
    /// Like --cpu-bind-policy, but the request fails if the policy cannot be met (LSE and LSR)
    #[cfg_attr(feature = "command-line", arg(long, value_name = "POLICY"))]
    pub required_cpu_bind_policy: Option<CpuBindPolicy>,
    // In thousandths of a CPU.
    /// The pod's CPU limit for ConstrainedBurst, such as 2, 2.5 or 2500m
    #[cfg_attr(
        feature = "command-line",
        arg(long, value_name = "QUANTITY", value_parser = command_line::thousandths)
    )]
    pub cpu_limit: Option<u32>,
    /// Avoid sharing cores (PCPULevel) or NUMA nodes (NUMANodeLevel) with instances of the same policy, if possible
    #[cfg_attr(feature = "command-line", arg(long, value_name = "POLICY"))]
    pub cpu_exclusive_policy: Option<CpuExclusivePolicy>,
    /// Which NUMA nodes are preferred
    #[cfg_attr(feature = "command-line", arg(long, value_name = "STRATEGY"))]
    pub numa_allocate_strategy: Option<NumaAllocateStrategy>,
    /// The constraint on the number of NUMA nodes from which the CPUs come
    #[cfg_attr(feature = "command-line", arg(long, value_name = "POLICY"))]
    pub numa_topology_alignment_policy: Option<NumaTopologyAlignmentPolicy>,
    /// What a scheduler chose for it already. Only RegisterInstance takes it, as options of its own beside these: whoever asks
    /// before has no choice yet.
    #[serde(skip)]
    #[cfg_attr(feature = "command-line", arg(skip))]
    pub schedule: Schedule,
}

impl AllocationRequest {
    /// Whether any option of the allocator is given, apart from a scheduler's choice.
    pub fn asks(&self) -> bool {
        let asked = Self {
            schedule: Schedule::default(),
            ..self.clone()
        };
        asked != Self::default()
    }

    /// The bind policy that is asked for: the required one wins over the preferred one.
    pub(crate) fn bind(&self) -> CpuBindPolicy {
        self.required_cpu_bind_policy
            .or(self.cpu_bind_policy)
            .unwrap_or_default()
    }
}
