//! Memory and devices as kubelet's managers account for them.
//!
//! Both managers keep what a pod had until the next pod is admitted. It is free for that one, so what is recorded for pods
//! that have no cgroup any more does not count here.

mod places;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::NodeSet;
use stelia_cpus::quantity::bytes::of_bytes;
use stelia_kubelet::memory::MemoryBlock;
use stelia_kubelet::{DeviceManagerState, MemoryManagerState, PodUid};

use crate::report::numa::KernelNumaNode;

pub use places::{DevicePlaces, Place, places};

/// The Memory Manager's policy that assigns memory; under others kubelet asks for none on a NUMA node.
const STATIC: &str = "Static";

/// The pods that there are; `None` where they are not known: then every record counts.
pub type LivePods<'a> = Option<&'a BTreeSet<PodUid>>;

/// Adds what the Memory Manager reserved and assigned to the NUMA nodes; nothing where its policy assigns none.
pub fn memory(nodes: &mut BTreeMap<u32, KernelNumaNode>, state: &MemoryManagerState, living: LivePods<'_>) {
    if state.policy != STATIC {
        return;
    }
    let gone = gone(state, living);
    for (id, node) in nodes {
        let Some(tables) = state.nodes.get(id).map(|node| &node.tables) else {
            continue;
        };
        // What containers may have, and what they have of it. Bytes.
        let account = |kind: &str| {
            let table = tables.get(kind)?;
            let freed = gone.get(&(*id, kind)).copied().unwrap_or_default();
            Some((table.allocatable, table.reserved.saturating_sub(freed)))
        };
        let aside = node.page_bytes();
        if let (Some(memory), Some((allocatable, assigned))) = (&mut node.memory, account("memory")) {
            memory.reserved = memory.total.saturating_sub(aside).saturating_sub(allocatable);
            memory.assigned = assigned;
        }
        for (size, pages) in &mut node.huge_pages {
            let Some((allocatable, assigned)) = account(&format!("hugepages-{}", of_bytes(*size))) else {
                continue;
            };
            let whole = |bytes: u64| bytes.checked_div(*size).unwrap_or_default();
            pages.reserved = pages.total.saturating_sub(whole(allocatable));
            pages.free = whole(allocatable.saturating_sub(assigned));
        }
    }
}

/// The NUMA nodes whose memory containers have, each with its cells: a NUMA node that is in use serves a request for several
/// only together with these (`isAffinityViolatingNUMAAllocations` of kubelet's `policy_static.go`). `None` where the Memory Manager's
/// policy assigns none.
pub fn groups(state: &MemoryManagerState, living: LivePods<'_>) -> Option<BTreeMap<u32, NodeSet>> {
    if state.policy != STATIC {
        return None;
    }
    let mut gone: BTreeMap<u32, u64> = BTreeMap::new();
    for node in blocks_of_gone(state, living).flat_map(|block| &block.nodes) {
        *gone.entry(*node).or_default() += 1;
    }
    let used = state
        .nodes
        .iter()
        .filter(|(id, node)| node.assignments > gone.get(id).copied().unwrap_or_default());
    Some(
        used.map(|(id, node)| (*id, node.cells.iter().copied().collect()))
            .collect(),
    )
}

/// The blocks that are recorded for pods that are gone.
fn blocks_of_gone<'a>(state: &'a MemoryManagerState, living: LivePods<'a>) -> impl Iterator<Item = &'a MemoryBlock> {
    // What containers of a pod have of the pod's own memory is in its blocks already.
    let containers = state.entries.iter();
    let containers = containers.filter(|(pod, _)| !state.pod_entries.contains_key(*pod));
    let of_containers = containers.flat_map(|(pod, all)| all.values().map(move |blocks| (pod, blocks)));
    of_containers
        .chain(&state.pod_entries)
        .filter(move |(pod, _)| living.is_some_and(|living| !living.contains(*pod)))
        .flat_map(|(_, blocks)| blocks)
}

/// Bytes recorded for pods that are gone, by NUMA node and kind. A block on several nodes is on each in an unknown part,
/// and stays counted until kubelet drops it.
fn gone<'a>(state: &'a MemoryManagerState, living: LivePods<'a>) -> BTreeMap<(u32, &'a str), u64> {
    let mut gone = BTreeMap::new();
    for MemoryBlock { nodes, kind, size } in blocks_of_gone(state, living) {
        if let [node] = nodes.as_slice() {
            let sum: &mut u64 = gone.entry((*node, kind.as_str())).or_default();
            *sum = sum.saturating_add(*size);
        }
    }
    gone
}

/// The healthy devices of a resource on a NUMA node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Devices {
    pub all: usize,
    /// Those that no pod has.
    pub free: usize,
}

/// The devices by NUMA node and resource.
///
/// [`places`] says where each is, with `by_id` for those of which the record says nothing. A resource with one whose place is not known, or that is
/// on no NUMA node or on several, is left out: a scheduler that finds a resource in no zone leaves its place to kubelet, and one that found a part of
/// it would send no pods for the rest.
pub fn devices<P: Fn(&str) -> Place>(
    state: &DeviceManagerState,
    living: LivePods<'_>,
    by_id: impl Fn(&str) -> P,
) -> BTreeMap<u32, BTreeMap<String, Devices>> {
    let mut found: BTreeMap<u32, BTreeMap<String, Devices>> = BTreeMap::new();
    for (resource, ids) in &state.registered {
        let places = places(state, resource, by_id(resource));
        let Some(places) = places.values().map(Place::single).collect::<Option<Vec<u32>>>() else {
            continue;
        };
        let entries = state.entries.iter().filter(|entry| entry.resource == *resource);
        let used: BTreeSet<&String> = entries
            .filter(|entry| living.is_none_or(|living| living.contains(&entry.pod)))
            .flat_map(|entry| entry.devices.values().flatten())
            .collect();
        for (id, node) in ids.iter().zip(places) {
            let devices = found.entry(node).or_default().entry(resource.clone()).or_default();
            devices.all += 1;
            devices.free += usize::from(!used.contains(id));
        }
    }
    found
}

#[cfg(test)]
mod tests;
