//! What the tests use, in one vocabulary: programs and waiting, the node as it is, its pods and guests, the daemon, and what an isolated VM is
//! promised.

pub mod apiserver;
mod bus;
mod command;
mod containers;
mod daemon;
pub mod device_plugin;
mod guest;
mod host;
pub mod http;
pub mod linux_guest;
pub mod pod_recording;
mod pods;
mod promise;
mod sleeper;
mod tracing;

pub use bus::*;
pub use command::*;
pub use containers::*;
pub use daemon::*;
pub use guest::*;
pub use host::*;
pub use linux_guest::*;
pub use pods::*;
pub use promise::*;
pub use sleeper::*;
pub use tracing::*;
