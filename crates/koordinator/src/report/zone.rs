//! The zones of the object: NUMA nodes with their resources.

use stelia_cpus::CpuSet;
use stelia_cpus::quantity::bytes::of_bytes;

use crate::report::numa::KernelNumaNode;
use crate::report::object::{Cost, Resource, Zone};
use crate::report::{Facts, nodes};

/// The zone of every NUMA node.
pub(crate) fn all(facts: &Facts) -> Vec<Zone> {
    nodes(facts).into_iter().map(|node| zone(facts, node)).collect()
}

/// The zone's name, which kube-scheduler's plugin takes the node's id from.
fn name(node: u32) -> String {
    format!("node-{node}")
}

fn zone(facts: &Facts, node: u32) -> Zone {
    let described = facts.numa.get(&node);
    let distances = described.into_iter().flat_map(|node| &node.distances);
    let mut resources = vec![cpus(facts, node)];
    if let Some(described) = described {
        resources.extend(memory(described));
        resources.extend(huge_pages(described));
    }
    Zone {
        name: name(node),
        kind: "Node".to_owned(),
        costs: distances
            .map(|(other, distance)| Cost {
                name: name(*other),
                value: i64::from(*distance),
            })
            .collect(),
        resources,
    }
}

fn cpus(facts: &Facts, node: u32) -> Resource {
    let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
    let online: CpuSet = here.map(|(number, _)| *number).collect();
    let allocatable = online.difference(&facts.reserved);
    let available = allocatable.difference(&facts.exclusive);
    Resource {
        name: "cpu".to_owned(),
        capacity: online.len().to_string(),
        allocatable: Some(allocatable.len().to_string()),
        available: available.len().to_string(),
    }
}

/// Memory in huge pages is not allocatable as memory. How much is free is nothing that kubelet asks.
fn memory(node: &KernelNumaNode) -> Option<Resource> {
    let memory = node.memory?;
    let allocatable = memory
        .total
        .saturating_sub(node.page_bytes())
        .saturating_sub(memory.reserved);
    Some(Resource {
        name: "memory".to_owned(),
        capacity: of_bytes(memory.total),
        allocatable: Some(of_bytes(allocatable)),
        available: of_bytes(allocatable.saturating_sub(memory.assigned)),
    })
}

fn huge_pages(node: &KernelNumaNode) -> impl Iterator<Item = Resource> {
    node.huge_pages.iter().map(|(size, pages)| {
        let allocatable = pages.total.saturating_sub(pages.reserved);
        let amount = |pages: u64| of_bytes(size.saturating_mul(pages));
        Resource {
            name: format!("hugepages-{}", of_bytes(*size)),
            capacity: amount(pages.total),
            allocatable: Some(amount(allocatable)),
            available: amount(pages.free.min(allocatable)),
        }
    })
}

/// The devices of each NUMA node, added to its zone.
pub(crate) fn add_devices(facts: &Facts, zones: &mut [Zone]) {
    for (node, devices) in &facts.devices {
        let Some(zone) = zones.iter_mut().find(|zone| zone.name == name(*node)) else {
            continue;
        };
        zone.resources
            .extend(devices.iter().map(|(resource, devices)| Resource {
                name: resource.clone(),
                capacity: devices.all.to_string(),
                allocatable: Some(devices.all.to_string()),
                available: devices.free.to_string(),
            }));
    }
}
