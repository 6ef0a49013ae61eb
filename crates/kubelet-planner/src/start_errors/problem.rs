//! One thing that keeps kubelet from starting, in words.

use stelia_cpus::CpuSet;

use crate::cpus::CpuOptionsError;
use crate::features::KUBELET;
use crate::merge::TopologyOptionError;

/// Why kubelet does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartProblem {
    /// kubelet has no such gate, and one that is like it.
    #[error("featureGates: kubelet 1.{KUBELET} has no gate {gate} (did you mean {like}?)")]
    MisspeltGate {
        /// As it is given.
        gate: String,
        /// The gate that may be meant.
        like: &'static str,
    },
    /// The gate is turned off, and it is on for good.
    #[error("featureGates: {0} is on for good in kubelet 1.{KUBELET} and cannot be turned off")]
    LockedGate(String),
    /// A gate is on, and one that it needs is off.
    #[error("featureGates: {gate} is on and needs {needs}, which is off")]
    GateNeeds {
        /// The gate.
        gate: &'static str,
        /// The gate that is off.
        needs: &'static str,
    },
    /// There is no such policy or scope.
    #[error("{setting} is {value:?}, and kubelet has {known}")]
    Policy {
        /// The key.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        known: String,
    },
    /// An amount of `kubeReserved`, `systemReserved`, `evictionHard` or `reservedMemory`.
    #[error("{key}: {cause}")]
    Amount {
        /// The key, as its path.
        key: String,
        /// What is wrong.
        cause: String,
    },
    /// `reservedSystemCPUs` is set together with a cgroup for what is reserved.
    #[error("reservedSystemCPUs does not go with systemReservedCgroup or kubeReservedCgroup")]
    ReservedCgroup,
    /// An entry of `enforceNodeAllocatable`.
    #[error("enforceNodeAllocatable: {0}")]
    Enforcement(String),
    /// The node does not have reserved CPUs, or they are offline.
    #[error("reservedSystemCPUs: this node has no CPUs {0} online")]
    ReservedCpus(CpuSet),
    /// The static policy without reserved CPUs.
    #[error(
        "cpuManagerPolicy static needs CPUs that are reserved, and there are none: neither reservedSystemCPUs nor cpu in kubeReserved or \
         systemReserved is set (kubelet: the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero)"
    )]
    NothingReserved,
    /// Options of the CPU manager's policy with policy none.
    #[error("cpuManagerPolicyOptions: the policy none has no options, and {} is given (kubelet: None policy: received unsupported options)", .0.join(", "))]
    OptionsOfNone(Vec<String>),
    /// An option of the CPU manager's policy.
    #[error("cpuManagerPolicyOptions: {0}")]
    CpuOption(CpuOptionsError),
    /// align-by-socket with single-numa-node.
    #[error("cpuManagerPolicyOptions: align-by-socket does not go with the Topology Manager's policy single-numa-node")]
    SocketOfOneNode,
    /// An option of the Topology Manager's policy.
    #[error("topologyManagerPolicyOptions: {0}")]
    TopologyOption(TopologyOptionError),
    /// An option's feature gate is off.
    #[error("{option} ({history}) needs the feature gate {gate} in 1.{KUBELET}")]
    OptionGate {
        /// The option.
        option: &'static str,
        /// Its stages in words.
        history: String,
        /// The gate that is off.
        gate: &'static str,
    },
    /// More NUMA nodes than the Topology Manager takes.
    #[error("Topology Manager: {nodes} NUMA nodes are more than the {most} of max-allowable-numa-nodes")]
    NumaNodes {
        /// How many the machine has.
        nodes: usize,
        /// How many it may have.
        most: usize,
    },
    /// The static memory policy without reserved memory.
    #[error(
        "memoryManagerPolicy Static needs reservedMemory, and none is set (kubelet: [memorymanager] you should specify the system reserved memory)"
    )]
    NoReservedMemory,
    /// Memory is reserved on a NUMA node that the machine does not have.
    #[error("reservedMemory: this node has no NUMA node {0}")]
    MemoryNode(i64),
    /// What is reserved on NUMA nodes is not what is reserved in all.
    #[error(
        "reservedMemory has {reserved} bytes of {kind} in sum, and kubeReserved, systemReserved and evictionHard come to {needed} (kubelet: the \
         total amount \"{reserved}\" of type \"{kind}\" is not equal to the value \"{needed}\" determined by Node Allocatable feature)"
    )]
    MemorySum {
        /// `memory`, or huge pages.
        kind: String,
        /// Bytes in `reservedMemory`.
        reserved: u64,
        /// Bytes that it has to have.
        needed: u64,
    },
    /// A state file is not one that this configuration goes on with.
    #[error("{why}")]
    State {
        /// Its name in kubelet's root directory.
        file: &'static str,
        /// In kubelet's words.
        why: String,
        /// A change of the configuration that makes it fit again; empty where there is none.
        instead: String,
    },
    /// Another thing that the planner found.
    #[error("{0}")]
    Other(String),
}

