//! The device manager's hints for the Topology Manager.

use std::collections::BTreeSet;
use std::slice;

use super::manager::DeviceManager;
use super::refusal::DeviceRefusal;
use super::state::DeviceState;
use crate::merge::{Hint, HintList, NodeMask};
use crate::node::MAX_NODES;
use crate::pod::{Container, Pod, together};

impl DeviceManager {
    /// The hints for a container, or for the pod as a whole (Topology Manager's scope pod), by resource. `nodes` are the
    /// machine's NUMA nodes.
    ///
    /// # Errors
    /// There are too many NUMA nodes to try their sets.
    pub(crate) fn hints(
        &self,
        state: &DeviceState,
        nodes: NodeMask,
        pod: &Pod,
        container: Option<&Container>,
    ) -> Result<Vec<(String, HintList)>, DeviceRefusal> {
        let containers = container.map_or(pod.containers.as_slice(), slice::from_ref);
        let resources = containers
            .iter()
            .flat_map(|container| container.resources.limits.devices.keys());
        let resources: BTreeSet<&String> = resources.filter(|resource| state.knows(resource)).collect();
        let of = |resource: &String| {
            let limit = |container: &Container| container.resources.limits.devices.get(resource).copied();
            let counts = containers
                .iter()
                .map(|container| (container.kind, limit(container).unwrap_or(0)));
            let count = together(counts, u64::saturating_add);
            let entries = state.entries.get(&pod.uid).into_iter().flatten();
            let entries = entries.filter(|(name, _)| container.is_none_or(|container| container.name == **name));
            let had = entries.filter_map(|(_, given)| given.get(resource)).flatten();
            let reusable = container.map(|_| self.reusable(resource)).unwrap_or_default();
            let hints = hints(
                state,
                nodes,
                resource,
                count,
                &had.map(String::as_str).collect(),
                &reusable,
            );
            hints.map(|hints| (resource.clone(), hints))
        };
        resources.into_iter().map(of).collect()
    }
}

impl DeviceManager {
    /// The resources of a container, or of the pod, that are among these.
    pub(crate) fn wanted_among(some: &BTreeSet<String>, pod: &Pod, container: Option<&Container>) -> Vec<String> {
        let containers = container.map_or(pod.containers.as_slice(), slice::from_ref);
        let wanted = containers
            .iter()
            .flat_map(|container| &container.resources.limits.devices);
        let wanted: BTreeSet<&String> = wanted.filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
        wanted
            .into_iter()
            .filter(|name| some.contains(*name))
            .cloned()
            .collect()
    }
}

fn hints(
    state: &DeviceState,
    nodes: NodeMask,
    resource: &str,
    count: u64,
    had: &BTreeSet<&str>,
    reusable: &BTreeSet<&str>,
) -> Result<HintList, DeviceRefusal> {
    if !state.is_aligned(resource) {
        return Ok(None);
    }
    let available = state.available(resource);
    let (devices, reusable, enough) = if had.is_empty() {
        (&available, reusable, available.union(reusable).count() as u64 >= count)
    } else {
        (had, &BTreeSet::new(), had.len() as u64 == count)
    };
    Ok(if !enough {
        Some(Vec::new())
    } else if state.unplaced.contains(resource) {
        None
    } else {
        Some(node_sets(state, nodes, resource, count, devices, reusable)?)
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
) -> Result<Vec<Hint>, DeviceRefusal> {
    let mask = |id: &&str| -> NodeMask { state.nodes(resource, id).into_iter().flatten().copied().collect() };
    let all = state.resources.get(resource).into_iter().flatten();
    let all: Vec<NodeMask> = all.map(|(id, _)| mask(&id.as_str())).collect();
    let available: Vec<NodeMask> = available.iter().map(mask).collect();
    let with_nodes = reusable.iter().filter(|id| state.nodes(resource, id).is_some());
    let reusable: Vec<NodeMask> = with_nodes.map(mask).collect();
    let bits = all.iter().fold(0, |bits, own| bits | own.bits()) & nodes.bits();
    let found = bits.count_ones() as usize;
    if found > MAX_NODES {
        let (resource, nodes) = (resource.to_owned(), found);
        return Err(DeviceRefusal::NotSearched { resource, nodes });
    }
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
    let hints = hints.into_iter().map(|set| Hint::on(set, set.len() == fewest));
    Ok(hints.collect())
}
