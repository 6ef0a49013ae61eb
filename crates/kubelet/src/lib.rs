#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod checkpoint;
pub mod checksum;
pub mod config;
pub mod devices;
pub mod home;
pub mod memory;
pub mod place;
pub mod pod;
mod pod_name;
mod request;
mod uid;

pub use checkpoint::{CheckpointError, CpuManagerState};
pub use config::KubeletConfig;
pub use devices::DeviceManagerState;
pub use memory::MemoryManagerState;
pub use pod::{ContainerCgroup, PodUid, QosClass};
pub use pod_name::{PodName, is_label};
pub use request::CpuRequest;
pub use uid::Uid;
