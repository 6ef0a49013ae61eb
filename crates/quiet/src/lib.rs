#![doc = include_str!("../README.md")]

mod base;
pub mod counts;
pub mod files;
mod interrupts;
pub mod order;
mod plan;
pub mod steer;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
