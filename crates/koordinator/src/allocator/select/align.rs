//! Which NUMA nodes an allocation may use.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, NodeSet};

use super::{HostTables, Unsatisfied, satisfying};
use crate::allocator::{CpuBindPolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy};

/// How many CPUs NUMA nodes have for a request, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// If nothing were allocated.
    pub capacity: BTreeMap<u32, usize>,
    /// Now.
    pub available: BTreeMap<u32, usize>,
}

impl Room {
    /// Count the CPUs that can be allocated at all (`all`) and those available now; with a required bind policy only
    /// CPUs that satisfy it.
    pub fn new(host: &HostTables, all: &CpuSet, available: &CpuSet, required: Option<CpuBindPolicy>) -> Self {
        let count = |cpus: &CpuSet| host.counts(&satisfying(host, cpus, &CpuSet::new(), required));
        Self {
            capacity: count(all),
            available: count(available),
        }
    }

    /// Restricted to these nodes.
    #[must_use]
    pub fn within(&self, nodes: &NodeSet) -> Self {
        let only = |room: &BTreeMap<u32, usize>| -> BTreeMap<u32, usize> {
            let here = room.iter().filter(|(node, _)| nodes.contains(node));
            here.map(|(node, room)| (*node, *room)).collect()
        };
        Self {
            capacity: only(&self.capacity),
            available: only(&self.available),
        }
    }
}

/// Whether `count` CPUs that a scheduler chose, on so many nodes, satisfy a policy. A policy that only prefers is
/// satisfied by any choice.
pub fn satisfies(policy: NumaTopologyAlignmentPolicy, nodes: usize, count: usize, room: &Room) -> bool {
    match policy {
        NumaTopologyAlignmentPolicy::None | NumaTopologyAlignmentPolicy::BestEffort => true,
        NumaTopologyAlignmentPolicy::Restricted => {
            least_nodes(count, room.capacity.values().copied()).is_some_and(|fewest| nodes <= fewest)
        }
        NumaTopologyAlignmentPolicy::SingleNumaNode => nodes <= 1,
    }
}

/// Choose the nodes for `count` CPUs; `None` leaves every node open.
///
/// As few nodes as have enough available. An alignment is one on as few nodes as would do with nothing allocated; nodes
/// that tie are taken by how many of them are `near` (the NUMA nodes of devices), in the strategy's order, then by id. DistributeEvenly
/// spreads over the nodes chosen here, and breaks ties as LeastAllocated.
///
/// # Errors
/// The policy is strict and there are no such nodes.
pub fn align(
    policy: NumaTopologyAlignmentPolicy,
    strategy: NumaAllocateStrategy,
    count: usize,
    room: &Room,
    near: &NodeSet,
) -> Result<Option<NodeSet>, Unsatisfied> {
    let fewest = |room: &BTreeMap<u32, usize>| least_nodes(count, room.values().copied());
    let now = fewest(&room.available);
    let aligned = match policy {
        NumaTopologyAlignmentPolicy::None => return Ok(None),
        NumaTopologyAlignmentPolicy::BestEffort => now,
        NumaTopologyAlignmentPolicy::Restricted => now.filter(|now| Some(*now) == fewest(&room.capacity)),
        NumaTopologyAlignmentPolicy::SingleNumaNode => now.filter(|now| *now <= 1),
    };
    match aligned {
        Some(size) => Ok(Some(choose(size, strategy, count, &room.available, near))),
        None if policy == NumaTopologyAlignmentPolicy::BestEffort => Ok(None),
        None => Err(Unsatisfied::Alignment { wanted: count, policy }),
    }
}

/// The least number of nodes on which an amount fits.
fn least_nodes(amount: usize, room: impl Iterator<Item = usize>) -> Option<usize> {
    let mut room: Vec<usize> = room.collect();
    room.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    let enough = |room: usize| {
        sum += room;
        sum >= amount
    };
    room.into_iter().position(enough).map(|last| last + 1)
}

/// As many nodes as an amount needs: those with most room, or for MostAllocated the run of nodes, in order of room,
/// that leaves least over.
///
/// Sets with more `near` nodes come first. A set is a run of `near` nodes and a run of others; the last runs have the most room, so a set that fits is
/// found if there is one.
fn choose(
    size: usize,
    strategy: NumaAllocateStrategy,
    amount: usize,
    room: &BTreeMap<u32, usize>,
    near: &NodeSet,
) -> NodeSet {
    let ordered = |is_near: bool| -> Vec<(u32, usize)> {
        let nodes = room.iter().filter(|(node, _)| near.contains(node) == is_near);
        let mut order: Vec<(u32, usize)> = nodes.map(|(node, room)| (*node, *room)).collect();
        order.sort_by_key(|(node, room)| (strategy.rank(*room), *node));
        order
    };
    let (close, others) = (ordered(true), ordered(false));
    for count in (0..=size.min(close.len())).rev() {
        for run in runs(&close, count) {
            let fits = |other: &&[(u32, usize)]| {
                let sum: usize = run.iter().chain(*other).map(|(_, room)| room).sum();
                sum >= amount
            };
            if let Some(other) = runs(&others, size - count).find(fits) {
                return run.iter().chain(other).map(|(node, _)| *node).collect();
            }
        }
    }
    NodeSet::new()
}

/// Every run of `count` consecutive nodes of `order`; a single empty run if `count` is 0.
fn runs(order: &[(u32, usize)], count: usize) -> impl Iterator<Item = &[(u32, usize)]> {
    let starts = (order.len() + 1).saturating_sub(count);
    (0..starts)
        .filter_map(move |start| order.get(start..start + count))
        .take(if count == 0 { 1 } else { usize::MAX })
}
