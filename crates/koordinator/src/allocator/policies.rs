//! What a pod or an operator can choose, by Koordinator's names, and what a node chooses for itself.

use stelia_cpus::CpuSet;
use stelia_cpus::text::named;

use super::CpuSource;

named! {
    /// How an instance's CPUs lie on physical cores.
    #[derive(Default)]
    pub enum CpuBindPolicy {
        /// The node's own default; the allocator takes it as [`Self::SpreadByPcpus`].
        #[default]
        Default = "Default",
        /// Whole physical cores, as few as possible.
        FullPcpus = "FullPCPUs",
        /// One CPU of every physical core before a second one of any.
        SpreadByPcpus = "SpreadByPCPUs",
        /// No CPUs of its own: the shared pool of one NUMA node (QoS class LS).
        ConstrainedBurst = "ConstrainedBurst",
    }
}

impl CpuBindPolicy {
    /// The node's default in place of [`Self::Default`].
    pub fn or(self, default: Self) -> Self {
        if self == Self::Default { default } else { self }
    }
}

named! {
    /// A bind policy that every allocation of the node must satisfy: Koordinator's node label `node.koordinator.sh/cpu-bind-policy`.
    #[derive(Default)]
    pub enum RequiredBind {
        /// Pods choose.
        #[default]
        None = "None",
        /// Whole cores, or no allocation.
        FullPcpusOnly = "FullPCPUsOnly",
        /// One CPU of a core, or no allocation.
        SpreadByPcpus = "SpreadByPCPUs",
    }
}

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

named! {
    /// Which neighbours an instance avoids: instances with the same policy.
    #[derive(Default)]
    pub enum CpuExclusivePolicy {
        /// The node's own default; the allocator takes it as [`Self::None`].
        #[default]
        Default = "Default",
        /// Avoids none.
        None = "None",
        /// On its physical cores.
        PcpuLevel = "PCPULevel",
        /// On its NUMA nodes; where that cannot be, on its physical cores.
        NumaNodeLevel = "NUMANodeLevel",
    }
}

impl CpuExclusivePolicy {
    /// The node's default in place of [`Self::Default`].
    pub fn or(self, default: Self) -> Self {
        if self == Self::Default { default } else { self }
    }
}

named! {
    /// Which NUMA nodes CPUs are taken from.
    #[derive(Default)]
    pub enum NumaAllocateStrategy {
        /// The node with the fewest free CPUs that has enough.
        #[default]
        MostAllocated = "MostAllocated",
        /// The node with the most free CPUs.
        LeastAllocated = "LeastAllocated",
        /// The same number of CPUs from every node.
        DistributeEvenly = "DistributeEvenly",
    }
}

impl NumaAllocateStrategy {
    /// The sort key of a number of free CPUs, ascending in the order in which nodes are taken.
    pub(crate) fn rank(self, free: usize) -> isize {
        match self {
            Self::MostAllocated => free.cast_signed(),
            Self::LeastAllocated | Self::DistributeEvenly => -free.cast_signed(),
        }
    }
}

named! {
    /// Whether the NUMA nodes are chosen before the CPUs, and what must hold of them.
    #[derive(Default)]
    pub enum NumaTopologyAlignmentPolicy {
        /// CPUs may come from any nodes.
        #[default]
        None = "None",
        /// As few nodes as would do on an empty host; if these are not free, as few as possible.
        BestEffort = "BestEffort",
        /// As few nodes as would do on an empty host, or no allocation.
        Restricted = "Restricted",
        /// One node, or no allocation.
        SingleNumaNode = "SingleNUMANode",
    }
}

impl NumaTopologyAlignmentPolicy {
    /// Whether CPUs that do not satisfy it are refused.
    pub fn is_strict(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }
}

named! {
    /// Koordinator's QoS classes that concern CPUs.
    #[derive(PartialOrd, Ord)]
    pub enum Qos {
        /// CPUs of its own where nothing else runs.
        Lse = "LSE",
        /// CPUs of its own that [`Self::Be`] may run on.
        Lsr = "LSR",
        /// The shared pool.
        Ls = "LS",
        /// The BE shared pool.
        Be = "BE",
    }
}

impl Qos {
    /// Whether it gets CPUs of its own.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Lse | Self::Lsr)
    }
}

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
