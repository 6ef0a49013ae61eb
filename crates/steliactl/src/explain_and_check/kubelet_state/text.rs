//! The files as text: single values as lines, the rest as tables.

use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kubelet::memory::{MemoryBlock, MemoryTable};
use stelia_kubelet::{CpuManagerState, MemoryManagerState, PodUid};

use super::{Files, shared_in_pod, unusable};
use crate::shared::daemon::{Pods, remedy_of_file};
use crate::shared::output::{Column, TextStyle, column, properties, table};

pub(super) fn files(files: &Files, style: TextStyle) -> String {
    let mut parts = Vec::new();
    if let Some(file) = &files.cpu {
        match &file.state {
            Ok(state) => parts.extend(cpu(&file.path, state, &files.pods, style)),
            Err(reason) => parts.push(refused(&file.path, reason, style)),
        }
    }
    if let Some(file) = &files.memory {
        match &file.state {
            Ok(state) => parts.extend(memory(&file.path, state, &files.pods, style)),
            Err(reason) => parts.push(refused(&file.path, reason, style)),
        }
    }
    parts.join("\n")
}

/// A file of which nothing can be printed, and what helps.
fn refused(path: &Path, reason: &str, style: TextStyle) -> String {
    let rows = [
        ("File", path.display().to_string()),
        ("Usable", format!("no: {reason}")),
    ];
    let cure = remedy_of_file(reason).map(|cure| ("Cure", cure.to_owned()));
    properties(rows.into_iter().chain(cure), style)
}

const ENTRIES: [Column<[String; 3]>; 3] = [
    column("POD", |[pod, _, _]: &[String; 3]| pod.clone())
        .yields(1)
        .shortens(),
    column("CONTAINER", |[_, container, _]| container.clone()),
    column("CPUS", |[_, _, cpus]| cpus.clone()),
];
const POD_ENTRIES: [Column<[String; 3]>; 3] = [
    column("POD", |[pod, _, _]: &[String; 3]| pod.clone())
        .yields(1)
        .shortens(),
    column("POD CPUS", |[_, cpus, _]| cpus.clone()),
    column("SHARED IN POD", |[_, _, shared]| shared.clone()),
];
const MEMORY: [Column<(String, String, String, MemoryTable)>; 8] = [
    column("NODE", |(node, ..)| node.clone()),
    column("WITH NODES", |(_, cells, ..)| cells.clone()),
    column("TYPE", |(_, _, kind, _)| kind.clone()),
    column("TOTAL BYTES", |(.., bytes)| bytes.total.to_string()),
    column("SYSTEM", |(.., bytes)| bytes.system_reserved.to_string()),
    column("ALLOCATABLE", |(.., bytes)| bytes.allocatable.to_string()),
    column("RESERVED", |(.., bytes)| bytes.reserved.to_string()),
    column("FREE", |(.., bytes)| bytes.free.to_string()),
];
const BLOCKS: [Column<(String, String, MemoryBlock)>; 5] = [
    column("POD", |(pod, ..): &(String, String, MemoryBlock)| pod.clone())
        .yields(1)
        .shortens(),
    // A whole pod's memory has no container.
    column("CONTAINER", |(_, container, _)| container.clone()),
    column("NODES", |(.., block)| joined(&block.nodes)),
    column("TYPE", |(.., block)| block.kind.clone()),
    column("BYTES", |(.., block)| block.size.to_string()),
];

fn cpu(path: &Path, state: &CpuManagerState, named: &Pods, style: TextStyle) -> Vec<String> {
    let reason = unusable(state);
    let cure = reason.as_deref().and_then(remedy_of_file);
    let cure = cure.map(|cure| ("Cure", cure.to_owned()));
    let usable = reason.map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"));
    let unknown = (!state.unknown_keys.is_empty()).then(|| ("Unknown keys", state.unknown_keys.join(", ")));
    let mut parts = vec![properties(
        [
            ("File", path.display().to_string()),
            ("Schema", format!("{:?}", state.schema)),
            ("Policy", state.policy.clone()),
            ("Default set", state.default_cpus.to_string()),
            ("Shared pool", state.shared_pool().to_string()),
            ("Usable", usable),
        ]
        .into_iter()
        .chain(cure)
        .chain(unknown),
        style,
    )];
    let by_pod = state.entries.iter().flat_map(|(pod, containers)| {
        let row = move |(name, cpus): (&String, &CpuSet)| {
            let row = [name_of(named, pod), name.clone(), cpus.to_string()];
            (first(cpus), row)
        };
        containers.iter().map(row)
    });
    let by_id = state.container_entries.iter();
    let by_id = by_id.map(|(id, cpus)| (first(cpus), [String::new(), id.clone(), cpus.to_string()]));
    parts.extend(some(&ENTRIES, in_order(by_pod.chain(by_id)), style));
    let pods = state.pod_entries.iter();
    let pods = pods.map(|(pod, cpus)| {
        let shared = shared_in_pod(state, pod);
        let row = [name_of(named, pod), cpus.to_string(), shared.to_string()];
        (first(cpus), row)
    });
    parts.extend(some(&POD_ENTRIES, in_order(pods), style));
    parts
}

/// Where a row with these CPUs stands; one without CPUs is the last.
fn first(cpus: &CpuSet) -> u32 {
    cpus.iter().next().unwrap_or(u32::MAX)
}

/// The rows by their first CPUs.
fn in_order<T>(rows: impl Iterator<Item = (u32, T)>) -> impl Iterator<Item = T> {
    let mut rows: Vec<(u32, T)> = rows.collect();
    rows.sort_by_key(|(first, _)| *first);
    rows.into_iter().map(|(_, row)| row)
}

fn memory(path: &Path, state: &MemoryManagerState, named: &Pods, style: TextStyle) -> Vec<String> {
    let mut parts = vec![properties(
        [
            ("File", path.display().to_string()),
            ("Schema", format!("{:?}", state.schema)),
            ("Policy", state.policy.clone()),
        ],
        style,
    )];
    let nodes = state.nodes.iter().flat_map(|(id, node)| {
        let row =
            move |(kind, table): (&String, &MemoryTable)| (id.to_string(), joined(&node.cells), kind.clone(), *table);
        node.tables.iter().map(row)
    });
    parts.extend(some(&MEMORY, nodes, style));
    let containers = state.entries.iter().flat_map(|(pod, containers)| {
        let blocks = containers
            .iter()
            .flat_map(|(name, blocks)| blocks.iter().map(move |block| (name, block)));
        blocks.map(move |(name, block)| (name_of(named, pod), name.clone(), block.clone()))
    });
    let pods = state.pod_entries.iter().flat_map(|(pod, blocks)| {
        let row = move |block: &MemoryBlock| (name_of(named, pod), String::new(), block.clone());
        blocks.iter().map(row)
    });
    parts.extend(some(&BLOCKS, containers.chain(pods), style));
    parts
}

fn name_of(named: &Pods, pod: &PodUid) -> String {
    named.get(pod.as_str()).to_string()
}

fn joined(nodes: &[u32]) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A table; `None` without rows.
fn some<T>(columns: &[Column<T>], rows: impl Iterator<Item = T>, style: TextStyle) -> Option<String> {
    let rows: Vec<T> = rows.collect();
    (!rows.is_empty()).then(|| table(columns, &rows, style))
}
