//! The NUMA nodes, read from the zones.

use std::collections::BTreeMap;

use stelia_cpus::quantity::bytes::to_bytes;
use stelia_cpus::{CpuSet, Topology};

use super::{DescribedError, wrong};
use crate::report::NodeResourceTopology;
use crate::report::numa::{KernelNumaNode, NumaMemory, Pages};
use crate::report::object::{Resource, Zone};

/// The NUMA nodes by id. Zones with CPUs alone come from a host whose kernel has no NUMA.
pub(crate) fn numa(object: &NodeResourceTopology) -> Result<BTreeMap<u32, KernelNumaNode>, DescribedError> {
    let mut nodes = BTreeMap::new();
    for (at, zone) in object.zones.iter().enumerate() {
        let place = format!("zones[{at}]");
        let id = node(&format!("{place}.name"), &zone.name)?;
        let read = KernelNumaNode {
            distances: distances(&place, zone)?,
            ..resources(&place, &zone.resources)?
        };
        let without_cpus = amount(&zone.resources, "cpu").is_some_and(|cpu| cpu.capacity == "0");
        if read == KernelNumaNode::default() && !without_cpus {
            continue;
        }
        if nodes.insert(id, read).is_some() {
            return Err(wrong(&format!("{place}.name"), &zone.name, "the zone is there twice"));
        }
    }
    Ok(nodes)
}

pub(crate) fn node(place: &str, zone: &str) -> Result<u32, DescribedError> {
    let id = zone.strip_prefix("node-").and_then(|id| id.parse().ok());
    id.ok_or_else(|| wrong(place, zone, "not the name of a NUMA zone (node-N)"))
}

fn distances(place: &str, zone: &Zone) -> Result<BTreeMap<u32, u32>, DescribedError> {
    let mut distances = BTreeMap::new();
    for (at, cost) in zone.costs.iter().enumerate() {
        let place = format!("{place}.costs[{at}]");
        let distance = u32::try_from(cost.value)
            .map_err(|_| wrong(&format!("{place}.value"), &cost.value.to_string(), "not a distance"))?;
        distances.insert(node(&format!("{place}.name"), &cost.name)?, distance);
    }
    Ok(distances)
}

fn resources(place: &str, resources: &[Resource]) -> Result<KernelNumaNode, DescribedError> {
    let mut read = KernelNumaNode::default();
    let mut memory = None;
    for (at, resource) in resources.iter().enumerate() {
        let place = format!("{place}.resources[{at}]");
        let bytes = |field: &str, text: &str| {
            to_bytes(text).ok_or_else(|| wrong(&format!("{place}.{field}"), text, "not an amount of bytes"))
        };
        let amounts = || -> Result<[u64; 3], DescribedError> {
            Ok([
                bytes("capacity", &resource.capacity)?,
                bytes("allocatable", resource.allocatable())?,
                bytes("available", &resource.available)?,
            ])
        };
        match (resource.name.as_str(), resource.name.strip_prefix("hugepages-")) {
            ("cpu", _) => {}
            ("memory", _) => memory = Some(amounts()?),
            (_, Some(size)) => {
                let size = bytes("name", size)?;
                let pages = |bytes: u64| {
                    let whole = bytes.checked_div(size);
                    whole.ok_or_else(|| wrong(&format!("{place}.name"), &resource.name, "not the size of a page"))
                };
                let [total, allocatable, free] = amounts()?;
                let pages = Pages {
                    total: pages(total)?,
                    reserved: pages(total.saturating_sub(allocatable))?,
                    free: pages(free)?,
                };
                read.huge_pages.insert(size, pages);
            }
            (name, None) => return Err(wrong(&format!("{place}.name"), name, "that resource is not known")),
        }
    }
    // Which part is in huge pages is known when all of them are.
    let aside = read.page_bytes();
    read.memory = memory.map(|[total, allocatable, available]| NumaMemory {
        total,
        reserved: total.saturating_sub(aside).saturating_sub(allocatable),
        assigned: allocatable.saturating_sub(available),
    });
    Ok(read)
}

fn amount<'a>(resources: &'a [Resource], name: &str) -> Option<&'a Resource> {
    resources.iter().find(|resource| resource.name == name)
}

/// The exclusive CPUs where kubelet chooses: those in no pool, or where the zones count fewer, those in the lists of
/// pods and as many others as the zones count.
pub(super) fn exclusive(
    object: &NodeResourceTopology,
    topology: &Topology,
    reserved: &CpuSet,
    shared: &CpuSet,
    allocated: &CpuSet,
) -> Result<CpuSet, DescribedError> {
    let mut exclusive = CpuSet::new();
    for (at, zone) in object.zones.iter().enumerate() {
        let id = node(&format!("zones[{at}].name"), &zone.name)?;
        let here = topology.cpus.iter().filter(|(_, cpu)| cpu.node == id);
        let here: CpuSet = here.map(|(number, _)| *number).collect();
        let Some(cpu) = amount(&zone.resources, "cpu") else {
            continue;
        };
        let available: usize = cpu.available.parse().map_err(|_| {
            let place = format!("zones[{at}].resources: available of cpu");
            wrong(&place, &cpu.available, "not a number of CPUs")
        })?;
        let allocatable = here.difference(reserved);
        let (least, most) = (allocated.intersection(&here), here.difference(shared));
        let missing = allocatable.difference(&least).len().saturating_sub(available);
        let others = most.difference(&least).difference(reserved);
        if missing == others.len() {
            exclusive = exclusive.union(&most);
        } else {
            // More than there are is a contradiction, and is reported as one.
            exclusive = exclusive.union(&least).union(&others.iter().take(missing).collect());
        }
    }
    Ok(exclusive)
}
