//! kubelet's device manager: which devices a container gets, and what it tells the Topology Manager.
//!
//! The answers are those of Kubernetes 1.36.3 (`pkg/kubelet/cm/devicemanager`): hints over the NUMA nodes that have such devices at
//! all (`deviceNUMANodes` of kubernetes#138244; without it, the hints have other nodes too and are never preferred for these), devices of
//! init containers first, then those at the hint's NUMA nodes, then others, then those without NUMA nodes. For a reused device whose plugin
//! names an empty list of nodes kubelet has no hint at all; here it counts as one without nodes.
//!
//! Within one of these groups kubelet asks the plugin (`GetPreferredAllocation`), and where that has no answer, the order of a
//! Go map decides. Neither is known here: the devices of lowest id are taken, and [`Chosen::certain`] is false. Their number
//! and the group are exact.

mod hints;
mod manager;
mod refusal;
mod state;
#[cfg(test)]
mod tests;

pub use manager::Chosen;
pub(crate) use manager::DeviceManager;
pub(crate) use refusal::DeviceRefusal;
pub use state::{Device, DeviceIds, DeviceState, Devices};
