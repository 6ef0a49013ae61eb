//! What a node chooses for itself: who chooses CPUs, and how.

use stelia_cpus::CpuSet;
use stelia_text::named;

use crate::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos, RequiredBind};

/// Who chooses exclusive CPUs on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuSource {
    /// kubelet's static CPU manager.
    #[default]
    Kubelet,
    /// steliad's own allocator. What kubelet still holds stays kubelet's.
    Steliad,
}

named!(CpuSource {
    Kubelet = "kubelet",
    Steliad = "steliad"
});

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
