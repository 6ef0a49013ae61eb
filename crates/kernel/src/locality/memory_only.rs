//! NUMA nodes with memory and without CPUs: of CXL expanders, of persistent memory, of HBM beside DRAM, and of GPUs whose memory the kernel
//! manages (Grace Hopper, POWER9 with NVLink). Memory there is attached or remote, never near.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::NodeSet;
use stelia_cpus::text::named;

named! {
    /// What the memory of such a node is.
    pub enum MemoryKind {
        /// A GPU's, or another device's that computes.
        Device = "device",
        Cxl = "CXL",
        Persistent = "persistent",
        /// The kernel does not tell: HBM, or CXL memory that the firmware set up.
        Other = "memory-only",
    }
}

/// A NUMA node with memory and without CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryOnlyNode {
    pub kind: MemoryKind,
    /// PCI address of the device whose memory it is, where that is known.
    pub device: Option<String>,
    /// The NUMA nodes with CPUs that it is nearest to; empty where the firmware does not tell them apart.
    #[serde(with = "stelia_cpus::node_set::as_array")]
    pub nearest: NodeSet,
}

impl MemoryOnlyNode {
    /// `CXL memory, nearest to 0`.
    pub fn words(&self) -> String {
        let kind = match (self.kind, &self.device) {
            (MemoryKind::Device, Some(device)) => format!("memory of {device}"),
            (MemoryKind::Device, None) => "memory of a device".to_owned(),
            (MemoryKind::Other, _) => "memory without CPUs".to_owned(),
            (kind, _) => format!("{kind} memory"),
        };
        if self.nearest.is_empty() {
            kind
        } else {
            format!("{kind}, nearest to {}", self.nearest)
        }
    }
}

/// Where memory is, seen from the VM's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPlace {
    /// On a NUMA node of the VM's CPUs.
    Near,
    /// On a node without CPUs that belongs to such a node, or to a device of the VM.
    Attached,
    Remote,
}

impl MemoryPlace {
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Attached => "attached",
            Self::Remote => "remote",
        }
    }
}

/// The nodes with CPUs that a node without any is nearest to: those that the firmware names (`initiators`, from HMAT), else those at the
/// least distance (SLIT). If all are at one distance that says nothing, unless there is only one.
pub fn nearest(initiators: &NodeSet, distances: &BTreeMap<u32, u32>) -> NodeSet {
    // Among the initiators of class 0 are devices.
    let named: NodeSet = initiators
        .iter()
        .copied()
        .filter(|node| distances.contains_key(node))
        .collect();
    if !named.is_empty() {
        return named;
    }
    let least = distances.values().min();
    let at_least = distances.iter().filter(|(_, distance)| Some(*distance) == least);
    let found: NodeSet = at_least.map(|(node, _)| *node).collect();
    if found.len() == distances.len() && found.len() > 1 {
        NodeSet::new()
    } else {
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_that_names_initiators_is_believed_before_distances() {
        let distances = BTreeMap::from([(0, 17), (1, 28), (2, 17)]);
        let of = |initiators: &[u32]| nearest(&initiators.iter().copied().collect(), &distances).to_string();
        assert_eq!([of(&[1]), of(&[0, 2]), of(&[])], ["1", "0,2", "0,2"]);
        // Node 4 is a device: it has no distance as a node with CPUs.
        assert_eq!([of(&[4]), of(&[4, 1])], ["0,2", "1"]);
    }

    #[test]
    fn equal_distances_tell_nothing_unless_there_is_one_node() {
        let of = |distances: &[(u32, u32)]| nearest(&NodeSet::new(), &distances.iter().copied().collect());
        assert!(of(&[(0, 80), (8, 80)]).is_empty());
        assert_eq!(of(&[(0, 80)]), NodeSet::from([0]));
        assert!(of(&[]).is_empty());
    }
}
