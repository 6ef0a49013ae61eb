//! The files as JSON. Sizes are in bytes.

use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_kubelet::memory::{MemoryBlock, MemoryTable};
use stelia_kubelet::{CpuManagerState, MemoryManagerState, PodUid};

use super::{Checked, Files, shared_in_pod, unusable};
use crate::shared::daemon::Pods;

/// `cpu_manager` and `memory_manager`; null for a file that does not exist or was not asked for.
pub(super) fn files(files: &Files) -> Value {
    json!({
        "cpu_manager": files.cpu.as_ref().map(|file| one(file, |state| cpu(state, &files.pods))),
        "memory_manager": files.memory.as_ref().map(|file| one(file, |state| memory(state, &files.pods))),
    })
}

/// The file's path, and its content or the `error`.
fn one<T>(file: &Checked<T>, content: impl Fn(&T) -> Value) -> Value {
    let mut value = match &file.state {
        Ok(state) => content(state),
        Err(reason) => json!({ "error": reason }),
    };
    value["file"] = file.path.display().to_string().into();
    value
}

fn cpu(state: &CpuManagerState, named: &Pods) -> Value {
    let by_pod = state.entries.iter().flat_map(|(pod, containers)| {
        let entry = move |(name, cpus): (&String, &CpuSet)| {
            let mut entry = json!({ "container": name, "cpus": cpus });
            if let Some(baseline) = state.baselines.get(pod).and_then(|containers| containers.get(name)) {
                entry["baseline_cpus"] = json!(baseline);
            }
            of(named, pod, entry)
        };
        containers.iter().map(entry)
    });
    let by_id = state
        .container_entries
        .iter()
        .map(|(id, cpus)| json!({ "container_id": id, "cpus": cpus }));
    let pods = state.pod_entries.iter().map(|(pod, cpus)| {
        let shared = shared_in_pod(state, pod);
        of(named, pod, json!({ "cpus": cpus, "shared_pool": shared }))
    });
    let reason = unusable(state);
    json!({
        "schema": state.schema,
        "policy": state.policy,
        "default_cpus": state.default_cpus,
        "shared_pool": state.shared_pool(),
        "usable": reason.is_none(),
        "reason": reason.unwrap_or_default(),
        "unknown_keys": state.unknown_keys,
        "entries": by_pod.chain(by_id).collect::<Vec<_>>(),
        "pod_entries": pods.collect::<Vec<_>>(),
    })
}

fn memory(state: &MemoryManagerState, named: &Pods) -> Value {
    let nodes = state.nodes.iter().map(|(id, node)| {
        let tables = node.tables.iter().map(|(kind, table)| (kind.clone(), bytes(table)));
        json!({ "node": id, "assignments": node.assignments, "with_nodes": numa(&node.cells), "memory": tables.collect::<Value>() })
    });
    let containers = state.entries.iter().flat_map(|(pod, containers)| {
        let entry = move |(name, blocks): (&String, &Vec<MemoryBlock>)| {
            of(named, pod, json!({ "container": name, "blocks": list(blocks) }))
        };
        containers.iter().map(entry)
    });
    let pods = state
        .pod_entries
        .iter()
        .map(|(pod, blocks)| of(named, pod, json!({ "blocks": list(blocks) })));
    json!({
        "schema": state.schema,
        "policy": state.policy,
        "nodes": nodes.collect::<Vec<_>>(),
        "entries": containers.collect::<Vec<_>>(),
        "pod_entries": pods.collect::<Vec<_>>(),
    })
}

/// With the members that identify the pod.
fn of(named: &Pods, pod: &PodUid, mut object: Value) -> Value {
    for (name, value) in named.get(pod.as_str()).members() {
        object[name] = value;
    }
    object
}

fn bytes(table: &MemoryTable) -> Value {
    json!({
        "total_bytes": table.total,
        "system_reserved_bytes": table.system_reserved,
        "allocatable_bytes": table.allocatable,
        "reserved_bytes": table.reserved,
        "free_bytes": table.free,
    })
}

fn numa(nodes: &[u32]) -> CpuSet {
    nodes.iter().copied().collect()
}

fn list(blocks: &[MemoryBlock]) -> Value {
    let block =
        |block: &MemoryBlock| json!({ "nodes": numa(&block.nodes), "type": block.kind, "size_bytes": block.size });
    blocks.iter().map(block).collect()
}
