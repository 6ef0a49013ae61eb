//! The messages of `v1beta1`. On the wire only the tags and types count; the names are the API's in Rust's form.

use std::collections::BTreeMap;

use prost::Message;

/// No content.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// Which optional calls a plugin wants or answers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DevicePluginOptions {
    /// kubelet is to call `PreStartContainer` before it starts a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// kubelet may call `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// What a plugin tells kubelet of itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    /// [`crate::api::VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, relative to the folder of plugins' sockets.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The extended resource, `domain/name`.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// What `GetDevicePluginOptions` would answer.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListAndWatchResponse {
    /// Every device, also the unhealthy ones.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// One unit of the resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Unique within the plugin, at most 63 characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`crate::api::HEALTHY`] or [`crate::api::UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where the device is, for kubelet's topology manager; absent if it does not matter.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// The NUMA nodes of a device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopologyInfo {
    /// Each NUMA node once.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NumaNode {
    /// The kernel's number of it.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// What kubelet asks for before it starts containers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    /// One entry a container. kubelet sends one at a time.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The devices that kubelet chose for a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAllocateRequest {
    /// [`Device::id`] of each.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// What containers get, in the order of the request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateResponse {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container gets.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables. Those of the pod's own have precedence.
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    /// Paths of the host.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Device nodes.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// Annotations for the container runtime.
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// Devices of the Container Device Interface, which kubelet passes to the runtime since Kubernetes 1.28.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A path of the host in a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Mounted read-only.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device node in a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// `r` (read), `w` (write), `m` (make the node), in any combination.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device of the Container Device Interface.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiDevice {
    /// `vendor/class=name`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Sent before a container starts, if [`DevicePluginOptions::pre_start_required`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreStartContainerRequest {
    /// The container's devices.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// The container may start.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreStartContainerResponse {}

/// Sent at a pod's admission, if [`DevicePluginOptions::get_preferred_allocation_available`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationRequest {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// What a container may get.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationRequest {
    /// The devices to choose from.
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    /// Those that have to be among the chosen.
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    /// How many are to be chosen.
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

/// What the plugin would choose, in the order of the request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationResponse {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The chosen devices of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationResponse {
    /// [`Device::id`] of each.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are what protobuf's encoding rules say of the fields and tags of kubelet's `api.proto`.
    #[test]
    fn a_registration_is_encoded_as_kubelet_reads_it() {
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "a.sock".into(),
            resource_name: "b/c".into(),
            options: Some(DevicePluginOptions {
                pre_start_required: false,
                get_preferred_allocation_available: true,
            }),
        };
        assert_eq!(
            request.encode_to_vec(),
            b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03b/c\x22\x02\x10\x01"
        );
    }

    #[test]
    fn an_answer_to_allocate_is_encoded_as_kubelet_reads_it() {
        let response = AllocateResponse {
            container_responses: vec![ContainerAllocateResponse {
                envs: BTreeMap::from([("K".into(), "V".into())]),
                mounts: vec![Mount {
                    container_path: "/c".into(),
                    host_path: "/h".into(),
                    read_only: true,
                }],
                devices: vec![DeviceSpec {
                    container_path: "/d".into(),
                    host_path: "/e".into(),
                    permissions: "rw".into(),
                }],
                annotations: BTreeMap::new(),
                cdi_devices: vec![CdiDevice { name: "x/y=z".into() }],
            }],
        };
        let inner = b"\x0a\x06\x0a\x01K\x12\x01V\
            \x12\x0a\x0a\x02/c\x12\x02/h\x18\x01\
            \x1a\x0c\x0a\x02/d\x12\x02/e\x1a\x02rw\
            \x2a\x07\x0a\x05x/y=z";
        let mut expected = vec![0x0a, u8::try_from(inner.len()).unwrap()];
        expected.extend_from_slice(inner);
        assert_eq!(response.encode_to_vec(), expected);
        assert_eq!(AllocateResponse::decode(expected.as_slice()).unwrap(), response);
    }

    #[test]
    fn a_field_of_a_later_version_is_passed_over() {
        let device = Device::decode(b"\x0a\x01a\x12\x07Healthy\x7a\x03new".as_slice()).unwrap();
        assert_eq!(
            device,
            Device {
                id: "a".into(),
                health: "Healthy".into(),
                topology: None
            }
        );
    }
}
