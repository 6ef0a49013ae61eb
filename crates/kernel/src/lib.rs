#![doc = include_str!("../README.md")]

pub mod activation;
pub mod affinity;
mod async_fd;
pub mod cgroup;
pub mod clock;
pub mod containers;
pub mod counters;
pub mod dra;
pub mod holder;
pub mod kernel_release;
pub mod kvm_events;
pub mod locality;
pub mod oci;
pub mod proc;
pub mod runtime_config;
pub mod runtime_folders;
mod system;
pub mod systemd;
#[cfg(test)]
mod test_root;
pub mod vfio;
pub mod vmm_processes;
pub mod workqueue;

pub use system::System;
