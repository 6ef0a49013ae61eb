#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`devices`] | a node's devices, where no file of kubelet has them |
//! | [`hints`] | what kubelet's managers tell the Topology Manager, and what it makes of it |
//! | [`planned_nodes`] | whether the planned CPUs, memory and devices are on the same NUMA nodes |
//! | [`room`] | whether the requests of all pods fit |
//! | `subject` | [`Subject`]: a node, and what is assumed of it |
//! | [`settings`] | kubelet's settings as the planner takes them |
//! | [`start`] | what keeps kubelet from starting, its state files included |
//! | [`why`] | why an answer is not better |

pub mod devices;
pub mod hints;
pub mod planned_nodes;
pub mod room;
pub mod settings;
pub mod start;
mod subject;
pub mod why;

pub use subject::{Subject, machine};
