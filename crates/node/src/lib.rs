//! The seams behind which a node stands, and what stands there on a real one: cgroup v2, processes, systemd, the container
//! runtime's files.

mod affinity;
pub mod cgroup;
pub mod containers;
mod error;
pub mod holder;
pub mod locality;
pub mod proc;
pub mod runtime;
mod system;
pub mod systemd;
pub mod workqueue;

pub use system::System;
