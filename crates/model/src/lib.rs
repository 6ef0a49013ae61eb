#![doc = include_str!("../README.md")]

mod admission;
mod allocation;
mod description;
mod instance;
mod job;
mod members;
mod node;
mod part;
mod reasons;
#[cfg(test)]
mod tests;
mod vm_capacity;

pub use admission::AdmissionProblem;
pub use allocation::Allocation;
pub use description::{Description, Usage};
pub use instance::{Instance, PendingResize, PinnedThread};
pub use job::{Job, JobMove, JobPhase};
pub use node::{Counters, LastPass, Node, Pools, Trigger, Unadopted};
pub use part::Part;
pub use reasons::{ContainedReason, FloatReason};
