//! The documents' score of a node that fits ("Score phase" of Koordinator's proposal for fine-grained CPU orchestration): A + B.
//!
//! | | the text | here |
//! |---|---|---|
//! | **A** | "when the node has the label … with value BestEffort/Restricted/SingleNUMANode, use the ScoringStrategy … to score each satisfied NUMA Node, and get the minimum score" | where an alignment policy holds for the request, its own or the node's. 0 without one |
//! | **B** | "for the LSE/LSR/K8s Guaranteed Pods": "calculate the number of NUMA Nodes involved as *requested*", "the *capacity* of LeastAllocated and MostAllocated is *total(NUMA Node)*" | for a request that gets CPUs of its own: of those CPUs. 0 for LS and BE |
//!
//! For requested CPUs or NUMA nodes and a capacity, in whole numbers, rounded down as Kubernetes does:
//!
//! | strategy | score |
//! |---|---|
//! | MostAllocated, the default | requested · 100 / capacity |
//! | LeastAllocated | (capacity − requested) · 100 / capacity |
//! | BalancedAllocation | (1 − σ) · 100, σ the standard deviation of the NUMA nodes' usage rates |
//!
//! The text's example for B: 8 NUMA nodes, 4 CPUs on 2 of them, LeastAllocated: (8 − 2) · 100 / 8 = 75. So B of MostAllocated
//! favours what involves many NUMA nodes. That is what the text says.
//!
//! Where the text is silent:
//! - A's *requested* and *capacity*, of a NUMA node: its CPUs that are in use and the request's, of those that can be allocated,
//!   as Kubernetes counts for the strategies of these names. CPUs only: the allocator regards no memory.
//! - A *satisfied* NUMA node has room for the whole request, for LS in its shared pool. Where an instance takes several, they are
//!   the nodes it would get CPUs of, each with its part. Where LS finds none, A is 0.
//! - What LS requests: its limit, in whole CPUs, rounded up; one CPU without a limit. BE requests nothing: A is 0.
//! - BalancedAllocation of one resource would always be 100. So what is balanced is the NUMA nodes' CPUs: their usage rates as
//!   they would be, for A with the request on the node that is scored, for B with the CPUs it would get. As with Kubernetes' two
//!   resources the worst is 50. B's *requested* has no part in it, and the text names no capacity for it either.
//! - "If the value is None, get the policy from plugin configuration": that configuration is the node's own here
//!   (`numa-topology-alignment-policy`), and the CPUs are those that the allocator would give.
//! - "Score 0 if there is no NodeResourceTopology", and what does not fit: no score, but the reason.
//! - NUMA nodes are counted with CPUs that are online: none of memory alone.
//! - "Normalize the scores" is of many nodes: the caller's. A and B are each from 0 to 100.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
use stelia_cpus::text::named;

use crate::allocator::{Allocation, AllocatorNode, NumaTopologyAlignmentPolicy, Qos, Room};

named! {
    /// What the score favours.
    #[derive(Default)]
    pub enum ScoringStrategy {
        /// Nodes with the least amount of available resource.
        #[default]
        MostAllocated = "MostAllocated",
        /// Nodes with balanced resource usage rate.
        BalancedAllocation = "BalancedAllocation",
        /// Nodes with the most amount of available resource.
        LeastAllocated = "LeastAllocated",
    }
}

/// The score of a node for a request that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// A + B.
    #[serde(rename = "score")]
    pub sum: u32,
    /// A.
    #[serde(rename = "score-numa")]
    pub numa: u32,
    /// B.
    #[serde(rename = "score-cpus")]
    pub cpus: u32,
}

impl Score {
    pub fn new(numa: u32, cpus: u32) -> Self {
        Self {
            sum: numa + cpus,
            numa,
            cpus,
        }
    }
}

/// CPUs of a NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    used: usize,
    capacity: usize,
}

/// The score of an allocation with these CPUs, for a request of `requested` CPUs. For CPUs that kubelet would choose, of a node and an
/// allocation by kubelet's policies.
pub fn of(
    node: &AllocatorNode,
    allocation: &Allocation,
    cpus: &CpuSet,
    wanted: usize,
    strategy: ScoringStrategy,
) -> Score {
    let loads = loads(node);
    let parts = node.host().counts(cpus);
    let of_nodes = match allocation.alignment {
        NumaTopologyAlignmentPolicy::None => 0,
        _ => numa(&loads, &satisfied(node, allocation, &parts, wanted), strategy),
    };
    let of_cpus = if allocation.qos.is_exclusive() {
        involved(&loads, &parts, strategy)
    } else {
        0
    };
    Score::new(of_nodes, of_cpus)
}

