//! What kubelet says: its checkpoint files, their checksum, and the names it gives pods' cgroups.

pub mod checkpoint;
pub mod checksum;
pub mod memory;
pub mod pod;

pub use checkpoint::{CheckpointError, CpuManagerState};
pub use memory::MemoryManagerState;
pub use pod::{ContainerCgroup, PodUid};
