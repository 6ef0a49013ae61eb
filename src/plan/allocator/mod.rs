//! CPUs that steliad chooses itself (`cpu-source = "steliad"`): what is asked, what is recorded, and who holds what.
//! [`crate::alloc`] makes the choice.

mod allot;
mod exclusive;
mod ground;
mod held;
mod holders;
mod schedule;
#[cfg(test)]
mod scheduled_tests;
mod takeover;
#[cfg(test)]
mod tests;
mod words;

pub use allot::{Asker, allot};
pub(crate) use allot::{kubelets as chosen_by_kubelet, unknown as kubelet_unknown};
pub use ground::Ground;
pub use held::Held;
pub(in crate::plan) use holders::pools;
pub use holders::{Left, kubelets, leftover};
pub use schedule::Schedule;
pub use takeover::{Guaranteed, guaranteed};

use crate::alloc::{
    CpuBindPolicy, CpuExclusivePolicy, Exclusivity, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
    RequiredBind,
};
use stelia_cpus::CpuSet;

/// Who chooses exclusive CPUs on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuSource {
    /// kubelet's static CPU manager.
    #[default]
    Kubelet,
    /// steliad's own allocator. What kubelet still holds stays kubelet's.
    Steliad,
}

impl CpuSource {
    /// Every source.
    pub const ALL: [Self; 2] = [Self::Kubelet, Self::Steliad];

    /// The name used in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Steliad => "steliad",
        }
    }

    /// The source of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.name() == text)
    }
}

/// The node's own choices.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AllocatorPolicies {
    /// Who chooses exclusive CPUs.
    pub source: CpuSource,
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// The class of a Guaranteed pod that names none.
    pub qos: Qos,
    /// What the bind policy Default means.
    pub bind: CpuBindPolicy,
    /// The bind policy nobody may depart from.
    pub required: RequiredBind,
    /// What the exclusive policy Default means.
    pub exclusive: CpuExclusivePolicy,
    /// The strategy of who names none.
    pub strategy: NumaAllocateStrategy,
    /// The alignment policy of who names none.
    pub alignment: NumaTopologyAlignmentPolicy,
}

/// Those of the documents' plugin configuration, where it has them.
impl Default for AllocatorPolicies {
    fn default() -> Self {
        Self {
            source: CpuSource::default(),
            reserved: CpuSet::new(),
            qos: Qos::Lse,
            bind: CpuBindPolicy::FullPcpus,
            required: RequiredBind::default(),
            exclusive: CpuExclusivePolicy::None,
            strategy: NumaAllocateStrategy::default(),
            alignment: NumaTopologyAlignmentPolicy::BestEffort,
        }
    }
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
