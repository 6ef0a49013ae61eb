#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | `subject` | [`Subject`]: a node, and what is assumed of it |
//! | [`settings`] | kubelet's settings as the planner takes them |
//! | [`start`] | what keeps kubelet from starting, its state files included |
//! | [`why`] | why an answer is not better |

pub mod settings;
pub mod start;
mod subject;
pub mod why;

pub use subject::{Subject, machine};
