//! Pods, hints and machines of tests.

use std::collections::BTreeMap;

use stelia_cpus::testing::Shape;

use crate::cpus::CpuGroups;
use crate::devices::{Device, DeviceState};
use crate::merge::{Hint, HintList, Merged, NodeMask};
use crate::{Container, Machine, NumaNode, Pod};

pub(crate) fn pod(uid: &str, containers: &[Container]) -> Pod {
    Pod {
        uid: uid.to_owned(),
        resources: None,
        containers: containers.to_vec(),
    }
}

pub(crate) const fn hint(bits: u64, preferred: bool) -> Hint {
    Hint {
        nodes: Some(NodeMask::from_bits(bits)),
        preferred,
    }
}

pub(crate) fn hints(masks: &[(u64, bool)]) -> HintList {
    Some(masks.iter().map(|(bits, preferred)| hint(*bits, *preferred)).collect())
}

/// What the Topology Manager admits a container with.
pub(crate) const fn merged(nodes: Option<NodeMask>, preferred: bool) -> Merged {
    Merged {
        nodes,
        preferred,
        admitted: true,
    }
}

pub(crate) fn groups(shape: Shape) -> CpuGroups {
    CpuGroups::new(&shape.topology(), &BTreeMap::new())
}

pub(crate) fn machine(shape: Shape, numa: impl Fn(u32) -> NumaNode) -> Machine {
    Machine {
        cpus: groups(shape),
        numa: (0..shape.nodes).map(|id| (id, numa(id))).collect(),
    }
}

/// So many devices `nic0`, `nic1`, … of `example.com/nic`, as many on each NUMA node.
pub(crate) fn nics(count: u32, on_each: u32) -> DeviceState {
    let device = |number: u32| {
        let nodes = [number / on_each].into();
        (format!("nic{number}"), Device { nodes, healthy: true })
    };
    DeviceState {
        resources: [("example.com/nic".to_owned(), (0..count).map(device).collect())].into(),
        ..DeviceState::default()
    }
}
