//! kubelet's device plugin API: its messages, the services `Registration` (kubelet's) and `DevicePlugin` (a plugin's), each as a server and a client,
//! and gRPC over a Unix socket with limits on what the other side may send.

pub mod transport;
/// Made by `build.rs` from `proto/`.
#[allow(unused_qualifications)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// The version of the API, which a plugin names when it registers.
pub const VERSION: &str = "v1beta1";

/// kubelet's directory of device plugins' sockets: its constant `DevicePluginPath`, whatever its root directory is.
pub const PLUGIN_FOLDER: &str = "/var/lib/kubelet/device-plugins";

/// The name of kubelet's socket in the folder of plugins' sockets.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// [`v1beta1::Device::health`] of a device that kubelet may allocate.
pub const HEALTHY: &str = "Healthy";

/// [`v1beta1::Device::health`] of a device that kubelet counts but does not allocate.
pub const UNHEALTHY: &str = "Unhealthy";

pub use tonic::codegen::BoxStream;
pub use tonic::{Code, Request, Response, Status, Streaming, async_trait};
pub use v1beta1::device_plugin_client::DevicePluginClient;
pub use v1beta1::device_plugin_server::DevicePlugin;
pub use v1beta1::registration_client::RegistrationClient;
pub use v1beta1::registration_server::Registration;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;

    use super::v1beta1::*;

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
