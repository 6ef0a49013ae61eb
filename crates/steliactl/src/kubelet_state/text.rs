//! For readers: what there is one of as lines, what there is more of as tables.

use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kubelet::memory::MemoryBlock;
use stelia_kubelet::{CpuManagerState, MemoryManagerState};

use super::{Files, shared_in_pod, unusable};
use crate::view::{or_dash, table};

/// Every file that is understood.
pub(super) fn files(files: &Files, legend: bool) -> String {
    let mut parts = Vec::new();
    if let Some(file) = &files.cpu
        && let Ok(state) = &file.state
    {
        parts.extend(cpu(&file.path, state, legend));
    }
    if let Some(file) = &files.memory
        && let Ok(state) = &file.state
    {
        parts.extend(memory(&file.path, state, legend));
    }
    parts.join("\n")
}

fn cpu(path: &Path, state: &CpuManagerState, legend: bool) -> Vec<String> {
    let usable = unusable(state).map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"));
    let mut parts = vec![lines(&[
        ("File", path.display().to_string()),
        ("Schema", format!("{:?}", state.schema)),
        ("Policy", state.policy.clone()),
        ("Default set", state.default_cpus.to_string()),
        ("Shared pool", state.shared_pool().to_string()),
        ("Usable", usable),
    ])];
    let by_pod = state.entries.iter().flat_map(|(pod, containers)| {
        let row =
            move |(name, cpus): (&String, &CpuSet)| vec![pod.to_string(), or_dash(name), or_dash(&cpus.to_string())];
        containers.iter().map(row)
    });
    let by_id = state
        .container_entries
        .iter()
        .map(|(id, cpus)| vec!["-".to_owned(), or_dash(id), or_dash(&cpus.to_string())]);
    some(
        &mut parts,
        &["POD UID", "CONTAINER", "CPUS"],
        by_pod.chain(by_id),
        legend,
    );
    let pods = state.pod_entries.iter().map(|(pod, cpus)| {
        let shared = shared_in_pod(state, pod);
        vec![
            pod.to_string(),
            or_dash(&cpus.to_string()),
            or_dash(&shared.to_string()),
        ]
    });
    some(&mut parts, &["POD UID", "POD CPUS", "SHARED IN POD"], pods, legend);
    parts
}

fn memory(path: &Path, state: &MemoryManagerState, legend: bool) -> Vec<String> {
    let mut parts = vec![lines(&[
        ("File", path.display().to_string()),
        ("Schema", format!("{:?}", state.schema)),
        ("Policy", state.policy.clone()),
    ])];
    let nodes = state.nodes.iter().flat_map(|(id, node)| {
        node.tables.iter().map(move |(kind, bytes)| {
            let numbers = [
                bytes.total,
                bytes.system_reserved,
                bytes.allocatable,
                bytes.reserved,
                bytes.free,
            ];
            let mut row = vec![id.to_string(), joined(&node.cells), or_dash(kind)];
            row.extend(numbers.map(|bytes| bytes.to_string()));
            row
        })
    });
    let header = [
        "NODE",
        "WITH NODES",
        "TYPE",
        "TOTAL BYTES",
        "SYSTEM",
        "ALLOCATABLE",
        "RESERVED",
        "FREE",
    ];
    some(&mut parts, &header, nodes, legend);
    let containers = state.entries.iter().flat_map(|(pod, containers)| {
        containers
            .iter()
            .flat_map(move |(name, blocks)| blocks.iter().map(move |block| block_row(&pod.to_string(), name, block)))
    });
    let pods = state
        .pod_entries
        .iter()
        .flat_map(|(pod, blocks)| blocks.iter().map(move |block| block_row(&pod.to_string(), "", block)));
    let header = ["POD UID", "CONTAINER", "NODES", "TYPE", "BYTES"];
    some(&mut parts, &header, containers.chain(pods), legend);
    parts
}

/// A whole pod's memory has no container.
fn block_row(pod: &str, container: &str, block: &MemoryBlock) -> Vec<String> {
    vec![
        pod.to_owned(),
        or_dash(container),
        joined(&block.nodes),
        or_dash(&block.kind),
        block.size.to_string(),
    ]
}

fn joined(nodes: &[u32]) -> String {
    or_dash(&nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

fn lines(lines: &[(&str, String)]) -> String {
    let rows = lines
        .iter()
        .map(|(name, value)| vec![format!("{name}:"), or_dash(value)]);
    table(&[], rows.collect(), false, None)
}

/// A table, when it has rows.
fn some(parts: &mut Vec<String>, header: &[&str], rows: impl Iterator<Item = Vec<String>>, legend: bool) {
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        parts.push(table(header, rows, legend, None));
    }
}
