//! Why kubelet does not admit a pod.

use std::fmt;

use super::Merge;
use crate::{cpus, devices, memory};

/// Why kubelet does not admit the pod. The texts are kubelet's own; in the pod's status `Pod was rejected: ` precedes
/// the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Which manager rejects, and why.
    pub(crate) cause: Cause,
    /// The container; `None`: the pod as a whole.
    pub container: Option<String>,
    /// The resource. Where NUMA nodes are not agreed on: the first that has none, or none that it prefers and the
    /// policy takes. `None`: each resource has such nodes, but not the same.
    pub resource: Option<String>,
    /// All merges so far; where the Topology Manager rejects, the last one is at fault.
    pub merges: Vec<Merge>,
}

/// Which manager rejects, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    /// The Topology Manager rejects a pod with pod-level resources that it aligns as a whole.
    #[error("Pod Scope pod with pod-level resources failed admission under pod-scope topology manager")]
    PodTopology,
    #[error(transparent)]
    Cpus(#[from] cpus::CpuRefusal),
    #[error(transparent)]
    Memory(#[from] memory::MemoryRefusal),
    #[error(transparent)]
    Devices(#[from] devices::DeviceRefusal),
}

impl Rejection {
    /// `status.reason` of the pod. `None`: kubelet never answers, because it hangs or crashes; or its answer is
    /// [not predicted](Self::is_unknown).
    pub fn reason(&self) -> Option<&'static str> {
        match &self.cause {
            Cause::Topology | Cause::PodTopology => Some("TopologyAffinityError"),
            Cause::Cpus(cpus::CpuRefusal::WouldNotReturn | cpus::CpuRefusal::NotSearched { .. }) => None,
            Cause::Cpus(refusal) => Some(refusal.reason()),
            Cause::Memory(refusal) => refusal.reason(),
            Cause::Devices(refusal) if refusal.is_unknown() => None,
            Cause::Devices(_) => Some(UNEXPECTED),
        }
    }

    /// The CPUs that are requested, and the CPUs per core, where kubelet gives whole cores only and the request is no multiple of these.
    pub fn not_whole_cores(&self) -> Option<(usize, usize)> {
        match &self.cause {
            Cause::Cpus(cpus::CpuRefusal::NotWholeCores { requested, per_core }) => Some((*requested, *per_core)),
            _ => None,
        }
    }

    /// Whether nothing is known of kubelet's answer: there are more sets of NUMA nodes than this planner looks at, or it depends on devices of which
    /// too little is known.
    pub fn is_unknown(&self) -> bool {
        match &self.cause {
            Cause::Cpus(cpus::CpuRefusal::NotSearched { .. })
            | Cause::Memory(memory::MemoryRefusal::NotSearched(_)) => true,
            Cause::Devices(refusal) => refusal.is_unknown(),
            _ => false,
        }
    }
}

const UNEXPECTED: &str = "UnexpectedAdmissionError";

impl fmt::Display for Rejection {
    /// The message as kubelet gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(UNEXPECTED) => write!(f, "Allocate failed due to {}, which is unexpected", self.cause),
            _ => self.cause.fmt(f),
        }
    }
}

impl std::error::Error for Rejection {}
