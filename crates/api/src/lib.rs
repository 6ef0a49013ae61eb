#![doc = include_str!("../README.md")]
//!
//! With the feature `bus` also the client proxies; without it nothing of D-Bus is needed.

pub mod attribution;
#[cfg(feature = "bus")]
mod bus_errors;
#[cfg(feature = "bus")]
pub mod client;
#[cfg(feature = "bus")]
pub mod dict;
mod error;
mod instance_state;
pub mod job;
pub mod ledger;
pub mod metrics;
mod names;
pub mod publication;
pub mod publishing;
pub mod quiet;
pub mod reason;
mod thread;

pub use error::{Error, ErrorKind};
pub use instance_state::State;
pub use names::{BUS_NAME, MANAGER_PATH, NOT_PINNED, RUNNER_SOCKET, VM_RESOURCE, instance_path, instance_uid};
pub use reason::{Reason, ReasonCode};
pub use thread::ThreadRole;
