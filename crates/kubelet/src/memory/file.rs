//! The file's own shapes. A list that is `null` and one that is empty are told apart: they are hashed differently.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{MemoryBlock, MemoryManagerState, MemorySchema, MemoryTable, NumaNodeState};
use crate::checkpoint::{CheckpointError, json, pod_uid};
use crate::checksum;

type Blocks = Option<Vec<Block>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct V1 {
    policy_name: String,
    machine_state: BTreeMap<u32, Option<Node>>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Blocks>>,
    checksum: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct V2 {
    policy_name: String,
    machine_state: BTreeMap<u32, Option<Node>>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Blocks>>,
    #[serde(default)]
    pod_entries: BTreeMap<String, PodBlocks>,
    checksum: u32,
}

/// As in the CPUs' V4, the keys beside `data` are known and not looked at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct V3 {
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

/// What every schema holds in the end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Data {
    policy_name: String,
    machine_state: BTreeMap<u32, Option<Node>>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Blocks>>,
    #[serde(default)]
    pod_entries: BTreeMap<String, PodBlocks>,
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

pub(super) fn read_v1(bytes: &[u8]) -> Result<MemoryManagerState, CheckpointError> {
    let file: V1 = json(bytes)?;
    let data = Data {
        policy_name: file.policy_name,
        machine_state: file.machine_state,
        entries: file.entries,
        pod_entries: BTreeMap::new(),
    };
    checksum::verify(file.checksum, checksum::fnv1a(&(hashed(&data) + HASHED_END)))?;
    data.state(MemorySchema::V1)
}

pub(super) fn read_v2(bytes: &[u8]) -> Result<MemoryManagerState, CheckpointError> {
    let file: V2 = json(bytes)?;
    let data = Data {
        policy_name: file.policy_name,
        machine_state: file.machine_state,
        entries: file.entries,
        pod_entries: file.pod_entries,
    };
    let pods = data.pod_entries.iter();
    let pods = checksum::map(pods.map(|(pod, entry)| {
        let blocks = blocks_text(&entry.memory_blocks);
        (pod, format!("{{MemoryBlocks:([]state.Block){blocks}}}"))
    }));
    let text = hashed(&data) + " PodEntries:(state.PodMemoryAssignments)" + &pods + HASHED_END;
    checksum::verify(file.checksum, checksum::fnv1a(&text))?;
    data.state(MemorySchema::V2)
}

pub(super) fn read_v3(bytes: &[u8]) -> Result<MemoryManagerState, CheckpointError> {
    let file: V3 = json(bytes)?;
    checksum::verify(file.data_checksum, checksum::of_data(&file.data))?;
    json::<Data>(file.data.as_bytes())?.state(MemorySchema::V3)
}

impl Data {
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
        Ok(MemoryManagerState {
            schema,
            policy: self.policy_name,
            nodes: nodes
                .map(|(id, node)| (id, node.map(Node::plain).unwrap_or_default()))
                .collect(),
            entries,
            pod_entries,
        })
    }
}

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

const HASHED_END: &str = " Checksum:(checksum.Checksum)0}";

/// The beginning of the text that V1's and V2's checksums are of.
fn hashed(data: &Data) -> String {
    let nodes = data.machine_state.iter();
    let nodes = nodes.map(|(id, node)| (id, nil_or(node.as_ref(), node_text)));
    let entries = data.entries.iter().map(|(pod, containers)| {
        let containers = containers.iter().map(|(name, blocks)| (name, blocks_text(blocks)));
        (pod, checksum::map(containers))
    });
    format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} \
         Entries:(state.ContainerMemoryAssignments){}",
        data.policy_name,
        checksum::map(nodes),
        checksum::map(entries)
    )
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

/// `null` in the file is a nil in kubelet.
fn nil_or<T>(value: Option<&T>, text: impl Fn(&T) -> String) -> String {
    value.map_or_else(|| "<nil>".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashed_text_is_the_one_kubelet_hashes() {
        let folder = "../../tests/data/kubelet-checkpoints/hash-strings";
        let file: V1 = json(&std::fs::read(format!("{folder}/mem-v1.json")).unwrap()).unwrap();
        let data = Data {
            policy_name: file.policy_name,
            machine_state: file.machine_state,
            entries: file.entries,
            pod_entries: BTreeMap::new(),
        };
        let printed = std::fs::read_to_string(format!("{folder}/mem-v1.txt")).unwrap();
        // kubelet 1.36 calls the structure V1 and hashes it under its old name, so that older kubelets understand it.
        let genuine = printed.replacen("MemoryManagerCheckpointV1", "MemoryManagerCheckpoint", 1);
        assert_ne!(printed, genuine);
        assert_eq!(hashed(&data) + HASHED_END, genuine);
        assert_eq!(checksum::fnv1a(&genuine), 1_438_584_419);
    }
}
