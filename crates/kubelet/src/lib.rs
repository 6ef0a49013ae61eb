#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod allocated_pods;
pub mod checksum;
pub mod config;
mod container_cgroup;
pub mod cpu_manager_state;
pub mod devices;
pub mod dra_manager_state;
pub mod home;
mod host_process;
pub mod memory;
pub mod pod;
mod pod_name;
pub mod process_place;
mod request;
mod uid;

pub use allocated_pods::AllocatedPods;
pub use config::KubeletConfig;
pub use container_cgroup::ContainerCgroup;
pub use cpu_manager_state::{CheckpointError, CpuManagerState};
pub use devices::DeviceManagerState;
pub use host_process::HostProcess;
pub use memory::MemoryManagerState;
pub use pod::{PodUid, QosClass};
pub use pod_name::{PodName, is_label};
pub use request::CpuRequest;
pub use uid::Uid;