impl StartProblem {
    /// Whether another version of kubelet may start.
    pub fn is_of_this_version(&self) -> bool {
        matches!(
            self,
            Self::MisspeltGate { .. }
                | Self::LockedGate(_)
                | Self::OptionGate { .. }
                | Self::CpuOption(CpuOptionsError::Unknown(_))
                | Self::TopologyOption(TopologyOptionError::Unknown(_))
        )
    }

    /// Whether it is that memory is not reserved on NUMA nodes as it is in all, or not at all.
    pub fn is_of_reserved_memory(&self) -> bool {
        matches!(self, Self::NoReservedMemory | Self::MemorySum { .. })
    }

    /// What to do, whether kubelet runs or not: one that runs goes on until it is restarted. `root`: kubelet's root directory.
    pub fn cure(&self, root: &std::path::Path) -> String {
        match self {
            Self::MisspeltGate { like, .. } => format!("write {like}, or leave the gate out; another version of kubelet may differ"),
            Self::LockedGate(gate) => format!("leave {gate} out of featureGates; another version of kubelet may differ"),
            Self::GateNeeds { gate, needs } => format!("turn {needs} on, or {gate} off"),
            Self::Policy { setting, known, .. } => format!("set {setting} to one of {known}"),
            Self::Amount { key, .. } => format!("correct {key}"),
            Self::ReservedCgroup => "leave out systemReservedCgroup and kubeReservedCgroup, or reserve CPUs by amount".to_owned(),
            Self::Enforcement(_) => "correct enforceNodeAllocatable: pods, and system-reserved or kube-reserved where the cgroup of each is set; \
                with cgroupsPerQOS: false an empty list"
                .to_owned(),
            Self::ReservedCpus(_) => "set reservedSystemCPUs to CPUs that this node has and that are online".to_owned(),
            Self::NothingReserved => "set reservedSystemCPUs to whole cores, in quotation marks: \"0-1\"".to_owned(),
            Self::OptionsOfNone(_) => "remove cpuManagerPolicyOptions, or set cpuManagerPolicy: static".to_owned(),
            Self::CpuOption(_) | Self::TopologyOption(_) if self.is_of_this_version() => {
                "correct the setting, unless this kubelet is newer than steliad and knows it".to_owned()
            }
            Self::CpuOption(_) | Self::SocketOfOneNode | Self::TopologyOption(_) => {
                "correct cpuManagerPolicyOptions and topologyManagerPolicyOptions (/usr/share/doc/steliad/kubelet.md)".to_owned()
            }
            Self::OptionGate { gate, .. } => {
                format!("featureGates: {{{gate}: true}}, or leave the option out; another version of kubelet may differ")
            }
            Self::NumaNodes { .. } => "topologyManagerPolicy: none, the option max-allowable-numa-nodes (Kubernetes 1.31 on), which makes admissions \
                slow, or fewer NUMA nodes by the firmware (NPS, SNC), where it has such a setting"
                .to_owned(),
            Self::NoReservedMemory | Self::MemoryNode(_) | Self::MemorySum { .. } => {
                "set reservedMemory so that its memory is, in sum over NUMA nodes of this machine, that of kubeReserved, systemReserved and \
                 evictionHard together, and leave huge pages out of it; or memoryManagerPolicy: None"
                    .to_owned()
            }
            Self::State { file, instead, .. } => {
                let remove = format!("drain the node, stop kubelet, remove {}, start kubelet", root.join(file).display());
                match instead.as_str() {
                    "" => remove,
                    instead => format!("{remove}; or {instead}"),
                }
            }
            Self::Other(_) => "correct the setting (/usr/share/doc/steliad/kubelet.md)".to_owned(),
        }
    }
}
