//! The amounts of each NUMA node.

use std::collections::BTreeMap;

use stelia_cpus::quantity::Quantity;
use stelia_text::excerpt;

use super::{Amounts, StoredError, StoredZone};
use crate::described;

/// What each NUMA node has, by resource.
pub(super) fn amounts(zones: &[StoredZone]) -> Result<BTreeMap<u32, BTreeMap<String, Amounts>>, StoredError> {
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
