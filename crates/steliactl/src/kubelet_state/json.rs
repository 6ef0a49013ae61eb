//! The files as JSON. Sizes are in bytes.

use serde_json::{Value, json};
use stelia_kubelet::memory::MemoryBlock;
use stelia_kubelet::{CpuManagerState, MemoryManagerState};

use super::{Checked, Files, shared_in_pod, unusable};

/// `CPUManager` and `MemoryManager`; null for a file that does not exist or was not asked for.
pub(super) fn files(files: &Files) -> Value {
    json!({
        "CPUManager": files.cpu.as_ref().map(|file| one(file, cpu)),
        "MemoryManager": files.memory.as_ref().map(|file| one(file, memory)),
    })
}

/// The file's path, and its content or the `Error`.
fn one<T>(file: &Checked<T>, content: fn(&T) -> Value) -> Value {
    let mut value = match &file.state {
        Ok(state) => content(state),
        Err(reason) => json!({ "Error": reason }),
    };
    value["File"] = file.path.display().to_string().into();
    value
}

fn cpu(state: &CpuManagerState) -> Value {
    let by_pod = state.entries.iter().flat_map(|(pod, containers)| {
        let entry = move |(name, cpus)| json!({ "PodUID": pod, "Container": name, "CPUs": cpus });
        containers.iter().map(entry)
    });
    let by_id = state
        .container_entries
        .iter()
        .map(|(id, cpus)| json!({ "ContainerID": id, "CPUs": cpus }));
    let pods = state.pod_entries.iter().map(|(pod, cpus)| {
        let shared = shared_in_pod(state, pod);
        json!({ "PodUID": pod, "CPUs": cpus, "SharedPool": shared })
    });
    let reason = unusable(state);
    json!({
        "Schema": state.schema,
        "Policy": state.policy,
        "DefaultCPUs": state.default_cpus,
        "SharedPool": state.shared_pool(),
        "Usable": reason.is_none(),
        "Reason": reason.unwrap_or_default(),
        "Entries": by_pod.chain(by_id).collect::<Vec<_>>(),
        "PodEntries": pods.collect::<Vec<_>>(),
    })
}

fn memory(state: &MemoryManagerState) -> Value {
    let nodes = state.nodes.iter().map(|(id, node)| {
        json!({ "Node": id, "Assignments": node.assignments, "WithNodes": node.cells, "Memory": node.tables })
    });
    let containers = state.entries.iter().flat_map(|(pod, containers)| {
        let entry = move |(name, blocks): (&String, &Vec<MemoryBlock>)| {
            json!({ "PodUID": pod, "Container": name, "Blocks": list(blocks) })
        };
        containers.iter().map(entry)
    });
    let pods = state
        .pod_entries
        .iter()
        .map(|(pod, blocks)| json!({ "PodUID": pod, "Blocks": list(blocks) }));
    json!({
        "Schema": state.schema,
        "Policy": state.policy,
        "Nodes": nodes.collect::<Vec<_>>(),
        "Entries": containers.collect::<Vec<_>>(),
        "PodEntries": pods.collect::<Vec<_>>(),
    })
}

fn list(blocks: &[MemoryBlock]) -> Value {
    let block = |block: &MemoryBlock| json!({ "Nodes": block.nodes, "Type": block.kind, "Size": block.size });
    blocks.iter().map(block).collect()
}
