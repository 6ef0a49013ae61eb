//! The device manager's hints for the Topology Manager.

use std::collections::{BTreeMap, BTreeSet};

use super::manager::DeviceManager;
use super::state::DeviceState;
use crate::merge::{Hint, HintList, NodeMask};
use crate::pod::{Container, Pod, together};

impl DeviceManager {
    /// The hints for a container by resource. `nodes` are the machine's NUMA nodes.
    pub fn hints(
        &self,
        state: &DeviceState,
        nodes: NodeMask,
        pod: &Pod,
        container: &Container,
    ) -> Vec<(String, HintList)> {
        let wanted = container.resources.limits.devices.iter();
        let wanted = wanted.filter(|(resource, _)| state.knows(resource));
        let of = |(resource, count): (&String, &u64)| {
            let had = state.entry(&pod.uid, &container.name, resource);
            let had = had.into_iter().flatten().map(String::as_str).collect();
            let reusable = self.reusable(resource);
            (resource.clone(), list(state, nodes, resource, *count, &had, &reusable))
        };
        wanted.map(of).collect()
    }

    /// The hints for a pod as a whole (Topology Manager's scope pod).
    pub fn pod_hints(&self, state: &DeviceState, nodes: NodeMask, pod: &Pod) -> Vec<(String, HintList)> {
        let containers = || pod.containers.iter();
        let resources = containers().flat_map(|container| container.resources.limits.devices.keys());
        let resources: BTreeSet<&String> = resources.filter(|resource| state.knows(resource)).collect();
        let of = |resource: &String| {
            let limit = |container: &Container| container.resources.limits.devices.get(resource).copied();
            let counts = containers().map(|container| (container.kind, limit(container).unwrap_or(0)));
            let count = together(counts, u64::saturating_add);
            let entries = state.entries.get(&pod.uid).map(BTreeMap::values);
            let had = entries.into_iter().flatten().filter_map(|given| given.get(resource));
            let had = had.flatten().map(String::as_str).collect();
            (
                resource.clone(),
                list(state, nodes, resource, count, &had, &BTreeSet::new()),
            )
        };
        resources.into_iter().map(of).collect()
    }
}

fn list(
    state: &DeviceState,
    nodes: NodeMask,
    resource: &str,
    count: u64,
    had: &BTreeSet<&str>,
    reusable: &BTreeSet<&str>,
) -> HintList {
    if !state.is_aligned(resource) {
        return None;
    }
    if !had.is_empty() {
        return Some(match had.len() as u64 == count {
            true => node_sets(state, nodes, resource, count, had, &BTreeSet::new()),
            false => Vec::new(),
        });
    }
    let available = state.available(resource);
    Some(match (available.union(reusable).count() as u64) < count {
        true => Vec::new(),
        false => node_sets(state, nodes, resource, count, &available, reusable),
    })
}

/// The sets of NUMA nodes that have enough devices, of the nodes that have any (`generateDeviceTopologyHints`). A set
/// must include a node of every device that the pod can reuse.
fn node_sets(
    state: &DeviceState,
    nodes: NodeMask,
    resource: &str,
    count: u64,
    available: &BTreeSet<&str>,
    reusable: &BTreeSet<&str>,
) -> Vec<Hint> {
    let mask = |id: &&str| {
        let own = state.nodes(resource, id).into_iter().flatten();
        own.copied().collect::<NodeMask>()
    };
    let all = state.resources.get(resource).into_iter().flatten();
    let all: Vec<NodeMask> = all.map(|(id, _)| mask(&id.as_str())).collect();
    let available: Vec<NodeMask> = available.iter().map(mask).collect();
    let with_nodes = reusable.iter().filter(|id| state.nodes(resource, id).is_some());
    let reusable: Vec<NodeMask> = with_nodes.map(mask).collect();
    let bits = all.iter().fold(0, |bits, own| bits | own.bits()) & nodes.bits();
    let touched = |devices: &[NodeMask], set: NodeMask| devices.iter().filter(|own| !(**own & set).is_empty()).count();
    let (mut fewest, mut hints) = (nodes.len(), Vec::new());
    // The subsets of `bits`, ascending.
    let mut subset = 0u64;
    loop {
        subset = subset.wrapping_sub(bits) & bits;
        if subset == 0 {
            break;
        }
        let set = NodeMask::from_bits(subset);
        if touched(&all, set) as u64 >= count {
            fewest = fewest.min(set.len());
        }
        let again = touched(&reusable, set);
        if again == reusable.len() && (again + touched(&available, set)) as u64 >= count {
            hints.push(set);
        }
    }
    let hint = |set: NodeMask| Hint {
        nodes: Some(set),
        preferred: set.len() == fewest,
    };
    hints.into_iter().map(hint).collect()
}
