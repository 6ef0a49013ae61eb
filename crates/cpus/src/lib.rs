//! CPU sets as the kernel writes them, the topology of a host, and Kubernetes' quantities.

mod cpuset;
pub mod files;
pub mod quantity;
mod topology;

pub use cpuset::{CpuSet, MAX_CPUS, ParseError};
#[cfg(any(test, feature = "testing"))]
pub use topology::testing;
pub use topology::{Cpu, Topology};
