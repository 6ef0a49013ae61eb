//! What is free of a resource on each NUMA node.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, NodeSet};

use crate::Subject;

pub(crate) const CPU: &str = "cpu";

/// What is free of a resource on each NUMA node that has any of it.
pub fn free(subject: &Subject, resource: &str) -> BTreeMap<u32, u64> {
    let (state, mut free) = (subject.node.state(), BTreeMap::new());
    if resource == CPU {
        let open = state.cpus.default.difference(&subject.node.reserved_cpus());
        return by_node(subject, &open);
    }
    if let Some(devices) = state.devices.resources.get(resource) {
        let available = state.devices.available(resource);
        for (id, device) in devices {
            for node in &device.nodes {
                *free.entry(*node).or_default() += u64::from(available.contains(id.as_str()));
            }
        }
    } else {
        let tables = state.memory.nodes.iter();
        free.extend(tables.filter_map(|(id, node)| Some((*id, node.tables.get(resource)?.free))));
    }
    free
}

/// How many of these CPUs each NUMA node has that has any CPUs.
pub fn by_node(subject: &Subject, cpus: &CpuSet) -> BTreeMap<u32, u64> {
    let mut counts = BTreeMap::new();
    for (cpu, place) in &subject.topology.cpus {
        *counts.entry(place.node).or_default() += u64::from(cpus.contains(*cpu));
    }
    counts
}

/// `1 CPU`, `1.5 GiB memory`, `2 nvidia.com/gpu`.
fn amount_words(resource: &str, amount: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    match resource {
        CPU if amount == 1 => "1 CPU".to_owned(),
        CPU => format!("{amount} CPUs"),
        memory if memory == "memory" || memory.starts_with("hugepages-") => {
            format!("{:.1} GiB {memory}", amount as f64 / GIB)
        }
        devices => format!("{amount} {devices}"),
    }
}

/// `4 CPUs on NUMA 0, 3 CPUs on each of NUMA 1-3`.
pub fn free_words(resource: &str, free: &BTreeMap<u32, u64>) -> String {
    let mut groups: Vec<(u64, NodeSet)> = Vec::new();
    for (node, amount) in free {
        match groups.iter_mut().find(|(known, _)| known == amount) {
            Some((_, nodes)) => drop(nodes.insert(*node)),
            None => groups.push((*amount, [*node].into())),
        }
    }
    let words = groups.into_iter().map(|(amount, nodes)| {
        let each = if nodes.len() > 1 { "each of " } else { "" };
        format!("{} on {each}NUMA {nodes}", amount_words(resource, amount))
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_told_by_amount() {
        let free = BTreeMap::from([(0, 4), (1, 8), (2, 8), (3, 4)]);
        assert_eq!(
            free_words(CPU, &free),
            "4 CPUs on each of NUMA 0,3, 8 CPUs on each of NUMA 1-2"
        );
        let memory = BTreeMap::from([(0, 3 << 29)]);
        assert_eq!(free_words("hugepages-2Mi", &memory), "1.5 GiB hugepages-2Mi on NUMA 0");
    }
}
