//! kubelet's static memory manager policy: from which NUMA nodes a container's memory and huge pages come, or why it is rejected.

mod state;

pub use state::{State, kind};
