//! The amounts of each NUMA node.

use std::collections::BTreeMap;

use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;

use super::{Amounts, StoredError};
use crate::report::memory_and_devices::Devices;
use crate::report::{Zone, described};

/// Limit of the devices of a resource on a NUMA node that are believed.
const MAX_DEVICES: u64 = 4096;
/// Limit of the devices of an object that are believed: the planner has a value for each of them.
const MAX_OBJECT_DEVICES: u64 = 16_384;

/// What each NUMA node has, by resource.
pub(super) fn amounts(zones: &[Zone]) -> Result<BTreeMap<u32, BTreeMap<String, Amounts>>, StoredError> {
    let mut all: BTreeMap<u32, BTreeMap<String, Amounts>> = BTreeMap::new();
    for (at, zone) in zones.iter().enumerate() {
        let wrong = |field: &str, found: &str, why: &dyn ToString| StoredError::Value {
            place: format!("zones[{at}].{field}"),
            found: excerpt::excerpt(found),
            why: why.to_string(),
        };
        let id = described::zones::node("", &zone.name)
            .map_err(|_| wrong("name", &zone.name, &"not the name of a NUMA zone (node-N)"))?;
        let mut resources = BTreeMap::new();
        for (number, one) in zone.resources.iter().enumerate() {
            let amount = |field: &str, text: &str| {
                let place = format!("resources[{number}].{field}");
                text.parse::<Quantity>().map_err(|cause| wrong(&place, text, &cause))
            };
            let amounts = Amounts {
                capacity: amount("capacity", &one.capacity)?,
                allocatable: amount("allocatable", one.allocatable())?,
                available: amount("available", &one.available)?,
            };
            resources.insert(one.name.clone(), amounts);
        }
        if all.insert(id, resources).is_some() {
            return Err(wrong("name", &zone.name, &"the zone is there twice"));
        }
    }
    Ok(all)
}

/// The devices among these amounts: resources with a domain. Beyond [`MAX_OBJECT_DEVICES`] none are counted.
pub(super) fn devices(zones: &BTreeMap<u32, BTreeMap<String, Amounts>>) -> BTreeMap<u32, BTreeMap<String, Devices>> {
    let mut left = MAX_OBJECT_DEVICES;
    let mut found: BTreeMap<u32, BTreeMap<String, Devices>> = BTreeMap::new();
    let all = zones
        .iter()
        .flat_map(|(node, resources)| resources.iter().map(move |one| (*node, one)));
    for (node, (name, amounts)) in all.filter(|(_, (name, _))| name.contains('/')) {
        let whole = |amount: Quantity| amount.value().min(MAX_DEVICES);
        let all = whole(amounts.allocatable).min(left);
        left -= all;
        let free = whole(amounts.available).min(all);
        let number = |count: u64| usize::try_from(count).unwrap_or_default();
        let devices = Devices {
            all: number(all),
            free: number(free),
        };
        found.entry(node).or_default().insert(name.clone(), devices);
    }
    found
}
