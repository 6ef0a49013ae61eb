//! What kubelet says: its checkpoint files, their checksum, and the names it gives pods' cgroups.

pub mod checkpoint;
pub mod checksum;
pub mod pod;

pub use checkpoint::{CheckpointError, CpuManagerState};
pub use pod::{ContainerCgroup, PodUid};
