//! What kubelet writes into its `memory_manager_state`.

use std::collections::BTreeMap;

use stelia_cpus::quantity::bytes::of_bytes;
use stelia_kubelet::MemoryManagerState;
use stelia_kubelet::memory::{MemoryBlock, NumaNodeState};

use crate::pod::by_uid;

/// kubelet's name for memory other than huge pages.
pub(super) const MEMORY: &str = "memory";

/// A kind of memory, as kubelet names it: `memory`, or huge pages of one size in bytes.
///
/// ```
/// use kubelet_planner::memory::kind;
///
/// assert_eq!(kind(None), "memory");
/// assert_eq!(kind(Some(2 << 20)), "hugepages-2Mi");
/// ```
pub fn kind(page: Option<u64>) -> String {
    match page {
        None => MEMORY.to_owned(),
        Some(page) => format!("hugepages-{}", of_bytes(page)),
    }
}

/// The state of kubelet's static policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// NUMA nodes by id.
    pub nodes: BTreeMap<u32, NumaNodeState>,
    /// Memory by pod and container. What a later container reuses of an init container's memory is subtracted from the
    /// latter's blocks.
    pub entries: BTreeMap<String, BTreeMap<String, Vec<MemoryBlock>>>,
    /// Memory of whole pods.
    pub pods: BTreeMap<String, Vec<MemoryBlock>>,
}

impl From<&MemoryManagerState> for MemoryState {
    /// As kubelet restores it.
    fn from(checkpoint: &MemoryManagerState) -> Self {
        Self {
            nodes: checkpoint.nodes.clone(),
            entries: by_uid(&checkpoint.entries),
            pods: by_uid(&checkpoint.pod_entries),
        }
    }
}

impl MemoryState {
    /// The memory of a container.
    pub fn entry(&self, pod: &str, container: &str) -> Option<&[MemoryBlock]> {
        let blocks = self.entries.get(pod)?.get(container)?;
        (!blocks.is_empty()).then_some(blocks)
    }

    /// This state as if each NUMA node were in a group of its own.
    pub(crate) fn without_groups(&self) -> Self {
        let mut state = self.clone();
        for (id, node) in &mut state.nodes {
            node.assignments = 0;
            node.cells = vec![*id];
        }
        state
    }

    pub(super) fn set(&mut self, pod: &str, container: &str, blocks: Vec<MemoryBlock>) {
        let entries = self.entries.entry(pod.to_owned()).or_default();
        entries.insert(container.to_owned(), blocks);
    }
}

/// Puts a block on its NUMA nodes. `size` of it is taken from the free memory, beginning with the first node; the rest
/// is there already.
pub(super) fn take(nodes: &mut BTreeMap<u32, NumaNodeState>, block: &MemoryBlock, size: u64) {
    let mut size = size;
    for id in &block.nodes {
        let Some(node) = nodes.get_mut(id) else {
            continue;
        };
        node.assignments += 1;
        node.cells.clone_from(&block.nodes);
        if let Some(table) = node.tables.get_mut(&block.kind) {
            let taken = size.min(table.free);
            table.free -= taken;
            table.reserved = table.reserved.wrapping_add(taken);
            size -= taken;
        }
    }
}

/// Removes a block from its NUMA nodes.
pub(super) fn give_back(nodes: &mut BTreeMap<u32, NumaNodeState>, block: &MemoryBlock) {
    let mut size = block.size;
    for id in &block.nodes {
        let Some(node) = nodes.get_mut(id) else {
            continue;
        };
        node.assignments = node.assignments.saturating_sub(1);
        if node.assignments == 0 {
            node.cells = vec![*id];
        }
        if let Some(table) = node.tables.get_mut(&block.kind) {
            let released = size.min(table.reserved);
            table.reserved -= released;
            table.free = table.free.wrapping_add(released);
            size -= released;
        }
    }
}
