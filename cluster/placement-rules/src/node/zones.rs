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
            if resource.name.len() > MAX_NAME || !seen.insert(resource.name.as_str()) {
                return Err(invalid(
                    "zones.resources.name",
                    &resource.name,
                    "too long, or there twice",
                ));
            }
            match resource.name.as_str() {
                "cpu" => cpus(compact, id, resource)?,
                name if is_static && (name == MEMORY || name.starts_with(HUGE_PAGES)) => {
                    let kinds = zones.memory.entry(id).or_default();
                    kinds.insert(name.to_owned(), amount(resource)?);
                }
                name if name.contains('/') => {
                    let amount = amount(resource)?;
                    if amount.all > MAX_DEVICES {
                        return Err(invalid(
                            "zones.resources.capacity",
                            &resource.capacity,
                            "too many devices",
                        ));
                    }
                    zones.devices.entry(name.to_owned()).or_default().insert(id, amount);
                }
                _ => {}
            }
        }
    }
    for cpu in compact.topology.cpus.values() {
        if !zones.distances.contains_key(&cpu.node) {
            return Err(invalid(
                "topology",
                &cpu.node.to_string(),
                "there is no zone of this NUMA node",
            ));
        }
    }
    if is_static && !zones.memory.values().any(|kinds| kinds.contains_key(MEMORY)) {
        return Err(invalid(
            "kubelet.memory",
            "",
            "the policy is Static, and no zone has memory",
        ));
    }
    zones.groups = groups(compact)?;
    Ok(zones)
}

fn node(place: &'static str, zone: &str) -> Result<u32, NodeError> {
    let id: Option<u32> = zone.strip_prefix("node-").and_then(|id| id.parse().ok());
    match id {
        Some(id) if id <= MAX_NUMA_NODE_ID => Ok(id),
        Some(_) => Err(invalid(place, zone, "no NUMA node has so high an id")),
        None => Err(invalid(place, zone, "not the name of a NUMA zone (node-N)")),
    }
}

fn distances(zone: &Zone) -> Result<BTreeMap<u32, u64>, NodeError> {
    let mut row = BTreeMap::new();
    for cost in &zone.costs {
        let distance = u32::try_from(cost.value)
            .map_err(|_| invalid("zones.costs.value", &cost.value.to_string(), "not a distance"))?;
        if row
            .insert(node("zones.costs.name", &cost.name)?, u64::from(distance))
            .is_some()
        {
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
        Err(invalid(
            "zones.resources.available",
            &resource.available,
            "more than is allocatable",
        ))
    } else {
        Ok(Amount { all, free })
    }
}

/// Whether the zone counts the CPUs that the attribute names: otherwise one of them is old, or another program's.
fn cpus(compact: &Compact, node: u32, resource: &Resource) -> Result<(), NodeError> {
    let here = compact.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
    let here: CpuSet = here.map(|(number, _)| *number).collect();
    let free = compact.free.intersection(&here).len();
    let told = [
        (
            "of capacity",
            "zones.resources.capacity",
            &resource.capacity,
            here.len(),
        ),
        ("available", "zones.resources.available", &resource.available, free),
    ];
    for (what, place, text, counted) in told {
        let told = quantity(place, text)?;
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
        let mut mask = 0u64;
        for id in cells.iter().chain([node]) {
            if *id > MAX_NUMA_NODE_ID {
                return Err(invalid(
                    "kubelet.memory",
                    &id.to_string(),
                    "no NUMA node has so high an id",
                ));
            }
        }
        for cell in cells {
            mask |= 1 << cell;
        }
        masks.insert(*node, mask);
    }
    Ok(masks)
}
