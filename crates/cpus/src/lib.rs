#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod cpuset;
pub mod files;
pub mod located;
pub mod node_set;
pub mod quantity;
pub mod rate;
pub mod text;
mod topology;

pub use cpuset::{CpuSet, MAX_CPUS, ParseError};
pub use node_set::NodeSet;
#[cfg(any(test, feature = "testing"))]
pub use topology::testing;
pub use topology::{Cpu, Topology};
