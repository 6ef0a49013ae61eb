//! What kubelet's managers tell the Topology Manager, and what it makes of it.

use std::collections::BTreeMap;

use kubelet_planner::Merge;
use kubelet_planner::merge::Hint;
use serde::Serialize;
use stelia_cpus::{CpuSet, NodeSet};

use crate::Subject;

/// Limit of the sets of NUMA nodes that are listed.
const MAX_LISTED_NODE_SETS: usize = 8;

pub(crate) const CPU: &str = "cpu";

/// The hints for one resource in a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResourceHints {
    /// `None`: the pod as a whole.
    pub container: Option<String>,
    pub resource: String,
    pub preferred: NodeSets,
    /// Sets of NUMA nodes that have enough, and are not preferred.
    pub others: NodeSets,
    /// What was free by NUMA node before the pod: CPUs, devices, bytes.
    pub free: BTreeMap<u32, u64>,
}

/// Sets of NUMA nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeSets {
    pub count: u64,
    /// The first ones: the smallest, then those with the lowest ids.
    pub listed: Vec<NodeSet>,
}

impl NodeSets {
    fn of<'a>(hints: impl Iterator<Item = &'a Hint>) -> Self {
        let mut sets: Vec<_> = hints.filter_map(|hint| hint.nodes).collect();
        sets.sort_by_key(|nodes| (nodes.len(), *nodes));
        Self {
            count: sets.len() as u64,
            listed: sets.into_iter().take(MAX_LISTED_NODE_SETS).map(NodeSet::from).collect(),
        }
    }

    /// `{0} or {1}`; the number of sets if there are too many.
    pub fn words(&self) -> String {
        let listed: Vec<String> = self.listed.iter().map(|nodes| format!("{{{nodes}}}")).collect();
        if self.count as usize > listed.len() {
            format!(
                "{} or … ({} sets)",
                listed.first().cloned().unwrap_or_default(),
                self.count
            )
        } else {
            listed.join(" or ")
        }
    }
}

impl ResourceHints {
    /// The hints of a pod's merges on this node, in the order in which kubelet asks. Resources without a preference are left out.
    pub fn all(subject: &Subject, merges: &[Merge]) -> Vec<Self> {
        let hints = merges
            .iter()
            .flat_map(|merge| merge.hints.iter().map(move |hints| (&merge.container, hints)));
        let hints = hints.map(|(container, (resource, hints))| Self {
            container: container.clone(),
            resource: resource.clone(),
            preferred: NodeSets::of(hints.iter().filter(|hint| hint.preferred)),
            others: NodeSets::of(hints.iter().filter(|hint| !hint.preferred)),
            free: free(subject, resource),
        });
        hints.collect()
    }
}

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

/// Memory in GiB, anything else as a whole number.
pub fn amount_words(resource: &str, amount: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    if resource == "memory" || resource.starts_with("hugepages-") {
        format!("{:.1} GiB", amount as f64 / GIB)
    } else {
        amount.to_string()
    }
}

/// `4 on 0, 3 on each of 1-3`
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
        format!("{} on {each}{nodes}", amount_words(resource, amount))
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use kubelet_planner::merge::NodeMask;

    use super::*;

    #[test]
    fn what_is_free_is_told_by_amount() {
        let free = BTreeMap::from([(0, 4), (1, 8), (2, 8), (3, 4)]);
        assert_eq!(free_words("cpu", &free), "4 on each of 0,3, 8 on each of 1-2");
        let memory = BTreeMap::from([(0, 3 << 29)]);
        assert_eq!(free_words("hugepages-2Mi", &memory), "1.5 GiB on 0");
    }

    #[test]
    fn many_sets_are_counted() {
        let hints = |bits: std::ops::Range<u64>| -> Vec<Hint> {
            let hint = |bits| Hint {
                nodes: Some(NodeMask::from_bits(bits)),
                preferred: true,
            };
            bits.map(hint).collect()
        };
        assert_eq!(NodeSets::of(hints(1..4).iter()).words(), "{0} or {1} or {0-1}");
        assert_eq!(NodeSets::of(hints(1..256).iter()).words(), "{0} or … (255 sets)");
        assert_eq!(NodeSets::of([].iter()).words(), "");
    }
}