/// The NUMA nodes with CPUs, by id.
fn loads(node: &AllocatorNode) -> BTreeMap<u32, Load> {
    let (host, pools) = (node.host(), node.pools());
    let (capacity, free) = (host.counts(&node.capacity()), host.counts(&pools.allocatable));
    let load = |id: &u32| {
        let capacity = capacity.get(id).copied().unwrap_or_default();
        let used = capacity.saturating_sub(free.get(id).copied().unwrap_or_default());
        (*id, Load { used, capacity })
    };
    pools.shared_by_node.keys().map(load).collect()
}

/// The NUMA nodes to score, each with what is requested of it.
fn satisfied(
    node: &AllocatorNode,
    allocation: &Allocation,
    parts: &BTreeMap<u32, usize>,
    wanted: usize,
) -> BTreeMap<u32, usize> {
    let pools = node.pools();
    let room = match allocation.qos {
        Qos::Lse | Qos::Lsr => {
            let required = allocation.required.then_some(allocation.bind);
            Room::new(node.host(), &CpuSet::new(), &pools.allocatable, required).available
        }
        Qos::Ls => pools
            .shared_by_node
            .iter()
            .map(|(node, pool)| (*node, pool.cpus.len()))
            .collect(),
        Qos::Be => BTreeMap::new(),
    };
    let alone: BTreeMap<u32, usize> = room
        .into_iter()
        .filter(|(_, room)| *room >= wanted)
        .map(|(node, _)| (node, wanted))
        .collect();
    if alone.is_empty() { parts.clone() } else { alone }
}

/// A: the least score of any.
fn numa(loads: &BTreeMap<u32, Load>, satisfied: &BTreeMap<u32, usize>, strategy: ScoringStrategy) -> u32 {
    let score = |(node, requested): (&u32, &usize)| {
        let load = loads.get(node)?;
        let requested = load.used + requested;
        Some(match strategy {
            ScoringStrategy::MostAllocated => most_allocated(requested, load.capacity),
            ScoringStrategy::LeastAllocated => least(requested, load.capacity),
            ScoringStrategy::BalancedAllocation => balanced(loads, &BTreeMap::from([(*node, requested - load.used)])),
        })
    };
    satisfied.iter().filter_map(score).min().unwrap_or(0)
}

/// B: by how many NUMA nodes are involved.
fn involved(loads: &BTreeMap<u32, Load>, parts: &BTreeMap<u32, usize>, strategy: ScoringStrategy) -> u32 {
    match strategy {
        ScoringStrategy::MostAllocated => most_allocated(parts.len(), loads.len()),
        ScoringStrategy::LeastAllocated => least(parts.len(), loads.len()),
        ScoringStrategy::BalancedAllocation => balanced(loads, parts),
    }
}

/// LS runs on reserved CPUs too, so it may request more than can be allocated.
fn most_allocated(requested: usize, capacity: usize) -> u32 {
    let score = (requested.min(capacity) * 100).checked_div(capacity);
    score.and_then(|score| u32::try_from(score).ok()).unwrap_or(0)
}

fn least(requested: usize, capacity: usize) -> u32 {
    most_allocated(capacity.saturating_sub(requested), capacity)
}

fn balanced(loads: &BTreeMap<u32, Load>, added: &BTreeMap<u32, usize>) -> u32 {
    let rate = |(node, load): (&u32, &Load)| {
        let used = load.used + added.get(node).copied().unwrap_or_default();
        // A node without allocatable CPUs has no usage rate.
        (load.capacity > 0).then(|| used.min(load.capacity) as f64 / load.capacity as f64)
    };
    let rates: Vec<f64> = loads.iter().filter_map(rate).collect();
    let count = rates.len().max(1) as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count;
    // What is a whole number is not to become the one below it.
    ((1.0 - variance.sqrt()) * 100.0 + 1e-9).floor().clamp(0.0, 100.0) as u32
}
