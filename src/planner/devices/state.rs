//! The devices there are, and who has them.

use std::collections::{BTreeMap, BTreeSet};

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its NUMA nodes; none where its plugin does not say.
    pub nodes: BTreeSet<u32>,
    /// Its plugin calls it healthy.
    pub healthy: bool,
}

/// Devices by id.
pub type Devices = BTreeMap<String, Device>;

/// Ids of devices by resource.
pub type Given = BTreeMap<String, BTreeSet<String>>;

/// What kubelet's device manager knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// All devices by resource, such as `nvidia.com/gpu`. A resource without devices is one whose plugin has gone.
    pub resources: BTreeMap<String, Devices>,
    /// Those given away, by pod and container. A finished init container keeps its entry: its devices are used again by later
    /// containers of its pod.
    pub entries: BTreeMap<String, BTreeMap<String, Given>>,
}
