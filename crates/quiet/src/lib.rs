#![doc = include_str!("../README.md")]

pub mod client;
mod failure;
pub mod files;
pub mod latency;
pub mod order;
mod record;
pub mod resctrl;
pub mod threads;
