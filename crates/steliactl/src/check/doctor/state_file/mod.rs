//! `doctor --kubelet-state`: what steliad reads from a checkpoint file of kubelet's. Which CPUs a pod's containers share is not in the
//! file: it is read from the containers, if they run on this host.

mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::KernelCgroups;
use stelia_kernel::containers::{entry_uses, live_containers};
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, CheckpointError, MAX_BYTES, Schema};
use stelia_kubelet::memory::{MEMORY_MANAGER_STATE, MemoryBlock, MemorySchema, MemoryTable};
use stelia_kubelet::{CpuManagerState, MemoryManagerState, PodUid};

use crate::shared::daemon::{Pod, Pods};
use crate::shared::files;

/// A file of kubelet's CPU manager or memory manager.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateFile {
    CpuManager(Checked<Cpus>),
    MemoryManager(Checked<Memory>),
}

#[derive(Debug, Serialize)]
pub(crate) struct Checked<T> {
    file: String,
    #[serde(flatten)]
    content: Content<T>,
}

/// What a file says, or why it is refused.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content<T> {
    Read(T),
    Refused { error: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct Cpus {
    schema: Schema,
    policy: String,
    default_cpus: CpuSet,
    shared_pool: CpuSet,
    usable: bool,
    /// Why steliad would not act on this file; empty if it would.
    reason: String,
    unknown_keys: Vec<String>,
    entries: Vec<ContainerCpus>,
    pod_entries: Vec<PodCpus>,
}

/// The oldest schemas have the container's id instead of its pod and name.
#[derive(Debug, Serialize)]
struct ContainerCpus {
    #[serde(flatten)]
    pod: Option<Pod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
    cpus: CpuSet,
    /// At admission, where kubelet may resize them in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_cpus: Option<CpuSet>,
}

#[derive(Debug, Serialize)]
struct PodCpus {
    #[serde(flatten)]
    pod: Pod,
    cpus: CpuSet,
    shared_pool: CpuSet,
}

#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    schema: MemorySchema,
    policy: String,
    nodes: Vec<NodeMemory>,
    entries: Vec<Blocks>,
    pod_entries: Vec<Blocks>,
}

#[derive(Debug, Serialize)]
struct NodeMemory {
    node: u32,
    assignments: u64,
    with_nodes: CpuSet,
    /// By kind of memory.
    memory: BTreeMap<String, Bytes>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Bytes {
    total_bytes: u64,
    system_reserved_bytes: u64,
    allocatable_bytes: u64,
    reserved_bytes: u64,
    free_bytes: u64,
}

/// A container's memory, or a whole pod's.
#[derive(Debug, Serialize)]
struct Blocks {
    #[serde(flatten)]
    pod: Pod,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    blocks: Vec<Block>,
}

#[derive(Debug, Clone, Serialize)]
struct Block {
    nodes: CpuSet,
    r#type: String,
    size_bytes: u64,
}

/// Reads a file. Its name says what kind it is, else its content. `pods`: the names of this host's pods.
pub(crate) fn gather(path: &Path, pods: &Pods) -> StateFile {
    // The file need not be kubelet's: the cure of a kubelet that never ran does not apply.
    let bytes = files::bytes(path, MAX_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    });
    let is_memory = match path.file_name().and_then(|name| name.to_str()) {
        Some(MEMORY_MANAGER_STATE) => true,
        Some(CPU_MANAGER_STATE) => false,
        _ => bytes.as_ref().is_ok_and(|bytes| speaks_of_memory(bytes)),
    };
    if is_memory {
        StateFile::MemoryManager(check(path, bytes, MemoryManagerState::parse, |state| {
            memory(state, pods)
        }))
    } else {
        StateFile::CpuManager(check(path, bytes, CpuManagerState::parse, |state| cpus(state, pods)))
    }
}

/// `machineState` is required in each schema of the memory manager's file; the newest has it beside `data`.
fn speaks_of_memory(bytes: &[u8]) -> bool {
    let keys: Option<Value> = serde_json::from_slice(bytes).ok();
    keys.is_some_and(|keys| keys.get("machineState").is_some())
}

fn check<S, T>(
    path: &Path,
    bytes: Result<Vec<u8>, String>,
    parse: fn(&[u8]) -> Result<S, CheckpointError>,
    content: impl FnOnce(S) -> T,
) -> Checked<T> {
    let state = bytes.and_then(|bytes| parse(&bytes).map_err(|error| error.to_string()));
    Checked {
        file: path.display().to_string(),
        content: match state {
            Ok(state) => Content::Read(content(state)),
            Err(error) => Content::Refused { error },
        },
    }
}

