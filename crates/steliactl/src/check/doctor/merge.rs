//! How long kubelet takes to align a pod. Its Topology Manager compares every combination of hints: up to 2^(NUMA
//! nodes) hints for each kind of resource, multiplied over the kinds.

use std::collections::BTreeSet;

use kubelet_planner::merge::{Policy, duration};
use stelia_api::VM_RESOURCE;
use stelia_cpus::Topology;
use stelia_kubelet::DeviceManagerState;
use stelia_kubelet::config::KubeletConfig;

use super::Facts;
use super::checks::{Finding, ok, unknown, warning};

pub(super) fn merge(facts: &Facts) -> Finding {
    let (Ok(kubelet), Ok(topology)) = (&facts.kubelet, &facts.topology) else {
        return unknown("kubelet's configuration or the CPUs cannot be read");
    };
    let nodes = Nodes::of(facts, topology);
    let policy = match Policy::parse(&kubelet.topology_manager_policy) {
        None | Some(Policy::None) => {
            let found = format!("topology manager {}", kubelet.topology_manager_policy);
            return sets(kubelet, &nodes, &found).unwrap_or_else(|| ok(found));
        }
        Some(policy) => policy,
    };
    let lists = lists(facts, kubelet, &nodes);
    let sizes: Vec<usize> = lists.iter().map(|(_, nodes)| *nodes).collect();
    let permutations = duration::permutations(policy, &sizes);
    let seconds = duration::seconds(permutations);
    let names: Vec<&str> = lists.iter().map(|(name, _)| name.as_str()).collect();
    let found = format!(
        "{} NUMA nodes, {}: up to {} combinations for a pod with {}, {}",
        nodes.all,
        policy.name(),
        duration::count_words(permutations),
        names.join(", "),
        duration::in_words(seconds)
    );
    if let Some(finding) = sets(kubelet, &nodes, &found) {
        return finding;
    }
    if seconds < duration::SLOW_SECONDS {
        return ok(found);
    }
    let single = duration::permutations(Policy::SingleNumaNode, &sizes);
    let fewer = if nodes.all == nodes.with_cpus {
        "fewer NUMA nodes by the firmware (NPS, SNC), "
    } else {
        ""
    };
    warning(
        found,
        format!(
            "kubelet admits no other pod meanwhile. topologyManagerPolicy: single-numa-node ({} combinations), {fewer}pods with fewer kinds of resources, or CPUs by steliad (/usr/share/doc/steliad/allocator.md); max-allowable-numa-nodes and prefer-closest-numa-nodes make it no quicker",
            duration::count_words(single)
        ),
    )
}

/// How many NUMA nodes there are, and how many have CPUs.
struct Nodes {
    all: usize,
    with_cpus: usize,
}

impl Nodes {
    fn of(facts: &Facts, topology: &Topology) -> Self {
        let with_cpus: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
        let mut all = with_cpus.clone();
        all.extend(facts.files.numa.iter().flat_map(|nodes| nodes.keys()));
        Self {
            all: all.len(),
            with_cpus: with_cpus.len(),
        }
    }
}

/// The sets of NUMA nodes that the memory manager looks at for each pod, whatever the Topology Manager's policy is, where they
/// are too many. It keeps a hint for each set that has the memory.
fn sets(kubelet: &KubeletConfig, nodes: &Nodes, found: &str) -> Option<Finding> {
    let sets = duration::sets(nodes.all);
    let seconds = duration::seconds(sets);
    if kubelet.memory_manager_policy != "Static" || seconds < duration::SLOW_SECONDS {
        return None;
    }
    let without = nodes.all - nodes.with_cpus;
    let firmware = match without {
        0 => "fewer NUMA nodes by the firmware (NPS, SNC)".to_owned(),
        _ => format!("the {without} NUMA nodes without CPUs count too, and NPS or SNC removes none of them"),
    };
    Some(warning(
        format!(
            "{found}; its memory manager looks at {} sets of {} NUMA nodes for each Guaranteed pod, {} and more, and may run out of memory",
            duration::count_words(sets),
            nodes.all,
            duration::in_words(seconds)
        ),
        format!("memoryManagerPolicy: None; {firmware}. No topologyManagerPolicy makes it quicker"),
    ))
}

/// For each resource that a pod may have hints for the number of NUMA nodes that these hints range over.
fn lists(facts: &Facts, kubelet: &KubeletConfig, nodes: &Nodes) -> Vec<(String, usize)> {
    let mut lists = Vec::new();
    if kubelet.cpu_manager_policy == "static" {
        lists.push(("cpu".to_owned(), nodes.with_cpus));
    }
    if kubelet.memory_manager_policy == "Static" {
        lists.push(("memory".to_owned(), nodes.all));
        // Counted once: a VM's huge pages are of one size.
        let mut pages = facts.files.numa.iter().flat_map(|nodes| nodes.values());
        if pages.any(|node| node.huge_pages.values().any(|pages| pages.total > 0)) {
            lists.push(("huge pages".to_owned(), nodes.all));
        }
    }
    if let Ok(Some(devices)) = &facts.files.devices {
        // Since 1.36 the nodes that have devices of the resource: those with CPUs, where PCI devices are.
        lists.extend(aligned(devices).map(|resource| (resource.to_owned(), nodes.with_cpus)));
    }
    lists
}

/// The resources whose devices may be bound to NUMA nodes: all but steliad's own, and those of which pods have devices and none of these
/// has a node.
fn aligned(devices: &DeviceManagerState) -> impl Iterator<Item = &str> {
    let others = devices
        .registered
        .keys()
        .map(String::as_str)
        .filter(|name| *name != VM_RESOURCE);
    others.filter(|resource| {
        let mut given = devices
            .entries
            .iter()
            .filter(|entry| entry.resource == *resource)
            .peekable();
        given.peek().is_none() || given.any(|entry| entry.devices.keys().any(Option::is_some))
    })
}
