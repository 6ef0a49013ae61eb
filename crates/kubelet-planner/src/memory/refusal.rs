//! Why kubelet rejects, or does not start.

/// Why the memory manager rejects a pod. The texts are kubelet's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryRefusal {
    /// No set of NUMA nodes has the memory.
    #[error("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")]
    NoNodes,
    /// The Topology Manager's hint is preferred, and the NUMA nodes that have the memory are more than would ever be needed.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    /// The Topology Manager's NUMA nodes have too little memory, and no larger set has it.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    /// The Topology Manager's hint is preferred, and the larger set of NUMA nodes is not.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtensionNotPreferred,
    /// One of several NUMA nodes is in use by itself, or in another group.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    OtherGroup,
    /// Pod-level resources: an init container wants more than the sidecars before it leave.
    #[error(
        "pod rejected, largest exclusive init container requests {requested} of {kind}, but only {available} available"
    )]
    InitContainerTooLarge {
        kind: String,
        requested: u64,
        available: u64,
    },
    /// Pod-level resources: sidecars leave nothing to an init container without memory of its own.
    #[error("pod rejected, pod has shared init containers but no {0} available for them")]
    EmptyPoolOfInitContainers(String),
    /// Pod-level resources: memory of their own leaves nothing to the containers without.
    #[error(
        "pod rejected, sum of exclusive container {0} requests equals pod budget, leaving no memory for shared containers"
    )]
    EmptyPodSharedPool(String),
    /// A limit of this planner, not of kubelet: the number of NUMA nodes with the memory.
    #[error(
        "not predicted: the memory could come from any set of {0} NUMA nodes, and this planner looks at those of 16 at most; kubelet sets no limit"
    )]
    NotSearched(usize),
    /// kubelet ends in a panic: it looks up a size of huge pages that a NUMA node does not have.
    #[error("kubelet would crash: NUMA node {node} has no {kind}")]
    WouldCrash { node: u32, kind: String },
}

impl MemoryRefusal {
    /// The reason in the rejected pod's status; `None` where kubelet gives no answer.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::InitContainerTooLarge { .. } | Self::EmptyPoolOfInitContainers(_) | Self::EmptyPodSharedPool(_) => {
                Some("EmptyPodSharedPoolError")
            }
            Self::WouldCrash { .. } | Self::NotSearched(_) => None,
            _ => Some("UnexpectedAdmissionError"),
        }
    }
}

/// Why the memory manager does not start. The texts are kubelet's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryStartError {
    /// No NUMA node has memory reserved for the system.
    #[error("[memorymanager] you should specify the system reserved memory")]
    NothingReserved,
    /// The state has entries, and no NUMA nodes.
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoNodes,
    /// An entry names a NUMA node that is not there.
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA that does not exist"
    )]
    OtherNode {
        /// The pod.
        pod: String,
        /// The container; empty for a pod's own.
        container: String,
    },
    /// An entry names a kind of memory that its NUMA node does not have.
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory resource that does not exist"
    )]
    OtherKind {
        /// The pod.
        pod: String,
        /// The container; empty for a pod's own.
        container: String,
    },
    /// The NUMA nodes are not those of the machine, of the settings and of the entries: memory, huge pages or
    /// `reservedMemory` have changed.
    #[error("[memorymanager] the expected machine state is different from the real one: {what}")]
    Differs {
        /// The NUMA node and the amounts.
        what: String,
    },
}
