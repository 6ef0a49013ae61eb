#![doc = include_str!("README.md")]
//!
//! | module | what is there |
//! |---|---|
//! | `policies` | the choices by Koordinator's names, and a node's own: [`AllocatorPolicies`] |
//! | `request` | what is asked: [`AllocationRequest`], and what a scheduler chose before: [`Schedule`] |
//! | `pools` | which CPUs may be allocated, and which everybody else runs on: [`Pools`] |
//! | `guaranteed` | Guaranteed pods that are not VMs, and CPUs that kubelet once gave to such pods |
//! | `decision` | from a request to an [`Allocation`]: [`AllocatorNode::allot`] checks it, resolves defaults and tells why |
//! | `select` | which NUMA nodes and which CPUs, without classes or pods: [`align`](fn@align), [`select_cpus`] |
//! | [`evaluate`] | the same decision for schedulers, with the documents' score |

mod decision;
pub mod evaluate;
mod guaranteed;
mod policies;
mod pools;
mod request;
mod select;

pub use decision::{Allocation, AllocatorNode, HeldCpus, Requester, ResizeRequest, chosen_by_kubelet};
pub use guaranteed::{Guaranteed, RunningContainer, guaranteed, leftover};
pub use policies::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, NumaAllocateStrategy, NumaTopologyAlignmentPolicy,
    Qos, RequiredBind,
};
pub use pools::{Pools, SharedPool, constrained_burst};
#[cfg(feature = "command-line")]
pub use request::command_line;
pub use request::{AllocationRequest, Schedule, koordinator};
pub use select::{
    CpuSelection, Exclusivity, HostTables, InUse, Room, SelectedCpus, TakeCriteria, Unsatisfied, Usage, align,
    exclusivity_conflicts, satisfies, select_cpus, take_cpus, take_preferred_cpus,
};
