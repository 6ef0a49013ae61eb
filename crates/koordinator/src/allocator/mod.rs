#![doc = include_str!("README.md")]

mod cpu_source;
mod decision;
pub mod evaluate;
mod guaranteed;
mod policies;
mod pools;
mod request;
mod select;

pub use cpu_source::CpuSource;
pub use decision::{Allocation, AllocatorNode, HeldCpus, Requester, ResizeRequest, chosen_by_kubelet};
pub use guaranteed::{Guaranteed, RunningContainer, guaranteed, leftover};
pub use policies::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
    RequiredBind,
};
pub use pools::{Pools, SharedPool, constrained_burst};
#[cfg(feature = "command-line")]
pub use request::command_line;
pub use request::{AllocationRequest, Schedule, koordinator};
pub use select::{
    CpuSelection, Exclusivity, HostTables, InUse, Room, SelectedCpus, TakeCriteria, Unsatisfied, Usage, align,
    exclusivity_conflicts, satisfies, select_cpus, take_preferred_cpus,
};
