#![doc = include_str!("../README.md")]
//!
//! They follow kubelet 1.36, its faults included, and report the faults.
//!
//! | module | what it answers |
//! |---|---|
//! | [`admit`] | all of them together: is the pod admitted to the [`Node`], what does it get, what is left? |
//! | [`cpus`] | CPU Manager, static policy: which CPUs does a container get, and what does kubelet's state say then? |
//! | [`memory`] | Memory Manager, static policy: from which NUMA nodes does its memory come? |
//! | [`devices`] | Device Manager: which devices does it get? |
//! | [`until_full`] | how many of a pod fit? |
//! | [`start_errors`] | what keeps kubelet from starting with a configuration? |
//! | [`features`] | which versions have the settings, and which feature gates do these need? |
//! | [`manifest`] | a manifest as the API server would store it |
//! | [`merge`] | Topology Manager: which NUMA nodes do all the hints agree on, and is the pod admitted? |
#![deny(missing_docs)]

mod admission;
pub mod cpus;
pub mod devices;
pub mod features;
mod how_many_fit;
pub mod manifest;
pub mod memory;
pub mod merge;
mod node;
mod pod;
mod settings;
pub mod start_errors;
#[cfg(test)]
mod testing;

pub use admission::{Admission, ContainerAllocation, Cpus, Merge, Rejection, admit};
pub use how_many_fit::{Fill, until_full};
pub use node::{MAX_NODES, Machine, Node, NodeState, NumaNode, StartError};
pub use pod::{Amounts, Container, ContainerKind, Pod, Resources};
pub use settings::{CpuManager, MemoryManager, Settings};
pub use start_errors::StartProblem;
