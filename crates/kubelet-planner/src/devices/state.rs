//! The devices of a node, and which containers have them.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::NodeSet;
use stelia_kubelet::DeviceManagerState;

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its NUMA nodes; empty where its plugin does not report them.
    pub nodes: NodeSet,
    /// Whether its plugin reports it as healthy.
    pub healthy: bool,
}

/// Devices by id.
pub type Devices = BTreeMap<String, Device>;

/// Ids of devices by resource.
pub type DeviceIds = BTreeMap<String, BTreeSet<String>>;

/// The state of kubelet's device manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// All devices by resource, such as `nvidia.com/gpu`. A resource without healthy devices is one whose plugin is
    /// gone.
    pub resources: BTreeMap<String, Devices>,
    /// The allocated devices, by pod and container. A finished init container keeps its entry: later containers of its
    /// pod reuse its devices.
    pub entries: BTreeMap<String, BTreeMap<String, DeviceIds>>,
    /// Resources with free devices of which it is not known whether and at which NUMA nodes their plugin reports them.
    pub unplaced: BTreeSet<String>,
    /// Resources whose devices have the NUMA nodes of their hardware, while it is not known whether their plugin reports them.
    pub assumed: BTreeSet<String>,
    /// kubelet's record cannot be read: of resources that are not in `resources` nothing is known.
    pub is_unreadable: bool,
}

/// The pod and the container of devices whose owner is not known.
const NAMELESS: &str = "-";

impl DeviceState {
    /// The devices of one resource that a container has.
    pub(super) fn entry(&self, pod: &str, container: &str, resource: &str) -> Option<&BTreeSet<String>> {
        self.entries.get(pod)?.get(container)?.get(resource)
    }

    /// The devices of a resource that are allocated.
    pub fn given(&self, resource: &str) -> BTreeSet<&str> {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        let ids = containers.filter_map(|given| given.get(resource)).flatten();
        ids.map(String::as_str).collect()
    }

    /// The healthy devices of a resource that are not allocated.
    pub fn available(&self, resource: &str) -> BTreeSet<&str> {
        let given = self.given(resource);
        let healthy = self.healthy(resource);
        healthy.filter(|id| !given.contains(id)).collect()
    }

    pub(super) fn healthy(&self, resource: &str) -> impl Iterator<Item = &str> {
        let devices = self.resources.get(resource).into_iter().flatten();
        devices.filter(|(_, device)| device.healthy).map(|(id, _)| id.as_str())
    }

    /// Whether the resource is one of device plugins: registered, or in use.
    pub(crate) fn knows(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || !self.given(resource).is_empty()
    }

    /// Adds devices of which only the number is known, and at which NUMA node they are; those that are not free belong to a pod of
    /// no name. Their ids are made up: kubelet chooses by NUMA nodes alone.
    pub fn add_counted(&mut self, resource: &str, node: Option<u32>, all: u64, free: u64) {
        let devices = self.resources.entry(resource.to_owned()).or_default();
        let place = node.map_or_else(|| "x".to_owned(), |node| format!("{node:02}"));
        let id = |number: u64| format!("{place}-{number:04}");
        devices.extend((0..all).map(|number| {
            let nodes = node.into_iter().collect();
            (id(number), Device { nodes, healthy: true })
        }));
        if free < all {
            let containers = self.entries.entry(NAMELESS.to_owned()).or_default();
            let given = containers.entry(NAMELESS.to_owned()).or_default();
            given
                .entry(resource.to_owned())
                .or_default()
                .extend((free..all).map(id));
        }
    }

    /// Removes a resource, and what containers have of it.
    pub fn forget(&mut self, resource: &str) {
        self.resources.remove(resource);
        self.unplaced.remove(resource);
        self.assumed.remove(resource);
        for given in self.entries.values_mut().flat_map(BTreeMap::values_mut) {
            given.remove(resource);
        }
    }

    /// The same if no plugin reports NUMA nodes that are only assumed.
    pub(crate) fn without_assumed_nodes(&self) -> Self {
        let mut other = self.clone();
        for resource in std::mem::take(&mut other.assumed) {
            let devices = other.resources.get_mut(&resource).into_iter().flatten();
            devices.for_each(|(_, device)| device.nodes.clear());
        }
        other
    }

    /// A device's NUMA nodes.
    pub(crate) fn nodes(&self, resource: &str, id: &str) -> Option<&NodeSet> {
        let device = self.resources.get(resource)?.get(id)?;
        Some(&device.nodes).filter(|nodes| !nodes.is_empty())
    }

    /// Whether kubelet's answer to a pod with this resource is known, without the hints for it.
    pub(crate) fn is_known(&self, resource: &str) -> bool {
        !self.is_unreadable || self.knows(resource)
    }

    /// Whether any device of the resource has NUMA nodes.
    pub(super) fn is_aligned(&self, resource: &str) -> bool {
        let devices = self.resources.get(resource).into_iter().flatten();
        devices.map(|(_, device)| device).any(|device| !device.nodes.is_empty())
    }
}

impl From<&DeviceManagerState> for DeviceState {
    /// The file has the NUMA nodes only of devices in use. The caller must add those of the others: without them too
    /// few hints are predicted.
    fn from(checkpoint: &DeviceManagerState) -> Self {
        let mut state = Self::default();
        for (resource, ids) in &checkpoint.registered {
            let healthy = Device {
                nodes: NodeSet::new(),
                healthy: true,
            };
            let devices = ids.iter().map(|id| (id.clone(), healthy.clone()));
            state.resources.insert(resource.clone(), devices.collect());
        }
        for entry in &checkpoint.entries {
            let containers = state.entries.entry(entry.pod.as_str().to_owned()).or_default();
            let given = containers.entry(entry.container.clone()).or_default();
            let given = given.entry(entry.resource.clone()).or_default();
            for (node, ids) in &entry.devices {
                given.extend(ids.iter().cloned());
                let devices = state.resources.get_mut(&entry.resource);
                for (id, device) in devices.into_iter().flatten() {
                    device.nodes.extend(node.filter(|_| ids.contains(id)));
                }
            }
        }
        state
    }
}
