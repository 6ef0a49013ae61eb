//! The outcome of a request: what an instance asked for and what it got.

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;

use crate::allocator::{
    AllocationRequest, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSelection, Exclusivity,
    NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
};

/// Recorded with the instance, to compare it with a repeated request and for `steliactl why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    pub qos: Qos,
    /// How many CPUs; 0 for a class without CPUs of its own.
    pub cpus: u32,
    /// The bind policy, Default resolved.
    pub bind: CpuBindPolicy,
    /// Whether it is required, by the node or by the pod.
    pub required: bool,
    /// The exclusive policy, Default resolved.
    pub exclusive: CpuExclusivePolicy,
    pub strategy: NumaAllocateStrategy,
    pub alignment: NumaTopologyAlignmentPolicy,
    /// The CPU limit by which a NUMA node's pool was chosen, thousandths of a CPU; 0 where no pool was chosen.
    pub limit_milli: u64,
    /// LS: the NUMA node whose shared pool it runs on.
    pub numa_node: Option<u32>,
    pub exclusivity: Exclusivity,
    /// Why these CPUs, line by line, at the time of the decision.
    pub explanation: Vec<String>,
}

/// How the line of the explanation on a resize begins.
const RESIZED: &str = "resized ";

impl Allocation {
    /// The policies of a request, the node's where it names none.
    pub(super) fn begin(qos: Qos, request: &AllocationRequest, node: &AllocatorPolicies) -> Self {
        Self {
            qos,
            cpus: 0,
            bind: request.bind().or(node.bind),
            required: false,
            exclusive: request.cpu_exclusive_policy.unwrap_or_default().or(node.exclusive),
            strategy: request.numa_allocate_strategy.unwrap_or(node.strategy),
            alignment: request.numa_topology_alignment_policy.unwrap_or(node.alignment),
            limit_milli: 0,
            numa_node: None,
            exclusivity: Exclusivity::NotAsked,
            explanation: Vec::new(),
        }
    }

    /// So many CPUs by its policies.
    pub fn selection(&self, count: usize) -> CpuSelection {
        CpuSelection {
            count,
            bind: self.bind,
            required: self.required,
            exclusive: self.exclusive,
            strategy: self.strategy,
            preferred: CpuSet::new(),
            nodes: None,
        }
    }

    /// Add a line on a resize to the explanation. The line of an earlier resize is out of date and is removed.
    pub fn note_resize(&mut self, text: &str) {
        self.explanation.retain(|line| !line.starts_with(RESIZED));
        self.explanation.push(format!("{RESIZED}{text}"));
    }

    /// Whether the number of CPUs is that of a resize and not that of the registration.
    pub fn is_resized(&self) -> bool {
        self.explanation.iter().any(|line| line.starts_with(RESIZED))
    }

    /// The first option in which a new request differs from the one this allocation was made for; `None` when the same
    /// is asked again.
    pub fn differs(&self, request: &AllocationRequest) -> Option<&'static str> {
        let bind = |asked| asked == CpuBindPolicy::Default || asked == self.bind;
        let exclusive = |asked| asked == CpuExclusivePolicy::Default || asked == self.exclusive;
        let required = request.required_cpu_bind_policy;
        let preferred = request.cpu_bind_policy.filter(|_| required.is_none());
        let limit = request.cpu_limit.filter(|_| self.limit_milli != 0);
        let alignment = request.numa_topology_alignment_policy;
        let same = [
            ("qos", request.qos.is_none_or(|qos| qos == self.qos)),
            // After a resize the request has the number of the registration.
            (
                "cpus",
                self.is_resized() || request.cpus.is_none_or(|cpus| cpus == self.cpus),
            ),
            ("cpu-bind-policy", preferred.is_none_or(bind)),
            (
                "required-cpu-bind-policy",
                !self.qos.is_exclusive() || required.is_none_or(|asked| self.required && bind(asked)),
            ),
            (
                "cpu-limit",
                limit.is_none_or(|limit| u64::from(limit) == self.limit_milli),
            ),
            (
                "cpu-exclusive-policy",
                request.cpu_exclusive_policy.is_none_or(exclusive),
            ),
            (
                "numa-allocate-strategy",
                request
                    .numa_allocate_strategy
                    .is_none_or(|asked| asked == self.strategy),
            ),
            (
                "numa-topology-alignment-policy",
                alignment.is_none_or(|asked| asked == self.alignment),
            ),
        ];
        same.into_iter().find_map(|(name, same)| (!same).then_some(name))
    }
}
