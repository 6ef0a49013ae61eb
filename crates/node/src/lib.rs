#![doc = include_str!("../README.md")]

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
