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
        match same(&self.nodes, &expected) {
            true => Ok(()),
            false => Err(MemoryStartError::Differs(difference(&self.nodes, &expected))),
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

/// The first difference that kubelet finds, in words.
fn difference(stored: &BTreeMap<u32, NumaNodeState>, expected: &BTreeMap<u32, NumaNodeState>) -> String {
    let ids = |nodes: &BTreeMap<u32, NumaNodeState>| nodes.keys().copied().collect::<CpuSet>();
    if !stored.keys().eq(expected.keys()) {
        return format!("NUMA nodes {} in the file, {} now", ids(stored), ids(expected));
    }
    for ((id, one), other) in stored.iter().zip(expected.values()) {
        let kinds = |node: &NumaNodeState| node.tables.keys().cloned().collect::<Vec<_>>().join(", ");
        if !one.tables.keys().eq(other.tables.keys()) {
            return format!("NUMA node {id}: {} in the file, {} now", kinds(one), kinds(other));
        }
        for ((kind, table), now) in one.tables.iter().zip(other.tables.values()) {
            let amounts = [
                ("", table.total, now.total),
                (" reserved for the system", table.system_reserved, now.system_reserved),
                (" allocatable", table.allocatable, now.allocatable),
            ];
            if let Some((what, stored, now)) = amounts.into_iter().find(|(_, stored, now)| stored != now) {
                return format!("NUMA node {id}: {stored} bytes of {kind}{what} in the file, {now} now");
            }
        }
    }
    "what is assigned is not what the entries say".to_owned()
}

/// Whether kubelet takes two states of the NUMA nodes as equal: amounts may be on other nodes of the same group
/// (`areMachineStatesEqual`).
fn same(some: &BTreeMap<u32, NumaNodeState>, others: &BTreeMap<u32, NumaNodeState>) -> bool {
    let sums = |nodes: &BTreeMap<u32, NumaNodeState>, cells: &[u32], kind: &str| {
        let tables = cells.iter().filter_map(|cell| nodes.get(cell)?.tables.get(kind));
        tables.fold((0u64, 0u64), |(free, reserved), table| {
            (free.wrapping_add(table.free), reserved.wrapping_add(table.reserved))
        })
    };
    let sorted = |node: &NumaNodeState| {
        let mut cells = node.cells.clone();
        cells.sort_unstable();
        cells
    };
    let fixed = |table: &MemoryTable| (table.total, table.system_reserved, table.allocatable);
    let alike = |(node, other): (&NumaNodeState, &NumaNodeState)| {
        let tables = || node.tables.iter().zip(&other.tables);
        node.assignments == other.assignments
            && sorted(node) == sorted(other)
            && node.tables.keys().eq(other.tables.keys())
            && tables().all(|((_, table), (_, other))| fixed(table) == fixed(other))
            && node
                .tables
                .keys()
                .all(|kind| sums(some, &node.cells, kind) == sums(others, &node.cells, kind))
    };
    some.keys().eq(others.keys()) && some.values().zip(others.values()).all(alike)
}
