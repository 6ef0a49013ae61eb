#![doc = include_str!("../README.md")]

mod failure;
pub mod files;
pub mod latency;
pub mod order;
mod record;
pub mod resctrl;
pub mod threads;
