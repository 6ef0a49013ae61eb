//! `memory_manager_state`: kubelet's record of the memory that it assigned on NUMA nodes.
//!
//! Every schema is read into the same [`MemoryManagerState`]; a file with a key that its schema does not have is refused.
//! Source: `pkg/kubelet/cm/memorymanager/state/checkpoint.go`.

mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stelia_cpus::NodeSet;

use super::PodUid;
use super::cpu_manager_state::{CheckpointError, content, json};

/// File name below kubelet's root directory.
pub const MEMORY_MANAGER_STATE: &str = "memory_manager_state";

/// The shape a checkpoint was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum MemorySchema {
    /// kubelet 1.21 – 1.35, and 1.36 without the PodLevelResourceManagers gate.
    V1,
    /// kubelet 1.36 with the PodLevelResourceManagers gate: with memory of whole pods.
    V2,
    /// kubelet 1.37 on: the content in a string with a checksum of its own.
    V3,
}

/// The parsed content of a `memory_manager_state`, its checksum verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryManagerState {
    /// The shape it was read from.
    pub schema: MemorySchema,
    /// `Static` or `None`.
    pub policy: String,
    /// NUMA nodes by id; empty with policy `None`, so this does not list the machine's.
    pub nodes: BTreeMap<u32, NumaNodeState>,
    /// Memory by pod and container name. A removed pod's stays until the next admission, so an entry does not mean that
    /// the pod exists.
    pub entries: BTreeMap<PodUid, BTreeMap<String, Vec<MemoryBlock>>>,
    /// Memory of whole pods (V2 and V3).
    pub pod_entries: BTreeMap<PodUid, Vec<MemoryBlock>>,
}

/// A NUMA node as the memory manager accounts for it (kubelet's `NUMANodeState`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNodeState {
    /// How many blocks of memory are on it: a container counts once for each kind of memory.
    pub assignments: u64,
    /// The nodes that containers with memory here use, this one included.
    pub cells: Vec<u32>,
    /// By kind of memory: `memory`, `hugepages-2Mi`, `hugepages-1Gi`.
    pub tables: BTreeMap<String, MemoryTable>,
}

/// How much memory of one kind a node has. All in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub struct MemoryTable {
    /// All that the node has.
    pub total: u64,
    /// `reservedMemory`: never given to containers.
    pub system_reserved: u64,
    /// What containers can be given in all.
    pub allocatable: u64,
    /// What containers have been given.
    pub reserved: u64,
    /// What containers can still be given.
    pub free: u64,
}

/// Memory of one kind on certain nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryBlock {
    /// On which NUMA nodes together.
    #[serde(serialize_with = "as_text")]
    pub nodes: Vec<u32>,
    /// The kind, as in [`NumaNodeState::tables`].
    pub kind: String,
    /// Bytes.
    #[serde(rename = "size_bytes")]
    pub size: u64,
}

fn as_text<S: serde::Serializer>(nodes: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&nodes.iter().copied().collect::<NodeSet>())
}

impl MemoryManagerState {
    /// Parse and check the bytes of a `memory_manager_state`.
    ///
    /// # Errors
    /// Every [`CheckpointError`] except the one about CPUs; nothing of an invalid file is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let bytes = content(bytes)?;
        let keys: Value = json(bytes)?;
        let has = |key: &str| keys.get(key).is_some();
        if has("data") || has("dataChecksum") {
            return file::read_v3(bytes);
        }
        file::read(bytes, has("podEntries"))
    }
}

#[cfg(test)]
mod tests;
