#![doc = include_str!("../README.md")]

mod base;
pub mod client;
mod failure;
pub mod files;
mod interrupts;
pub mod irqbalance;
pub mod kernel;
pub mod latency;
pub mod line;
pub mod order;
mod plan;
mod record;
pub mod request;
pub mod resctrl;
pub mod steer;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;
pub mod trace;
