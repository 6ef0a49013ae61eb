//! Where the devices of a pod are, as far as kubelet decides it.

use std::collections::BTreeMap;

use kubelet_planner::ContainerAllocation;
use kubelet_planner::devices::{Chosen, DeviceState};
use stelia_cpus::NodeSet;

/// Devices of one resource that a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedDevices {
    /// How many.
    count: u64,
    /// Those that it may get, by NUMA node. The plugin chooses if they are more than `count`.
    among: BTreeMap<u32, u64>,
}

impl PlacedDevices {
    /// The devices of a container; those without a NUMA node are left out. `state` has the NUMA nodes.
    pub(super) fn of(state: &DeviceState, container: &ContainerAllocation) -> Vec<Self> {
        let of = |(resource, chosen): (&String, &Chosen)| {
            let all = state.resources.get(resource)?;
            let mut among = BTreeMap::new();
            for device in chosen.among.iter().filter_map(|id| all.get(id)) {
                // The objects count each device on one NUMA node.
                for node in &device.nodes {
                    *among.entry(*node).or_default() += 1;
                }
            }
            let count = chosen.ids.len() as u64;
            (!among.is_empty()).then_some(Self { count, among })
        };
        container.devices.iter().filter_map(of).collect()
    }

    /// The NUMA nodes that these devices may be on.
    pub(crate) fn nodes(devices: &[Self]) -> NodeSet {
        devices.iter().flat_map(|one| one.among.keys().copied()).collect()
    }

    /// The NUMA nodes that these devices are on; none where a plugin chooses between several.
    pub(super) fn certain_nodes(devices: &[Self]) -> NodeSet {
        let is_certain = |one: &Self| one.among.len() == 1 || one.among.values().sum::<u64>() == one.count;
        let certain = devices.iter().all(is_certain).then(|| Self::nodes(devices));
        certain.unwrap_or_default()
    }

    /// The share of the devices that are on these NUMA nodes, in percent; where a plugin chooses, the share to be expected.
    pub(crate) fn percent_on(devices: &[Self], nodes: &NodeSet) -> Option<u64> {
        // In parts of a device, so that the mean of several resources is not rounded.
        const PARTS: u64 = 1 << 16;
        let near = |one: &Self| {
            let here: u64 = nodes.iter().filter_map(|node| one.among.get(node)).sum();
            let all: u64 = one.among.values().sum();
            (one.count * PARTS * here).checked_div(all).unwrap_or(0)
        };
        let count: u64 = devices.iter().map(|one| one.count).sum();
        let near: u64 = devices.iter().map(near).sum();
        (near * 100 + count * PARTS / 2).checked_div(count * PARTS)
    }
}
