//! A plugin's answer for a container, as JSON for whoever makes the container.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize};
use stelia_device_plugin::api::v1beta1::ContainerAllocateResponse;

/// What the container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The IDs of the devices that were asked for.
    pub ids: Vec<String>,
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Paths of the node.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<Node>,
    /// For the container runtime.
    pub annotations: BTreeMap<String, String>,
    /// Names of the Container Device Interface.
    pub cdi: Vec<String>,
    /// The answer's protobuf bytes, which kubelet keeps.
    pub bytes: Vec<u8>,
}

/// A path of the node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The path on the node.
    pub host: String,
    /// The path in the container.
    pub container: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// A device node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The path on the node.
    pub host: String,
    /// The path in the container.
    pub container: String,
    /// What the device cgroup permits: `r`, `w`, `m`.
    pub permissions: String,
}

impl Answer {
    /// What the plugin answered to the request for these devices.
    pub fn new(ids: Vec<String>, response: ContainerAllocateResponse) -> Self {
        let bytes = response.encode_to_vec();
        let mount = |one: stelia_device_plugin::api::v1beta1::Mount| Mount {
            host: one.host_path,
            container: one.container_path,
            read_only: one.read_only,
        };
        let node = |one: stelia_device_plugin::api::v1beta1::DeviceSpec| Node {
            host: one.host_path,
            container: one.container_path,
            permissions: one.permissions,
        };
        Self {
            ids,
            envs: response.envs,
            mounts: response.mounts.into_iter().map(mount).collect(),
            devices: response.devices.into_iter().map(node).collect(),
            annotations: response.annotations,
            cdi: response.cdi_devices.into_iter().map(|one| one.name).collect(),
            bytes,
        }
    }
}
