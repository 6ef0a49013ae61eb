#![doc = include_str!("../README.md")]

pub mod admission;
pub mod adopt;
pub mod allocator;
mod attach;
mod degraded;
mod derived;
pub mod disturbances;
pub mod drift_findings;
pub mod entitlement;
#[cfg(test)]
mod evaluate_tests;
pub mod float;
mod home;
mod kubelet_state;
mod partition_kind;
pub mod pod_pool;
pub mod rebind;
#[cfg(test)]
mod replay_tests;
mod shown_state;
mod snapshot;
mod steps;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing;
mod totals;
mod validated;
mod vcpu_placement;
pub mod workers;

pub use attach::{AdoptedPlacement, attached, placement_of};
pub use derived::{Assessment, Blocked, Concerned, Derived};
pub use home::{Above, Registration};
pub use kubelet_state::{refused_beside, usable_state};
pub use shown_state::{is_off_its_cpus, not_isolated, shown_state};
pub use snapshot::{
    Instance, InstanceCgroup, Level, MisplacedThread, Outside, RemainingThread, Slice, Snapshot, ThreadedCgroup,
    VcpuNow,
};
pub use stelia_model::record::Tree;
pub(crate) use steps::placed;
pub use steps::{
    OUTSIDE, Planned, Step, Wait, Whom, is_restricted, is_throttled, limits_are_carried, limits_of_scope, plan,
    plan_for, too_much_memory, waits,
};
pub(crate) use totals::Totals;
pub use validated::{LiveState, claim_without_record, is_in_force, validated};
