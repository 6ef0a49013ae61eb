//! Memory and devices as kubelet's managers account for them.
//!
//! Both managers keep what a pod had until the next pod is admitted. It is free for that one, so what is recorded for pods
//! that have no cgroup any more does not count here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stelia_cpus::quantity::bytes::of_bytes;
use stelia_kubelet::devices::DeviceEntry;
use stelia_kubelet::memory::MemoryBlock;
use stelia_kubelet::{DeviceManagerState, MemoryManagerState, PodUid};

use crate::numa::NumaNode;

/// The Memory Manager's policy that assigns memory; under others kubelet asks for none on a NUMA node.
const STATIC: &str = "Static";

/// Below `/sys`.
const PCI_DEVICES: &str = "bus/pci/devices";
/// The files of IOMMU groups are here, by the groups' numbers.
const VFIO_FILES: &str = "/dev/vfio/";

/// The pods that there are; `None` where they are not known: then every record counts.
pub type LivePods<'a> = Option<&'a BTreeSet<PodUid>>;

/// Adds what the Memory Manager reserved and assigned to the NUMA nodes; nothing where its policy assigns none.
pub fn memory(nodes: &mut BTreeMap<u32, NumaNode>, state: &MemoryManagerState, living: LivePods<'_>) {
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
pub fn groups(state: &MemoryManagerState, living: LivePods<'_>) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
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
/// kubelet's file says where a device is only for those that a container has or had; `places` says it for others of a resource, by id. A
/// resource with one whose place is not known, or who is on no NUMA node or on several, is left out: a scheduler that finds
/// a resource in no zone leaves its place to kubelet, and one that found a part of it would send no pods for the rest.
pub fn devices<P: Fn(&str) -> Option<u32>>(
    state: &DeviceManagerState,
    living: LivePods<'_>,
    places: impl Fn(&str) -> P,
) -> BTreeMap<u32, BTreeMap<String, Devices>> {
    let mut found: BTreeMap<u32, BTreeMap<String, Devices>> = BTreeMap::new();
    for (resource, ids) in &state.registered {
        let entries = || state.entries.iter().filter(|entry| entry.resource == *resource);
        let place = places(resource);
        let one = |id: &String| {
            let recorded: BTreeSet<Option<u32>> = entries()
                .flat_map(|entry| &entry.devices)
                .filter(|(_, ids)| ids.contains(id))
                .map(|(node, _)| *node)
                .collect();
            match recorded.into_iter().collect::<Vec<_>>().as_slice() {
                [] => place(id),
                [node] => *node,
                _ => None,
            }
        };
        let Some(places) = ids.iter().map(one).collect::<Option<Vec<u32>>>() else {
            continue;
        };
        let used: BTreeSet<&String> = entries()
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

/// Where the devices of a resource are, by what `/sys` has for their ids.
#[derive(Debug, Clone)]
pub struct DevicePlaces<'a> {
    sys: &'a Path,
    /// Whether numbers are those of IOMMU groups, and not the plugin's own.
    has_groups: bool,
}

impl<'a> DevicePlaces<'a> {
    /// Numbers are taken for IOMMU groups if the plugin gave a container the files of the groups that are its devices' ids, or if every id of the
    /// resource is a group of devices that vfio-pci drives; and in both cases only if no container has other files, or those of other groups:
    /// `0`, `1` and `2` may be any plugin's.
    pub fn new(sys: &'a Path, state: &DeviceManagerState, resource: &str) -> Self {
        let entries = state.entries.iter().filter(|entry| entry.resource == resource);
        let shown: BTreeSet<bool> = entries.filter_map(ids_are_groups).collect();
        let ids = state.registered.get(resource);
        let are_groups = |ids: &BTreeSet<String>| ids.iter().all(|id| !given_away(sys, id).is_empty());
        Self {
            sys,
            has_groups: !shown.contains(&false) && (shown.contains(&true) || ids.is_some_and(are_groups)),
        }
    }

    /// The NUMA node of a device by its id: a PCI address (`0000:3b:02.1`, `10000:03:00.0`), as SR-IOV's plugins give them, or the number of an
    /// IOMMU group, as KubeVirt's plugin gives them. `None` for other ids, and where the firmware does not say it.
    pub fn node(&self, id: &str) -> Option<u32> {
        if is_pci_address(id) {
            return numa_node(&self.sys.join(PCI_DEVICES).join(id.to_lowercase()));
        }
        let of_group = self.has_groups.then(|| given_away(self.sys, id)).into_iter().flatten();
        let nodes: BTreeSet<Option<u32>> = of_group.map(|device| numa_node(&device)).collect();
        nodes.first().copied().flatten().filter(|_| nodes.len() == 1)
    }
}

/// Whether the ids of a container's devices are the numbers of the IOMMU groups of which it has the files. `None` where that is not seen: it has no
/// files for them, or those of iommufd, which have numbers of their own.
fn ids_are_groups(entry: &DeviceEntry) -> Option<bool> {
    if entry.files.is_empty() {
        return None;
    }
    let of_vfio: Vec<&str> = entry
        .files
        .iter()
        .filter_map(|file| file.strip_prefix(VFIO_FILES))
        .collect();
    if of_vfio.is_empty() {
        return Some(false);
    }
    let groups: BTreeSet<&str> = of_vfio.into_iter().filter(|name| name.parse::<u32>().is_ok()).collect();
    let mut ids = entry.devices.values().flatten();
    (!groups.is_empty()).then(|| ids.all(|id| groups.contains(id.as_str())))
}

/// The devices of the IOMMU group with this number that vfio-pci drives. Bridges may be in the group too.
fn given_away(sys: &Path, group: &str) -> Vec<PathBuf> {
    let number = group.parse::<u32>().ok().filter(|number| number.to_string() == group);
    let folder = number.map(|number| sys.join(format!("kernel/iommu_groups/{number}/devices")));
    let of_group = folder
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten();
    let of_group = of_group
        .flatten()
        .map(|entry| sys.join(PCI_DEVICES).join(entry.file_name()));
    let is_given_away = |device: &PathBuf| {
        let driver = fs::read_link(device.join("driver"));
        driver.is_ok_and(|driver| driver.ends_with("vfio-pci"))
    };
    of_group.filter(is_given_away).collect()
}

fn is_pci_address(id: &str) -> bool {
    // A domain has 4 hexadecimal digits, and more above 0xffff (Volume Management Devices).
    let Some((domain, rest)) = id.split_once(':') else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shape = |(at, byte): (usize, u8)| match at {
        2 => byte == b':',
        5 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    (4..=8).contains(&domain.len()) && is_hex(domain) && rest.len() == 7 && rest.bytes().enumerate().all(shape)
}

/// -1 is no node.
fn numa_node(device: &Path) -> Option<u32> {
    fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
