//! kubelet's start on a state (`validateState` of `policy_static.go`).

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::memory::{MemoryBlock, MemoryTable, NumaNodeState};

use super::refusal::MemoryStartError;
use super::state::{MEMORY, MemoryState, kind};
use crate::node;

/// Bytes by NUMA node and kind.
type Reserved = BTreeMap<u32, BTreeMap<String, u64>>;

impl MemoryState {
    /// Starts on this state: fills an empty one, checks another. `pod_level`: the feature gate
    /// `PodLevelResourceManagers` is on.
    ///
    /// # Errors
    /// kubelet does not start: nothing is reserved, or the state contradicts the machine.
    pub fn start(
        &mut self,
        machine: &BTreeMap<u32, node::NumaNode>,
        reserved: &Reserved,
        pod_level: bool,
    ) -> Result<(), MemoryStartError> {
        let some = |own: &BTreeMap<String, u64>| own.get(MEMORY).is_some_and(|bytes| *bytes > 0);
        if !reserved.values().any(some) {
            return Err(MemoryStartError::NothingReserved);
        }
        let mut expected = fresh(machine, reserved);
        if self.nodes.is_empty() {
            if !self.entries.is_empty() {
                return Err(MemoryStartError::NoNodes);
            }
            self.nodes = expected;
            return Ok(());
        }
        for (pod, containers) in &self.entries {
            match self.pods.get(pod).filter(|blocks| pod_level && !blocks.is_empty()) {
                Some(blocks) => expect(&mut expected, blocks, pod, "")?,
                None => {
                    for (container, blocks) in containers {
                        expect(&mut expected, blocks, pod, container)?;
                    }
                }
            }
        }
        match difference(&self.nodes, &expected) {
            None => Ok(()),
            Some(what) => Err(MemoryStartError::Differs { what }),
        }
    }
}

/// The NUMA nodes with nothing allocated (`getDefaultMachineState`).
fn fresh(machine: &BTreeMap<u32, node::NumaNode>, reserved: &Reserved) -> BTreeMap<u32, NumaNodeState> {
    let nodes = machine.iter().map(|(id, own)| {
        let reserved = |kind: &str| reserved.get(id).and_then(|own| own.get(kind)).copied().unwrap_or(0);
        let table = |kind: &str, total: u64, pages: u64| {
            let system_reserved = reserved(kind);
            let allocatable = total.wrapping_sub(system_reserved).wrapping_sub(pages);
            MemoryTable {
                total,
                system_reserved,
                allocatable,
                reserved: 0,
                free: allocatable,
            }
        };
        let mut tables = BTreeMap::new();
        let mut pages = 0u64;
        for (size, count) in &own.huge_pages {
            let (kind, total) = (kind(Some(*size)), size.wrapping_mul(*count));
            pages = pages.wrapping_add(total);
            tables.insert(kind.clone(), table(&kind, total, 0));
        }
        tables.insert(MEMORY.to_owned(), table(MEMORY, own.memory, pages));
        let node = NumaNodeState {
            assignments: 0,
            cells: vec![*id],
            tables,
        };
        (*id, node)
    });
    nodes.collect()
}

/// Puts an entry's blocks on the NUMA nodes that they name.
fn expect(
    nodes: &mut BTreeMap<u32, NumaNodeState>,
    blocks: &[MemoryBlock],
    pod: &str,
    container: &str,
) -> Result<(), MemoryStartError> {
    let (pod, container) = (pod.to_owned(), container.to_owned());
    for block in blocks {
        let table = |node| {
            nodes
                .get(node)
                .map(|node: &NumaNodeState| node.tables.contains_key(&block.kind))
        };
        match block.nodes.iter().map(table).find(|found| *found != Some(true)) {
            Some(None) => return Err(MemoryStartError::OtherNode { pod, container }),
            Some(_) => return Err(MemoryStartError::OtherKind { pod, container }),
            None => super::state::take(nodes, block, block.size),
        }
    }
    Ok(())
}

/// How the state of the NUMA nodes in kubelet's file differs from the one that it expects; `None`: it takes the two as equal. Amounts may be on
/// other nodes of the same group (`areMachineStatesEqual`).
fn difference(stored: &BTreeMap<u32, NumaNodeState>, expected: &BTreeMap<u32, NumaNodeState>) -> Option<String> {
    let list = |nodes: &BTreeMap<u32, NumaNodeState>| nodes.keys().copied().collect::<CpuSet>();
    if !stored.keys().eq(expected.keys()) {
        return Some(format!(
            "this machine has NUMA nodes {}, the file {}",
            list(expected),
            list(stored)
        ));
    }
    let sums = |nodes: &BTreeMap<u32, NumaNodeState>, cells: &[u32], kind: &str| {
        let tables = cells.iter().filter_map(|cell| nodes.get(cell)?.tables.get(kind));
        tables.fold((0u64, 0u64), |(free, reserved), table| {
            (free.wrapping_add(table.free), reserved.wrapping_add(table.reserved))
        })
    };
    let sorted = |node: &NumaNodeState| node.cells.iter().copied().collect::<CpuSet>();
    let kinds = |node: &NumaNodeState| node.tables.keys().cloned().collect::<Vec<_>>().join(", ");
    for ((id, own), other) in stored.iter().zip(expected.values()) {
        if !own.tables.keys().eq(other.tables.keys()) {
            return Some(format!("NUMA node {id} has {}, the file {}", kinds(other), kinds(own)));
        }
        for ((kind, was), is) in own.tables.iter().zip(other.tables.values()) {
            let amounts = [
                ("is", was.total, is.total),
                ("reserved by reservedMemory is", was.system_reserved, is.system_reserved),
                ("for pods is", was.allocatable, is.allocatable),
            ];
            if let Some((what, was, is)) = amounts.into_iter().find(|(_, was, is)| was != is) {
                return Some(format!("{kind} of NUMA node {id} {what} {is} bytes, in the file {was}"));
            }
        }
        if own.assignments != other.assignments {
            let (was, is) = (own.assignments, other.assignments);
            return Some(format!(
                "NUMA node {id} is in {is} of the file's entries, by its own count in {was}"
            ));
        }
        if sorted(own) != sorted(other) {
            let (was, is) = (sorted(own), sorted(other));
            return Some(format!(
                "by the file's entries NUMA node {id} is used together with {is}, by its own list with {was}"
            ));
        }
        for kind in own.tables.keys() {
            let (was, is) = (sums(stored, &own.cells, kind), sums(expected, &own.cells, kind));
            if was != is {
                let group = sorted(own);
                return Some(format!(
                    "{kind} of NUMA nodes {group}: by the file's entries {} bytes are free and {} taken, by its own count {} and {}",
                    is.0, is.1, was.0, was.1
                ));
            }
        }
    }
    None
}
