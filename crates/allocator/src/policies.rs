//! What a pod or an operator can choose, by Koordinator's names, and what a node chooses for itself.

use stelia_cpus::CpuSet;
use stelia_text::named;

/// How an instance's CPUs lie on physical cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuBindPolicy {
    /// The node's own default; the allocator takes it as [`Self::SpreadByPcpus`].
    #[default]
    Default,
    /// Whole physical cores, as few as possible.
    FullPcpus,
    /// One CPU of every physical core before a second one of any.
    SpreadByPcpus,
    /// No CPUs of its own: the shared pool of one NUMA node (QoS class LS).
    ConstrainedBurst,
}

named!(CpuBindPolicy {
    Default = "Default",
    FullPcpus = "FullPCPUs",
    SpreadByPcpus = "SpreadByPCPUs",
    ConstrainedBurst = "ConstrainedBurst"
});

impl CpuBindPolicy {
    /// The node's default in place of [`Self::Default`].
    pub fn or(self, default: Self) -> Self {
        if self == Self::Default { default } else { self }
    }
}

/// A bind policy that every allocation of the node must satisfy: Koordinator's node label `node.koordinator.sh/cpu-bind-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequiredBind {
    /// Pods choose.
    #[default]
    None,
    /// Whole cores, or no allocation.
    FullPcpusOnly,
    /// One CPU of a core, or no allocation.
    SpreadByPcpus,
}

named!(RequiredBind {
    None = "None",
    FullPcpusOnly = "FullPCPUsOnly",
    SpreadByPcpus = "SpreadByPCPUs"
});

impl RequiredBind {
    /// The bind policy it requires.
    pub fn policy(self) -> Option<CpuBindPolicy> {
        match self {
            Self::None => None,
            Self::FullPcpusOnly => Some(CpuBindPolicy::FullPcpus),
            Self::SpreadByPcpus => Some(CpuBindPolicy::SpreadByPcpus),
        }
    }
}

/// Which neighbours an instance avoids: instances with the same policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuExclusivePolicy {
    /// The node's own default; the allocator takes it as [`Self::None`].
    #[default]
    Default,
    /// Avoids none.
    None,
    /// On its physical cores.
    PcpuLevel,
    /// On its NUMA nodes; where that cannot be, on its physical cores.
    NumaNodeLevel,
}

named!(CpuExclusivePolicy {
    Default = "Default",
    None = "None",
    PcpuLevel = "PCPULevel",
    NumaNodeLevel = "NUMANodeLevel"
});

impl CpuExclusivePolicy {
    /// The node's default in place of [`Self::Default`].
    pub fn or(self, default: Self) -> Self {
        if self == Self::Default { default } else { self }
    }
}

/// Which NUMA nodes CPUs are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NumaAllocateStrategy {
    /// The node with the fewest free CPUs that has enough.
    #[default]
    MostAllocated,
    /// The node with the most free CPUs.
    LeastAllocated,
    /// The same number of CPUs from every node.
    DistributeEvenly,
}

named!(NumaAllocateStrategy {
    MostAllocated = "MostAllocated",
    LeastAllocated = "LeastAllocated",
    DistributeEvenly = "DistributeEvenly"
});

impl NumaAllocateStrategy {
    /// The sort key of a number of free CPUs, ascending in the order in which nodes are taken.
    pub(crate) fn rank(self, free: usize) -> isize {
        match self {
            Self::MostAllocated => free.cast_signed(),
            Self::LeastAllocated | Self::DistributeEvenly => -free.cast_signed(),
        }
    }
}

/// Whether the NUMA nodes are chosen before the CPUs, and what must hold of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NumaTopologyAlignmentPolicy {
    /// CPUs may come from any nodes.
    #[default]
    None,
    /// As few nodes as would do on an empty host; if these are not free, as few as possible.
    BestEffort,
    /// As few nodes as would do on an empty host, or no allocation.
    Restricted,
    /// One node, or no allocation.
    SingleNumaNode,
}

named!(NumaTopologyAlignmentPolicy {
    None = "None",
    BestEffort = "BestEffort",
    Restricted = "Restricted",
    SingleNumaNode = "SingleNUMANode"
});

impl NumaTopologyAlignmentPolicy {
    /// Whether CPUs that do not satisfy it are refused.
    pub fn is_strict(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }
}

/// Koordinator's QoS classes that concern CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qos {
    /// CPUs of its own where nothing else runs.
    Lse,
    /// CPUs of its own that [`Self::Be`] may run on.
    Lsr,
    /// The shared pool.
    Ls,
    /// The BE shared pool.
    Be,
}

named!(Qos {
    Lse = "LSE",
    Lsr = "LSR",
    Ls = "LS",
    Be = "BE"
});

impl Qos {
    /// Whether it gets CPUs of its own.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Lse | Self::Lsr)
    }
}

/// What chooses exclusive CPUs on this node.
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

/// The node's own choices: the settings of the allocator.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AllocatorPolicies {
    pub source: CpuSource,
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// The class of a Guaranteed pod that names none.
    pub qos: Qos,
    /// What the bind policy Default means.
    pub bind: CpuBindPolicy,
    /// The bind policy that every allocation must satisfy.
    pub required: RequiredBind,
    /// What the exclusive policy Default means.
    pub exclusive: CpuExclusivePolicy,
    /// The strategy of a request that names none.
    pub strategy: NumaAllocateStrategy,
    /// The alignment policy of a request that names none.
    pub alignment: NumaTopologyAlignmentPolicy,
}

/// The defaults of Koordinator's plugin configuration, where it has them.
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
