//! kubelet's side of the device plugin API; see the README.

pub mod answer;
pub mod checkpoint;
pub mod control;
pub mod folder;
pub mod kubelet;
pub mod manager;
pub mod offered;
pub mod unusual_calls;
