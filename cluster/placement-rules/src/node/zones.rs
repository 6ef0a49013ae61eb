//! The NUMA nodes of an object, and that they agree with the attribute.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_cpus::quantity::Quantity;
use stelia_koordinator::report::compact::Compact;
use stelia_koordinator::report::{NodeResourceTopology, Resource, Zone};

use super::free_resources::Amount;
use super::{NodeError, invalid};

/// NUMA nodes beyond this id are in no mask of kubelet's.
const MAX_NUMA_NODE_ID: u32 = 63;
const TOO_HIGH: &str = "no NUMA node has so high an id";
/// The most resources of a zone, and devices of a resource on a NUMA node.
const MAX_RESOURCES: usize = 256;
const MAX_DEVICES: u64 = 4096;
/// A resource's name: a domain and a label.
const MAX_NAME: usize = 317;

/// Huge pages' resources, and kubelet's kinds of memory.
const HUGE_PAGES: &str = "hugepages-";
const MEMORY: &str = "memory";

/// What the zones tell.
#[derive(Debug, Clone, Default)]
pub(super) struct Zones {
    /// Distances by NUMA node, each row in the order of ids.
    pub(super) distances: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// Bytes by NUMA node and kind; nothing where the Memory Manager assigns none.
    pub(super) memory: BTreeMap<u32, BTreeMap<String, Amount>>,
    /// Devices by resource and NUMA node.
    pub(super) devices: BTreeMap<String, BTreeMap<u32, Amount>>,
    /// The cells of NUMA nodes whose memory is in use, as masks.
    pub(super) groups: BTreeMap<u32, u64>,
}

pub(super) fn parse(object: &NodeResourceTopology, compact: &Compact) -> Result<Zones, NodeError> {
    let mut zones = Zones::default();
    let is_static = compact.managers.memory_groups.is_some();
    for zone in &object.zones {
        let id = node("zones.name", &zone.name)?;
        if zones.distances.insert(id, distances(zone)?).is_some() {
            return Err(invalid("zones.name", &zone.name, "the zone is there twice"));
        }
        if zone.resources.len() > MAX_RESOURCES {
            return Err(invalid("zones.resources", &zone.name, "too many resources"));
        }
        let mut seen = BTreeSet::new();
        for resource in &zone.resources {
            let name = resource.name.as_str();
            if name.len() > MAX_NAME || !seen.insert(name) {
                return Err(invalid("zones.resources.name", name, "too long, or there twice"));
            }
            match name {
                "cpu" => cpus(compact, id, resource)?,
                name if is_static && (name == MEMORY || name.starts_with(HUGE_PAGES)) => {
                    let kinds = zones.memory.entry(id).or_default();
                    kinds.insert(name.to_owned(), amount(resource)?);
                }
                name if name.contains('/') => {
                    let amount = amount(resource)?;
                    if amount.all > MAX_DEVICES {
                        let capacity = &resource.capacity;
                        return Err(invalid("zones.resources.capacity", capacity, "too many devices"));
                    }
                    zones.devices.entry(name.to_owned()).or_default().insert(id, amount);
                }
                _ => {}
            }
        }
    }
    for cpu in compact.topology.cpus.values() {
        if !zones.distances.contains_key(&cpu.node) {
            let node = cpu.node.to_string();
            return Err(invalid("topology", &node, "there is no zone of this NUMA node"));
        }
    }
    if is_static && !zones.memory.values().any(|kinds| kinds.contains_key(MEMORY)) {
        let why = "the policy is Static, and no zone has memory";
        return Err(invalid("kubelet.memory", "", why));
    }
    zones.groups = groups(compact)?;
    Ok(zones)
}

fn node(place: &'static str, zone: &str) -> Result<u32, NodeError> {
    let id: Option<u32> = zone.strip_prefix("node-").and_then(|id| id.parse().ok());
    match id {
        Some(id) if id <= MAX_NUMA_NODE_ID => Ok(id),
        Some(_) => Err(invalid(place, zone, TOO_HIGH)),
        None => Err(invalid(place, zone, "not the name of a NUMA zone (node-N)")),
    }
}

fn distances(zone: &Zone) -> Result<BTreeMap<u32, u64>, NodeError> {
    let mut row = BTreeMap::new();
    for cost in &zone.costs {
        let value = cost.value.to_string();
        let distance = u32::try_from(cost.value).map_err(|_| invalid("zones.costs.value", &value, "not a distance"))?;
        let to = node("zones.costs.name", &cost.name)?;
        if row.insert(to, u64::from(distance)).is_some() {
            return Err(invalid("zones.costs.name", &cost.name, "the distance is there twice"));
        }
    }
    Ok(row)
}

fn quantity(place: &'static str, text: &str) -> Result<u64, NodeError> {
    let amount: Quantity = text.parse().map_err(|_| invalid(place, text, "not a quantity"))?;
    Ok(amount.value())
}

fn amount(resource: &Resource) -> Result<Amount, NodeError> {
    let all = match &resource.allocatable {
        Some(text) => quantity("zones.resources.allocatable", text)?,
        None => quantity("zones.resources.capacity", &resource.capacity)?,
    };
    let free = quantity("zones.resources.available", &resource.available)?;
    if free > all {
        let available = &resource.available;
        let what = "zones.resources.available";
        return Err(invalid(what, available, "more than is allocatable"));
    }
    Ok(Amount { all, free })
}

/// Whether the zone counts the CPUs that the attribute names: otherwise one of them is old, or another program's.
fn cpus(compact: &Compact, node: u32, resource: &Resource) -> Result<(), NodeError> {
    let here = compact.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
    let here: CpuSet = here.map(|(number, _)| *number).collect();
    let free = compact.free.intersection(&here).len();
    let Resource {
        capacity, available, ..
    } = resource;
    let told = [
        (
            "of capacity",
            quantity("zones.resources.capacity", capacity)?,
            here.len(),
        ),
        ("available", quantity("zones.resources.available", available)?, free),
    ];
    for (what, told, counted) in told {
        if told != counted as u64 {
            return Err(NodeError::Contradiction {
                node,
                what,
                told,
                counted,
            });
        }
    }
    Ok(())
}

/// As masks, by NUMA node.
fn groups(compact: &Compact) -> Result<BTreeMap<u32, u64>, NodeError> {
    let mut masks = BTreeMap::new();
    for (node, cells) in compact.managers.memory_groups.iter().flatten() {
        if let Some(id) = cells.iter().chain([node]).find(|id| **id > MAX_NUMA_NODE_ID) {
            return Err(invalid("kubelet.memory", &id.to_string(), TOO_HIGH));
        }
        masks.insert(*node, cells.iter().fold(0u64, |mask, cell| mask | 1 << cell));
    }
    Ok(masks)
}
