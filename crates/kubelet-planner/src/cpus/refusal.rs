//! Why kubelet rejects a pod, or does not start.

use stelia_cpus::CpuSet;

/// Why kubelet rejects a pod or does not start. The texts are kubelet's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuRefusal {
    /// Fewer CPUs may be taken than are wanted.
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough {
        /// CPUs wanted.
        requested: usize,
        /// CPUs that may be taken.
        available: usize,
    },
    /// The packed algorithm ended without enough CPUs.
    #[error("failed to allocate cpus")]
    Failed,
    /// The distributed algorithm took fewer CPUs than are wanted.
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    TooFewTaken(i64),
    /// The distributed algorithm took more CPUs than are wanted.
    #[error("accounting error, too many CPUs allocated, remaining: {0}")]
    TooManyTaken(i64),
    /// kubelet repeats a step that changes nothing, for ever: the pod stays pending and its CPU manager hangs.
    #[error("kubelet would not return")]
    WouldNotReturn,
    /// Not kubelet's: distribute-cpus-across-numa has more combinations of NUMA nodes than this planner looks at.
    #[error(
        "not predicted: distribute-cpus-across-numa compares all sets of {size} of {nodes} NUMA nodes, more than this planner does; kubelet sets no limit"
    )]
    NotSearched {
        /// NUMA nodes with free CPUs.
        nodes: usize,
        /// NUMA nodes that the CPUs would come from.
        size: usize,
    },
    /// full-pcpus-only: the request is not a multiple of the CPUs per core (`SMTAlignmentError`).
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores {
        /// CPUs wanted.
        requested: usize,
        /// CPUs per core.
        per_core: usize,
    },
    /// full-pcpus-only: more CPUs are wanted than there are outside the cores of reserved CPUs (`SMTAlignmentError`).
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, \
         requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores {
        /// CPUs of the shared pool outside the cores of reserved CPUs, halves of cores included.
        available: usize,
        /// CPUs wanted.
        requested: usize,
        /// CPUs per core.
        per_core: usize,
    },
    /// Pod-level resources: an init container wants more exclusive CPUs than the sidecars before it leave.
    #[error("pod rejected, largest exclusive init container requests {requested} cpus, but only {available} available")]
    InitContainerTooLarge {
        /// CPUs wanted.
        requested: usize,
        /// CPUs that the sidecars before it leave of the pod's.
        available: i64,
    },
    /// Pod-level resources: sidecars leave nothing to an init container without exclusive CPUs.
    #[error("pod rejected, pod has shared init containers but no cpus available for them")]
    EmptyPoolOfInitContainers,
    /// Pod-level resources: exclusive CPUs leave nothing to the containers without.
    #[error(
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
    )]
    EmptyPodSharedPool,
    /// The policy could not choose the CPUs to reserve.
    #[error("[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {count})")]
    ReservedCount {
        /// The CPUs given or found.
        reserved: CpuSet,
        /// How many are to be reserved.
        count: usize,
    },
    /// A CPU to reserve does not exist.
    #[error("[cpumanager] unable to build the reserved physical CPUs from the reserved set: no CPU {0}")]
    ReservedUnknown(u32),
    /// The state has entries, and no shared pool.
    #[error("default cpuset cannot be empty")]
    DefaultEmpty,
    /// strict-cpu-reservation: reserved CPUs are in the shared pool.
    #[error("some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{default}\"")]
    ReservedInDefault {
        /// The reserved CPUs that are in it.
        reserved: CpuSet,
        /// The shared pool.
        default: CpuSet,
    },
    /// Reserved CPUs are missing in the shared pool.
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{default}\"")]
    ReservedNotInDefault {
        /// The reserved CPUs.
        reserved: CpuSet,
        /// The shared pool.
        default: CpuSet,
    },
    /// A container's CPUs are in the shared pool.
    #[error("pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{default}\"")]
    EntryInDefault {
        /// Its pod.
        pod: String,
        /// The container.
        container: String,
        /// Its CPUs.
        cpus: CpuSet,
        /// The shared pool.
        default: CpuSet,
    },
    /// The state's CPUs are not the node's.
    #[error("current set of available CPUs \"{node}\" doesn't match with CPUs in state \"{state}\"")]
    OtherCpus {
        /// The node's; without the reserved ones under strict-cpu-reservation.
        node: CpuSet,
        /// The state's.
        state: CpuSet,
    },
}

impl CpuRefusal {
    /// The reason in the rejected pod's status, as kubelet gives it for a refused allocation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotWholeCores { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
            Self::InitContainerTooLarge { .. } | Self::EmptyPoolOfInitContainers | Self::EmptyPodSharedPool => {
                "EmptyPodSharedPoolError"
            }
            _ => "UnexpectedAdmissionError",
        }
    }
}
