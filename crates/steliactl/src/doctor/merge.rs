//! How long kubelet takes to align a pod. Its Topology Manager compares every combination of hints: up to 2^(NUMA
//! nodes) hints for each kind of resource, multiplied over the kinds.

use std::collections::BTreeSet;

use kubelet_planner::merge::{Policy, effort};
use stelia_cpus::Topology;
use stelia_kubelet::DeviceManagerState;
use stelia_kubelet::config::KubeletConfig;

use super::Facts;
use super::checks::{Finding, ok, warning};

/// Warn from this many seconds on: kubelet admits no other pod meanwhile.
const LONG: f64 = 10.0;

pub(super) fn merge(facts: &Facts) -> Finding {
    let (Ok(kubelet), Ok(topology)) = (&facts.kubelet, &facts.topology) else {
        return ok("nothing to look at");
    };
    let policy = match Policy::parse(&kubelet.topology_manager_policy) {
        None | Some(Policy::None) => return ok(format!("topology manager {}", kubelet.topology_manager_policy)),
        Some(policy) => policy,
    };
    let (nodes, lists) = lists(facts, kubelet, topology);
    let sizes: Vec<usize> = lists.iter().map(|(_, nodes)| *nodes).collect();
    let permutations = effort::permutations(policy, &sizes);
    let seconds = effort::seconds(permutations);
    let names: Vec<&str> = lists.iter().map(|(name, _)| name.as_str()).collect();
    let found = format!(
        "{nodes} NUMA nodes, {}: up to {} combinations for a pod with {}, {}",
        policy.name(),
        count(permutations),
        names.join(", "),
        duration(seconds)
    );
    if seconds < LONG {
        return ok(found);
    }
    let single = effort::permutations(Policy::SingleNumaNode, &sizes);
    warning(
        found,
        format!(
            "kubelet admits no other pod meanwhile. topologyManagerPolicy: single-numa-node ({} combinations), fewer NUMA nodes by the firmware (NPS, SNC), pods with fewer kinds of resources, or CPUs by steliad (docs/allocator.md); max-allowable-numa-nodes and prefer-closest-numa-nodes make it no quicker",
            count(single)
        ),
    )
}

/// The number of NUMA nodes, and for each resource that a pod may have hints for the number of nodes that these hints
/// range over.
fn lists(facts: &Facts, kubelet: &KubeletConfig, topology: &Topology) -> (usize, Vec<(String, usize)>) {
    let with_cpus: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
    let numa = facts.files.numa.as_ref();
    let mut all = with_cpus.clone();
    all.extend(numa.iter().flat_map(|nodes| nodes.keys()));
    let mut lists = Vec::new();
    if kubelet.cpu_manager_policy == "static" {
        lists.push(("cpu".to_owned(), with_cpus.len()));
    }
    if kubelet.memory_manager_policy == "Static" {
        lists.push(("memory".to_owned(), all.len()));
        // Counted once: a VM's huge pages are of one size.
        let mut pages = numa.iter().flat_map(|nodes| nodes.values());
        if pages.any(|node| node.huge_pages.values().any(|pages| pages.total > 0)) {
            lists.push(("huge pages".to_owned(), all.len()));
        }
    }
    if let Ok(Some(devices)) = &facts.files.devices {
        lists.extend(aligned(devices).map(|resource| (resource.to_owned(), all.len())));
    }
    (all.len(), lists)
}

/// The resources whose devices may be bound to NUMA nodes: all but those of which pods have devices and none of these
/// has a node.
fn aligned(devices: &DeviceManagerState) -> impl Iterator<Item = &str> {
    devices.registered.keys().map(String::as_str).filter(|resource| {
        let mut given = devices
            .entries
            .iter()
            .filter(|entry| entry.resource == *resource)
            .peekable();
        given.peek().is_none() || given.any(|entry| entry.devices.keys().any(Option::is_some))
    })
}

/// A count for reading: rounded from a million on.
fn count(number: f64) -> String {
    match number < 1e6 {
        true => format!("{number:.0}"),
        false => format!("{number:.1e}"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "less than a second".to_owned(),
        s if s < 120.0 => format!("about {s:.0} s"),
        s if s < 7200.0 => format!("about {:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("about {:.0} h", s / 3600.0),
        s if s < 1000.0 * 86400.0 => format!("about {:.0} days", s / 86400.0),
        _ => "years".to_owned(),
    }
}
