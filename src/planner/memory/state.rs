//! What kubelet writes into its `memory_manager_state`.

use std::collections::BTreeMap;

use crate::kubelet::MemoryManagerState;
use crate::kubelet::memory::{MemoryBlock, NumaNode};
use crate::node_topology::quantity;

/// Memory that is no huge pages, as kubelet names it.
pub(super) const MEMORY: &str = "memory";

/// A kind of memory, as kubelet names it: `memory`, or huge pages of so many bytes each.
///
/// ```
/// use steliad::planner::memory::kind;
///
/// assert_eq!(kind(None), "memory");
/// assert_eq!(kind(Some(2 << 20)), "hugepages-2Mi");
/// ```
pub fn kind(page: Option<u64>) -> String {
    match page {
        None => MEMORY.to_owned(),
        Some(page) => format!("hugepages-{}", quantity::of_bytes(page)),
    }
}

/// The state of kubelet's static policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// NUMA nodes by id.
    pub nodes: BTreeMap<u32, NumaNode>,
    /// Memory by pod and container. What an init container had and a later one uses again is taken off its blocks.
    pub entries: BTreeMap<String, BTreeMap<String, Vec<MemoryBlock>>>,
    /// Memory of whole pods.
    pub pods: BTreeMap<String, Vec<MemoryBlock>>,
}

impl From<&MemoryManagerState> for State {
    /// As kubelet restores it.
    fn from(checkpoint: &MemoryManagerState) -> Self {
        let entries = checkpoint.entries.iter();
        let pods = checkpoint.pod_entries.iter();
        Self {
            nodes: checkpoint.nodes.clone(),
            entries: entries
                .map(|(pod, own)| (pod.as_str().to_owned(), own.clone()))
                .collect(),
            pods: pods
                .map(|(pod, blocks)| (pod.as_str().to_owned(), blocks.clone()))
                .collect(),
        }
    }
}
