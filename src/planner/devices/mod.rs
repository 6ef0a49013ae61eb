//! kubelet's device manager: which devices a container gets.

mod state;

pub use state::{Device, Devices, Given, State};
