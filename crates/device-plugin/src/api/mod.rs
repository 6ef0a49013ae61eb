//! kubelet's device plugin API, v1beta1: its messages, the services `Registration` (kubelet's) and `DevicePlugin` (a plugin's), each as a server
//! and a client, and gRPC over a Unix socket with limits on what the other side may send. Messages and services are written by hand, so that a build
//! needs no protobuf compiler.

pub mod device_plugin;
pub mod messages;
pub mod registration;
mod service;
pub mod transport;

/// The version of the API, which a plugin names when it registers.
pub const VERSION: &str = "v1beta1";

/// kubelet's directory of device plugins' sockets: its constant `DevicePluginPath`, whatever its root directory is.
pub const PLUGIN_FOLDER: &str = "/var/lib/kubelet/device-plugins";

/// The name of kubelet's socket in the folder of plugins' sockets.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// [`messages::Device::health`] of a device that kubelet may allocate.
pub const HEALTHY: &str = "Healthy";

/// [`messages::Device::health`] of a device that kubelet counts but does not allocate.
pub const UNHEALTHY: &str = "Unhealthy";

pub use tonic::{Code, Status, Streaming};
