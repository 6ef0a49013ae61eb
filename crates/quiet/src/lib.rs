#![doc = include_str!("../README.md")]

pub mod client;
mod failure;
pub mod files;
pub mod irqbalance;
pub mod kernel;
pub mod latency;
pub mod line;
pub mod order;
mod record;
pub mod resctrl;
pub mod threads;
