//! The memory manager's hints for the Topology Manager.

use std::slice;

use stelia_kubelet::memory::{MemoryBlock, MemoryTable, NumaNodeState};

use super::policy::StaticPolicy;
use super::refusal::MemoryRefusal;
use super::requests::{Requests, of_container, of_pod};
use super::state::{MEMORY, MemoryState};
use crate::merge::{Hint, HintList, NodeMask};
use crate::node::MAX_NODES;
use crate::pod::{Container, Pod};

impl StaticPolicy {
    /// The hints for a container, or for the pod as a whole (Topology Manager's scope pod), by kind of memory: `None`
    /// where it has no preference. If no NUMA nodes have the memory, that is no preference to kubelet. `others`: the NUMA nodes
    /// that can be in a merged hint by the lists of all other resources; `None` where these leave it open. Without these nodes
    /// and without memory a node changes no merged hint ([`Self::node_sets`]).
    ///
    /// # Errors
    /// kubelet crashes.
    pub(crate) fn hints(
        &self,
        state: &MemoryState,
        pod: &Pod,
        container: Option<&Container>,
        others: Option<NodeMask>,
    ) -> Result<Vec<(String, HintList)>, MemoryRefusal> {
        if !pod.is_guaranteed() || self.hidden(pod) {
            return Ok(Vec::new());
        }
        let (requests, containers) = match container {
            Some(container) => (of_container(pod, container, self.pod_level), slice::from_ref(container)),
            None => (of_pod(pod, self.pod_level), pod.containers.as_slice()),
        };
        if container.is_none() && pod.own().is_some() && self.check_pools(pod).is_err() {
            return Ok(requests.into_keys().map(|kind| (kind, Some(Vec::new()))).collect());
        }
        let mut entries = containers.iter();
        if let Some(blocks) = entries.find_map(|container| state.entry(&pod.uid, &container.name)) {
            return Ok(again(blocks, &requests));
        }
        let hints = self.node_sets(
            state,
            &pod.uid,
            &requests,
            (others.unwrap_or_default(), NodeMask::default()),
        )?;
        let kinds = requests.into_keys().filter(|_| !hints.is_empty());
        Ok(kinds.map(|kind| (kind, Some(hints.clone()))).collect())
    }

    /// The sets of NUMA nodes that have all requested memory; they are the same for each kind (`calculateHints`).
    ///
    /// kubelet looks at the sets of all nodes. Here a node that has no memory, as most of an NVIDIA GB200's, is looked at only
    /// if it is one of `also`. Let z be nodes without memory and m be others. If m ∪ z is a hint, so is m: z adds nothing, and a
    /// node in use forbids z beside it. m ∪ z is never preferred, since m has fewer nodes, and for the same reason it is never
    /// the narrowest. So it counts only by its AND with masks of other lists. Where a node of z is missing in all masks of one of
    /// these, the AND has it no more, and is that of m. Where there are no other lists, m itself is better. (Several kinds of
    /// memory are several lists: then no node is without memory, or kubelet crashes: [`check_kinds`].)
    ///
    /// `around`: only sets that include these nodes, of which those without memory need no search.
    pub(super) fn node_sets(
        &self,
        state: &MemoryState,
        pod: &str,
        requests: &Requests,
        (also, around): (NodeMask, NodeMask),
    ) -> Result<Vec<Hint>, MemoryRefusal> {
        check_kinds(state, requests)?;
        if requests.is_empty() || around.nodes().any(|node| !state.nodes.contains_key(&node)) {
            return Ok(Vec::new());
        }
        // What is nothing every node has.
        let any = requests.values().any(|wanted| *wanted == 0);
        let searched = |(id, node): &(u32, &NumaNodeState)| any || has_memory(node) || also.contains(*id);
        let all = state.nodes.iter().map(|(id, node)| (*id, node));
        let (nodes, empty): (Vec<_>, Vec<_>) = all.partition(searched);
        if nodes.len() > MAX_NODES {
            return Err(MemoryRefusal::NotSearched(nodes.len()));
        }
        let wanted: NodeMask = nodes
            .iter()
            .map(|(id, _)| *id)
            .filter(|id| around.contains(*id))
            .collect();
        let beside: Vec<(u32, &NumaNodeState)> = empty.into_iter().filter(|(id, _)| around.contains(*id)).collect();
        let (mut fewest, mut hints) = (state.nodes.len(), Vec::new());
        for chosen in 1u64..1 << nodes.len() {
            let chosen = NodeMask::from_bits(chosen).nodes();
            let mut chosen: Vec<(u32, &NumaNodeState)> = chosen.map(|position| nodes[position as usize]).collect();
            let has = |chosen: &[(u32, &NumaNodeState)], kind: &String, amount: fn(&NumaNodeState, &str) -> u64| {
                let amounts = chosen.iter().map(|(_, node)| amount(node, kind));
                amounts.fold(0, u64::wrapping_add)
            };
            let allocatable = |(kind, wanted): (&String, &u64)| has(&chosen, kind, allocatable) >= *wanted;
            if !requests.iter().all(allocatable) {
                continue;
            }
            fewest = fewest.min(chosen.len());
            chosen.extend(&beside);
            let mask: NodeMask = chosen.iter().map(|(id, _)| *id).collect();
            let free = |(kind, wanted): (&String, &u64)| {
                has(&chosen, kind, free).wrapping_add(self.reusable(pod, mask, kind)) >= *wanted
            };
            if mask & wanted == wanted && may_group(&chosen) && requests.iter().all(free) {
                hints.push((mask, chosen.len()));
            }
        }
        let hints = hints.into_iter();
        Ok(hints.map(|(nodes, count)| Hint::on(nodes, count == fewest)).collect())
    }
}

