#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod checkpoint;
pub mod checksum;
pub mod config;
pub mod devices;
pub mod home;
pub mod memory;
pub mod pod;
mod request;

pub use checkpoint::{CheckpointError, CpuManagerState};
pub use config::KubeletConfig;
pub use devices::DeviceManagerState;
pub use memory::MemoryManagerState;
pub use pod::{ContainerCgroup, PodUid, QosClass};
pub use request::CpuRequest;
