//! The shapes of the file. A list that is `null` and an empty one are different, because they are hashed differently.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{MemoryBlock, MemoryManagerState, MemorySchema, MemoryTable, NumaNodeState};
use crate::checksum::{self, nil_or};
use crate::cpu_manager_state::{CheckpointError, json, needed, pod_uid, sealed};

type Blocks = Option<Vec<Block>>;

/// The keys of V1 and V2, and of the string in V3.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    policy_name: String,
    machine_state: BTreeMap<u32, Option<Node>>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Blocks>>,
    #[serde(default)]
    pod_entries: BTreeMap<String, PodBlocks>,
    checksum: Option<u32>,
}

/// As in `cpu_manager_state`, the keys beside `data` are declared and not read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Envelope {
    #[serde(rename = "policyName")]
    _policy_name: Option<IgnoredAny>,
    #[serde(rename = "machineState")]
    _machine_state: Option<IgnoredAny>,
    #[serde(rename = "entries")]
    _entries: Option<IgnoredAny>,
    #[serde(rename = "checksum")]
    _checksum: Option<IgnoredAny>,
    data: String,
    data_checksum: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Node {
    number_of_assignments: u64,
    memory_map: Option<BTreeMap<String, Option<MemoryTable>>>,
    cells: Option<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodBlocks {
    memory_blocks: Blocks,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Block {
    numa_affinity: Option<Vec<u32>>,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
}

/// V1 or V2, told apart by the checksum; with `podEntries` it must be V2.
pub(super) fn read(bytes: &[u8], has_pod_entries: bool) -> Result<MemoryManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    let found = needed(file.checksum)?;
    let [v1, v2] = [file.hashed_as_v1(), file.hashed_as_v2()].map(|text| checksum::fnv1a(&text));
    if found == v1 && !has_pod_entries {
        file.state(MemorySchema::V1)
    } else if found == v2 {
        file.state(MemorySchema::V2)
    } else {
        let computed = if has_pod_entries { v2 } else { v1 };
        Err(CheckpointError::Checksum { found, computed })
    }
}

pub(super) fn read_v3(bytes: &[u8]) -> Result<MemoryManagerState, CheckpointError> {
    let envelope: Envelope = json(bytes)?;
    let file = sealed(&envelope.data, envelope.data_checksum, |file: &File| file.checksum)?;
    file.state(MemorySchema::V3)
}

impl File {
    fn state(self, schema: MemorySchema) -> Result<MemoryManagerState, CheckpointError> {
        let mut entries = BTreeMap::new();
        for (pod, containers) in self.entries {
            let containers = containers.into_iter().map(|(name, blocks)| (name, plain(blocks)));
            entries.insert(pod_uid(&pod)?, containers.collect());
        }
        let mut pod_entries = BTreeMap::new();
        for (pod, entry) in self.pod_entries {
            pod_entries.insert(pod_uid(&pod)?, plain(entry.memory_blocks));
        }
        let nodes = self.machine_state.into_iter();
        let nodes = nodes.map(|(id, node)| (id, node.map(Node::plain).unwrap_or_default()));
        Ok(MemoryManagerState {
            schema,
            policy: self.policy_name,
            nodes: nodes.collect(),
            entries,
            pod_entries,
        })
    }

    fn hashed_as_v1(&self) -> String {
        self.beginning() + END
    }

    fn hashed_as_v2(&self) -> String {
        let pods = self.pod_entries.iter().map(|(pod, entry)| {
            let blocks = blocks_text(&entry.memory_blocks);
            (pod, format!("{{MemoryBlocks:([]state.Block){blocks}}}"))
        });
        self.beginning() + " PodEntries:(state.PodMemoryAssignments)" + &checksum::map(pods) + END
    }

    fn beginning(&self) -> String {
        let nodes = self.machine_state.iter();
        let nodes = nodes.map(|(id, node)| (id, nil_or(node.as_ref(), node_text)));
        let entries = self.entries.iter().map(|(pod, containers)| {
            let containers = containers.iter().map(|(name, blocks)| (name, blocks_text(blocks)));
            (pod, checksum::map(containers))
        });
        format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} \
             Entries:(state.ContainerMemoryAssignments){}",
            self.policy_name,
            checksum::map(nodes),
            checksum::map(entries)
        )
    }
}

const END: &str = " Checksum:(checksum.Checksum)0}";

impl Node {
    fn plain(self) -> NumaNodeState {
        let tables = self.memory_map.unwrap_or_default().into_iter();
        NumaNodeState {
            assignments: self.number_of_assignments,
            cells: self.cells.unwrap_or_default(),
            tables: tables.map(|(kind, table)| (kind, table.unwrap_or_default())).collect(),
        }
    }
}

fn plain(blocks: Blocks) -> Vec<MemoryBlock> {
    let block = |block: Block| MemoryBlock {
        nodes: block.numa_affinity.unwrap_or_default(),
        kind: block.kind,
        size: block.size,
    };
    blocks.unwrap_or_default().into_iter().map(block).collect()
}

fn node_text(node: &Node) -> String {
    let tables = nil_or(node.memory_map.as_ref(), |tables| {
        let tables = tables.iter();
        checksum::map(tables.map(|(kind, table)| (kind, nil_or(table.as_ref(), table_text))))
    });
    format!(
        "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){}}}",
        node.number_of_assignments,
        nil_or(node.cells.as_ref(), |cells| checksum::list(cells.iter()))
    )
}

fn table_text(table: &MemoryTable) -> String {
    format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} \
         Free:(uint64){}}}",
        table.total, table.system_reserved, table.allocatable, table.reserved, table.free
    )
}

fn blocks_text(blocks: &Blocks) -> String {
    nil_or(blocks.as_ref(), |blocks| {
        checksum::list(blocks.iter().map(|block| {
            format!(
                "{{NUMAAffinity:([]int){} Type:(v1.ResourceName){} Size:(uint64){}}}",
                nil_or(block.numa_affinity.as_ref(), |nodes| checksum::list(nodes.iter())),
                block.kind,
                block.size
            )
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashed_text_is_the_one_kubelet_hashes() {
        let folder = "../../tests/data/kubelet-checkpoints/hash-strings";
        let file: File = json(&std::fs::read(format!("{folder}/mem-v1.json")).unwrap()).unwrap();
        let printed = std::fs::read_to_string(format!("{folder}/mem-v1.txt")).unwrap();
        // kubelet 1.36 calls the structure V1 and hashes it under its old name, for older kubelets.
        let genuine = printed.replacen("MemoryManagerCheckpointV1", "MemoryManagerCheckpoint", 1);
        assert_ne!(printed, genuine);
        assert_eq!(file.hashed_as_v1(), genuine);
        assert_eq!(checksum::fnv1a(&genuine), 1_438_584_419);
    }
}
