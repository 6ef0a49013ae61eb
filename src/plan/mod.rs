//! Every decision, as pure functions over plain values: no I/O, no clock, the same answer for the same input.
//!
//! [`admission`] decides whether a container becomes an instance, [`placement`] which vCPU gets which CPU, [`plan`] what
//! must be written so that the kernel is as the records say.

pub mod admission;
pub mod placement;
pub mod record;
mod snapshot;
mod steps;

pub use record::{Phase, Record, VcpuThread};
pub use snapshot::{Inner, Instance, Leaf, Snapshot, VcpuNow};
pub use steps::{Planned, Step, degraded, float_cpus, plan};
