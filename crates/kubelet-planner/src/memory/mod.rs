//! kubelet's static memory manager policy: from which NUMA nodes a container's memory and huge pages come, or why it is rejected.
//!
//! The answers are those of Kubernetes 1.36 (`pkg/kubelet/cm/memorymanager/policy_static.go`). Only Guaranteed pods have
//! memory here. A NUMA node serves either containers that are on it alone, or one group of nodes together: a container on
//! nodes 0 and 1 keeps both from any other group, and from containers of one node, until the last of the group is gone.
//!
//! A fault of kubelet's is predicted too. With pod-level resources in the Topology Manager's scope container, NUMA nodes are
//! looked for even for a container that has no memory of its own: it is rejected where the hint names no nodes
//! (`NoNodes`), or all of them and one is in use by itself (`OtherGroup`).
//!
//! kubelet counts in unsigned 64-bit numbers that wrap around, and so does this where that can be seen. In which order it
//! lists a container's blocks is chance; here it is that of their kinds.

mod hints;
mod pod_level;
mod policy;
mod refusal;
mod requests;
mod start;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use hints::has_memory;
pub(crate) use policy::StaticPolicy;
pub(crate) use refusal::MemoryRefusal;
pub use refusal::MemoryStartError;
pub use state::{MemoryState, kind};