/// Whether a NUMA node has memory of any kind, or is in use.
pub(crate) fn has_memory(node: &NumaNodeState) -> bool {
    let some = |(kind, table): (&String, &MemoryTable)| kind != MEMORY || table.allocatable != 0 || table.free != 0;
    node.assignments > 0 || node.cells.len() > 1 || node.tables.iter().any(some)
}

/// Whether these NUMA nodes may serve a container together, or a single one by itself.
fn may_group(chosen: &[(u32, &NumaNodeState)]) -> bool {
    match chosen {
        [(_, node)] => node.cells.len() <= 1,
        _ => !in_other_group(chosen),
    }
}

/// Whether one of several NUMA nodes is in use by itself, or in another group (`isAffinityViolatingNUMAAllocations`).
pub(super) fn in_other_group(chosen: &[(u32, &NumaNodeState)]) -> bool {
    let mask: NodeMask = chosen.iter().map(|(id, _)| *id).collect();
    let other = |(_, node): &(u32, &NumaNodeState)| {
        node.assignments > 0 && (node.cells.len() == 1 || node.cells.iter().copied().collect::<NodeMask>() != mask)
    };
    chosen.len() > 1 && chosen.iter().any(other)
}

/// kubelet crashes where a NUMA node does not have a requested kind of memory at all.
pub(super) fn check_kinds(state: &MemoryState, requests: &Requests) -> Result<(), MemoryRefusal> {
    for (node, own) in &state.nodes {
        if let Some(kind) = requests.keys().find(|kind| !own.tables.contains_key(*kind)) {
            let (node, kind) = (*node, kind.clone());
            return Err(MemoryRefusal::WouldCrash { node, kind });
        }
    }
    Ok(())
}

pub(super) fn free(node: &NumaNodeState, kind: &str) -> u64 {
    node.tables.get(kind).map_or(0, |table| table.free)
}

fn allocatable(node: &NumaNodeState, kind: &str) -> u64 {
    node.tables.get(kind).map_or(0, |table| table.allocatable)
}

/// The hints for memory that is already allocated: its nodes. If the request has other amounts there is no preference
/// (`regenerateHints`).
fn again(blocks: &[MemoryBlock], requests: &Requests) -> Vec<(String, HintList)> {
    let known = |block: &MemoryBlock| requests.get(&block.kind) == Some(&block.size);
    if blocks.len() != requests.len() || !blocks.iter().all(known) {
        return Vec::new();
    }
    let of = |kind: &String| {
        let own = blocks.iter().filter(|block| block.kind == *kind);
        Some(
            own.map(|block| Hint::on(block.nodes.iter().copied().collect(), true))
                .collect(),
        )
    };
    requests.keys().map(|kind| (kind.clone(), of(kind))).collect()
}
