#![doc = include_str!("../README.md")]

pub mod client;
mod failure;
pub mod files;
pub mod interrupts;
pub mod irqbalance;
pub mod kernel;
pub mod late_kernel_threads;
pub mod latency;
pub mod order;
pub mod request;
pub mod resctrl;
pub mod service;
pub mod socket_line;
mod store_json;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;

pub use interrupts::read::online;