/// The entries by their first CPUs; one without CPUs is the last.
fn cpus(state: CpuManagerState, pods: &Pods) -> Cpus {
    let first = |cpus: &CpuSet| cpus.iter().next().unwrap_or(u32::MAX);
    let by_pod = state.entries.iter().flat_map(|(pod, containers)| {
        containers.iter().map(|(name, cpus)| ContainerCpus {
            pod: Some(pods.get(pod.as_str())),
            container: Some(name.clone()),
            container_id: None,
            cpus: cpus.clone(),
            baseline_cpus: state.baselines.get(pod).and_then(|all| all.get(name)).cloned(),
        })
    });
    let by_id = state.container_entries.iter().map(|(id, cpus)| ContainerCpus {
        pod: None,
        container: None,
        container_id: Some(id.clone()),
        cpus: cpus.clone(),
        baseline_cpus: None,
    });
    let mut entries: Vec<ContainerCpus> = by_pod.chain(by_id).collect();
    entries.sort_by_key(|entry| first(&entry.cpus));
    let of_pods = state.pod_entries.iter();
    let mut pod_entries: Vec<PodCpus> = of_pods
        .map(|(pod, cpus)| PodCpus {
            pod: pods.get(pod.as_str()),
            cpus: cpus.clone(),
            shared_pool: shared_in_pod(&state, pod),
        })
        .collect();
    pod_entries.sort_by_key(|entry| first(&entry.cpus));
    let unusable = unusable(&state);
    Cpus {
        shared_pool: state.shared_pool(),
        usable: unusable.is_none(),
        reason: unusable.unwrap_or_default(),
        entries,
        pod_entries,
        schema: state.schema,
        policy: state.policy,
        default_cpus: state.default_cpus,
        unknown_keys: state.unknown_keys,
    }
}

fn memory(state: MemoryManagerState, pods: &Pods) -> Memory {
    let nodes = state.nodes.into_iter().map(|(node, of)| NodeMemory {
        node,
        assignments: of.assignments,
        with_nodes: of.cells.into_iter().collect(),
        memory: of
            .tables
            .into_iter()
            .map(|(kind, table)| (kind, bytes(table)))
            .collect(),
    });
    let blocks = |pod: &PodUid, container: Option<&String>, blocks: &[MemoryBlock]| Blocks {
        pod: pods.get(pod.as_str()),
        container: container.cloned(),
        blocks: blocks.iter().map(block).collect(),
    };
    let entries = state.entries.iter().flat_map(|(pod, containers)| {
        let containers = containers.iter();
        containers.map(move |(name, of)| blocks(pod, Some(name), of))
    });
    let pod_entries = state.pod_entries.iter().map(|(pod, of)| blocks(pod, None, of));
    Memory {
        schema: state.schema,
        policy: state.policy,
        nodes: nodes.collect(),
        entries: entries.collect(),
        pod_entries: pod_entries.collect(),
    }
}

const fn bytes(table: MemoryTable) -> Bytes {
    Bytes {
        total_bytes: table.total,
        system_reserved_bytes: table.system_reserved,
        allocatable_bytes: table.allocatable,
        reserved_bytes: table.reserved,
        free_bytes: table.free,
    }
}

fn block(block: &MemoryBlock) -> Block {
    Block {
        nodes: block.nodes.iter().copied().collect(),
        r#type: block.kind.clone(),
        size_bytes: block.size,
    }
}

/// A pod's shared pool. kubelet's file does not say which containers share it, so their cgroups are read where they run
/// on this host; what cannot be read is left out.
fn shared_in_pod(state: &CpuManagerState, pod: &PodUid) -> CpuSet {
    let cgroups = KernelCgroups::new("/sys/fs/cgroup");
    let running = live_containers(&cgroups, Path::new("/run"), pod, None).unwrap_or_default();
    let uses = entry_uses(state, pod, &running);
    state.pod_shared_pool(pod, &uses).unwrap_or_default()
}

/// Why steliad would not act on this file; `None` if it would.
fn unusable(state: &CpuManagerState) -> Option<String> {
    if state.policy != "static" {
        return Some(format!(
            "the CPU manager policy is {:?}, not \"static\": no container has CPUs of its own",
            state.policy
        ));
    }
    if let Some((pod, container, cpus)) = state.overlap() {
        return Some(format!(
            "the CPUs {cpus} of {pod}/{container} are in the default set too: kubelet does not start with this file"
        ));
    }
    // kubelet writes such a file when it starts.
    let empty = state.shared_pool().is_empty();
    empty.then(|| "the shared pool is empty: there is nowhere to float".to_owned())
}
