#![doc = include_str!("../README.md")]

pub mod activation;
pub mod affinity;
pub mod cgroup;
pub mod containers;
pub mod counters;
pub mod dra;
mod error;
pub mod holder;
pub mod kvm_events;
pub mod locality;
pub mod oci;
pub mod places;
pub mod proc;
pub mod processes;
pub mod runtime;
mod system;
pub mod systemd;
pub mod vfio;
pub mod workqueue;

pub use system::System;
