#![doc = include_str!("../README.md")]

mod admission;
mod description;
mod instance;
mod members;
mod node;
mod problems;
mod reasons;
pub mod record;
#[cfg(test)]
mod tests;
mod vm_capacity;

pub use admission::AdmissionProblem;
pub use description::{Description, Usage};
pub use instance::{Instance, PendingResize, PinnedThread};
pub use node::{Counters, FormerVm, LastPass, Node, Pools, Trigger, Unadopted};
pub use reasons::{FloatReason, PinnedReason};
pub use stelia_api::job::{Job, JobMove, JobPhase};
