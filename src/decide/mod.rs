//! Every decision, as pure functions over plain values: no I/O, no clock, the same answer for the same input.
//!
//! | module | what it decides |
//! |---|---|
//! | [`admission`] | whether a container becomes an instance |
//! | [`allocator`] | on which CPUs, where steliad chooses them |
//! | `attach`, [`placement`] | which vCPU gets which CPU, and the kind of partition |
//! | `snapshot`, `facts`, `totals` | the input: what was read, and what is derived from it once |
//! | [`entitlement`], [`float`], [`pod_pool`] | which pod kubelet's file gives CPUs to; where floats run |
//! | `steps` | what must be written so that the system is as the records say |
//! | [`workers`] | where the kernel's unbound workers may run |
//! | `degraded`, `contained`, [`drift`] | the reasons of degradation, and of no partition; what another program changed |
//! | [`rebind`] | which instances would have less fragmented CPUs elsewhere |

pub(crate) mod admission;
pub(crate) mod allocator;
mod attach;
mod contained;
mod degraded;
pub(crate) mod drift;
pub(crate) mod entitlement;
#[cfg(test)]
pub(crate) mod evaluate_tests;
mod facts;
pub(crate) mod float;
mod in_place;
pub(crate) mod placement;
pub(crate) mod pod_pool;
pub(crate) mod quiet;
pub(crate) mod rebind;
#[cfg(test)]
mod replay;
mod snapshot;
mod steps;
mod totals;
pub(crate) mod workers;

pub(crate) use attach::{Wanted, attached};
pub(crate) use contained::ContainedReason;
pub(crate) use facts::{Assessment, Facts};
pub(crate) use in_place::in_place;
pub(crate) use snapshot::{Inner, Instance, Leaf, Level, Outside, Remaining, Slice, Snapshot, Stray, VcpuNow};
pub(crate) use stelia_record::Tree;
pub(crate) use steps::{
    OUTSIDE, Plan, Planned, Step, is_restricted, is_throttled, limits_are_carried, limits_of_scope, placed, plan,
    plan_for, too_much_memory,
};
pub(crate) use totals::Totals;
