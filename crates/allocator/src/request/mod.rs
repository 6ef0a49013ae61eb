//! What is asked, and what was answered.

mod allot;
mod exclusive;
mod ground;
mod held;
mod left;
mod schedule;
mod takeover;
mod words;

pub use allot::Asker;
pub use ground::Ground;
pub use held::Held;
pub use left::{Left, leftover};
pub use schedule::Schedule;
pub use takeover::{Guaranteed, guaranteed};

use stelia_api::{Error, ErrorKind};

use crate::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, Exclusivity, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy, Qos,
};

/// The refusal where steliad does not choose.
pub fn chosen_by_kubelet() -> Error {
    ErrorKind::Failed.because("kubelet chooses the CPUs on this node")
}

/// What a caller asks for; what it leaves out is the node's to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// How many CPUs.
    pub cpus: Option<u32>,
    /// The class.
    pub qos: Option<Qos>,
    /// How CPUs lie on cores, if that can be.
    pub bind: Option<CpuBindPolicy>,
    /// How CPUs lie on cores, or none are wanted. It wins over `bind`.
    pub required: Option<CpuBindPolicy>,
    /// The pod's CPU limit, thousandths of a CPU.
    pub limit_milli: Option<u32>,
    /// Whose company is avoided.
    pub exclusive: Option<CpuExclusivePolicy>,
    /// Which NUMA nodes come first.
    pub strategy: Option<NumaAllocateStrategy>,
    /// What must hold of the NUMA nodes.
    pub alignment: Option<NumaTopologyAlignmentPolicy>,
    /// What a scheduler chose for it already.
    pub schedule: Schedule,
}

impl Wish {
    /// Whether anything is asked of an allocator, beyond what was chosen elsewhere.
    pub fn asks(&self) -> bool {
        let asked = Self {
            schedule: Schedule::default(),
            ..self.clone()
        };
        asked != Self::default()
    }
}

/// How an instance got its CPUs, or its pool: recorded with it, so that nobody has to guess later.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// The class.
    pub qos: Qos,
    /// How many CPUs; 0 for a class without CPUs of its own.
    pub cpus: u32,
    /// The bind policy, Default resolved.
    pub bind: CpuBindPolicy,
    /// Whether it is required, by the node or by the pod.
    pub required: bool,
    /// The exclusive policy, Default resolved.
    pub exclusive: CpuExclusivePolicy,
    /// The strategy.
    pub strategy: NumaAllocateStrategy,
    /// The alignment policy.
    pub alignment: NumaTopologyAlignmentPolicy,
    /// The CPU limit a NUMA node's pool was chosen for, thousandths of a CPU; 0 where none was.
    pub limit_milli: u64,
    /// LS: the NUMA node whose shared pool it runs on.
    pub numa_node: Option<u32>,
    /// What became of the exclusive policy.
    pub exclusivity: Exclusivity,
    /// Why these CPUs, line by line, as it was then.
    pub explanation: Vec<String>,
}

impl Allocation {
    /// What of a new wish is not what this allocation was made for: nothing, when the same caller asks again.
    pub fn differs(&self, wish: &Wish) -> Option<&'static str> {
        let same = |equal: Option<bool>| equal.unwrap_or(true);
        let of_class = |value: u32| self.cpus == value;
        let limit = |value: u32| self.limit_milli == 0 || self.limit_milli == u64::from(value);
        [
            ("qos", same(wish.qos.map(|qos| qos == self.qos))),
            ("cpus", same(wish.cpus.map(of_class))),
            (
                "cpu-bind-policy",
                same(
                    wish.bind
                        .filter(|_| wish.required.is_none())
                        .map(|bind| bind == CpuBindPolicy::Default || bind == self.bind),
                ),
            ),
            (
                "required-cpu-bind-policy",
                same(
                    wish.required
                        .filter(|_| self.qos.is_exclusive())
                        .map(|bind| self.required && (bind == CpuBindPolicy::Default || bind == self.bind)),
                ),
            ),
            ("cpu-limit", same(wish.limit_milli.map(limit))),
            (
                "cpu-exclusive-policy",
                same(
                    wish.exclusive
                        .map(|exclusive| exclusive == CpuExclusivePolicy::Default || exclusive == self.exclusive),
                ),
            ),
            (
                "numa-allocate-strategy",
                same(wish.strategy.map(|strategy| strategy == self.strategy)),
            ),
            (
                "numa-topology-alignment-policy",
                same(wish.alignment.map(|alignment| alignment == self.alignment)),
            ),
        ]
        .into_iter()
        .find_map(|(name, same)| (!same).then_some(name))
    }
}
