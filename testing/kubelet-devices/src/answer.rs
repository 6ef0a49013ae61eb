//! A plugin's answer for a container, as JSON for whoever makes the container.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize};
use stelia_device_plugin::api::v1beta1::ContainerAllocateResponse;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub ids: Vec<String>,
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Node>,
    pub annotations: BTreeMap<String, String>,
    /// Names of the Container Device Interface.
    pub cdi: Vec<String>,
    /// The answer's protobuf bytes, which kubelet keeps.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub host: String,
    pub container: String,
    pub read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub host: String,
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
