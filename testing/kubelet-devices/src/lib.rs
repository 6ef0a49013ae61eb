//! kubelet's side of the device plugin API; see the README.

// Only tests use this crate: a comment explains a rule or a reason where one is needed.
#![allow(missing_docs)]

pub mod answer;
pub mod checkpoint;
pub mod control;
pub mod folder;
pub mod kubelet;
pub mod manager;
pub mod offered;
pub mod unusual_calls;
