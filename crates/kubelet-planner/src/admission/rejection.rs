//! Why kubelet does not admit a pod.

use std::fmt;

use super::Merge;
use crate::{cpus, devices, memory};

/// Why kubelet does not admit the pod. The texts are kubelet's own; in the pod's status `Pod was rejected: ` precedes
/// the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Which manager rejects, and why.
    pub cause: Cause,
    /// The container; `None`: the pod as a whole.
    pub container: Option<String>,
    /// The resource. Where NUMA nodes are not agreed on: the first that has none, or none that it prefers and the
    /// policy takes. `None`: each resource has such nodes, but not the same.
    pub resource: Option<String>,
    /// All merges so far; with [`Cause::Topology`] or [`Cause::PodTopology`] the last one is at fault.
    pub merges: Vec<Merge>,
}

/// Which manager rejects, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The Topology Manager rejects.
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    /// The Topology Manager rejects a pod with pod-level resources that it aligns as a whole.
    #[error("Pod Scope pod with pod-level resources failed admission under pod-scope topology manager")]
    PodTopology,
    /// The CPU manager rejects.
    #[error(transparent)]
    Cpus(cpus::CpuRefusal),
    /// The memory manager rejects.
    #[error(transparent)]
    Memory(memory::MemoryRefusal),
    /// The device manager rejects.
    #[error(transparent)]
    Devices(devices::DeviceRefusal),
}

impl Rejection {
    /// A rejection of the pod as a whole, before any merge.
    pub(super) fn of(cause: Cause) -> Box<Self> {
        Box::new(Self {
            cause,
            container: None,
            resource: None,
            merges: Vec::new(),
        })
    }

    /// `status.reason` of the pod. `None`: kubelet never answers, because it hangs or crashes.
    ///
    /// ```
    /// use kubelet_planner::{Cause, Rejection, cpus::CpuRefusal};
    ///
    /// let of = |cause| Rejection { cause, container: None, resource: None, merges: Vec::new() };
    /// assert_eq!(of(Cause::Topology).reason(), Some("TopologyAffinityError"));
    /// assert_eq!(of(Cause::Cpus(CpuRefusal::WouldNotReturn)).reason(), None);
    /// let few = of(Cause::Cpus(CpuRefusal::NotEnough { requested: 4, available: 2 }));
    /// assert_eq!(few.reason(), Some("UnexpectedAdmissionError"));
    /// assert_eq!(
    ///     few.to_string(),
    ///     "Allocate failed due to not enough cpus available to satisfy request: requested=4, available=2, which is unexpected"
    /// );
    /// ```
    pub fn reason(&self) -> Option<&'static str> {
        match &self.cause {
            Cause::Topology | Cause::PodTopology => Some("TopologyAffinityError"),
            Cause::Cpus(cpus::CpuRefusal::WouldNotReturn) => None,
            Cause::Cpus(refusal) => Some(refusal.reason()),
            Cause::Memory(refusal) => refusal.reason(),
            Cause::Devices(_) => Some(UNEXPECTED),
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
