//! The file as text: single values as lines, the rest as tables.

use super::{Block, Blocks, Bytes, Checked, ContainerCpus, Content, Cpus, Memory, PodCpus, StateFile};
use crate::shared::daemon::{Pod, remedy_of_file};
use crate::shared::output::{Column, Render, TextStyle, column, properties, table};

impl Render for StateFile {
    fn text(&self, style: TextStyle) -> String {
        match self {
            Self::CpuManager(file) => file.text(cpus, style),
            Self::MemoryManager(file) => file.text(memory, style),
        }
    }

    /// The answer has the reason.
    fn failure(&self) -> Option<String> {
        match self {
            Self::CpuManager(file) => file.failure(),
            Self::MemoryManager(file) => file.failure(),
        }
    }
}

impl<T> Checked<T> {
    fn text(&self, of: fn(&str, &T, TextStyle) -> String, style: TextStyle) -> String {
        match &self.content {
            Content::Read(content) => of(&self.file, content, style),
            Content::Refused { error } => {
                let rows = [("File", self.file.clone()), ("Usable", format!("no: {error}"))];
                properties(rows.into_iter().chain(cure(error)), style)
            }
        }
    }

    fn failure(&self) -> Option<String> {
        let is_refused = matches!(self.content, Content::Refused { .. });
        is_refused.then(|| format!("{} cannot be used", self.file))
    }
}

fn cure(reason: &str) -> Option<(&'static str, String)> {
    Some(("Cure", remedy_of_file(reason)?.to_owned()))
}

const CONTAINERS: [Column<ContainerCpus>; 3] = [
    column("POD", |entry: &ContainerCpus| {
        entry.pod.as_ref().map(Pod::to_string).unwrap_or_default()
    })
    .yields(1)
    .shortens(),
    column("CONTAINER", |entry: &ContainerCpus| {
        let name = entry.container.as_ref().or(entry.container_id.as_ref());
        name.cloned().unwrap_or_default()
    }),
    column("CPUS", |entry: &ContainerCpus| entry.cpus.to_string()),
];
const PODS: [Column<PodCpus>; 3] = [
    column("POD", |entry: &PodCpus| entry.pod.to_string())
        .yields(1)
        .shortens(),
    column("POD CPUS", |entry: &PodCpus| entry.cpus.to_string()),
    column("SHARED IN POD", |entry: &PodCpus| entry.shared_pool.to_string()),
];
const NODES: [Column<(u32, String, String, Bytes)>; 8] = [
    column("NODE", |(node, ..)| node.to_string()),
    column("WITH NODES", |(_, with, ..)| with.clone()),
    column("TYPE", |(_, _, kind, _)| kind.clone()),
    column("TOTAL BYTES", |(.., bytes)| bytes.total_bytes.to_string()),
    column("SYSTEM", |(.., bytes)| bytes.system_reserved_bytes.to_string()),
    column("ALLOCATABLE", |(.., bytes)| bytes.allocatable_bytes.to_string()),
    column("RESERVED", |(.., bytes)| bytes.reserved_bytes.to_string()),
    column("FREE", |(.., bytes)| bytes.free_bytes.to_string()),
];
const BLOCKS: [Column<(String, String, Block)>; 5] = [
    column("POD", |(pod, ..): &(String, String, Block)| pod.clone())
        .yields(1)
        .shortens(),
    // A whole pod's memory has no container.
    column("CONTAINER", |(_, container, _)| container.clone()),
    column("NODES", |(.., block)| block.nodes.to_string()),
    column("TYPE", |(.., block)| block.r#type.clone()),
    column("BYTES", |(.., block)| block.size_bytes.to_string()),
];

fn cpus(file: &str, state: &Cpus, style: TextStyle) -> String {
    let usable = if state.usable {
        "yes".to_owned()
    } else {
        format!("no: {}", state.reason)
    };
    let unknown = (!state.unknown_keys.is_empty()).then(|| ("Unknown keys", state.unknown_keys.join(", ")));
    let rows = [
        ("File", file.to_owned()),
        ("Schema", format!("{:?}", state.schema)),
        ("Policy", state.policy.clone()),
        ("Default set", state.default_cpus.to_string()),
        ("Shared pool", state.shared_pool.to_string()),
        ("Usable", usable),
    ];
    properties(rows.into_iter().chain(cure(&state.reason)).chain(unknown), style)
        + &below(&CONTAINERS, &state.entries, style)
        + &below(&PODS, &state.pod_entries, style)
}

fn memory(file: &str, state: &Memory, style: TextStyle) -> String {
    let nodes = state.nodes.iter().flat_map(|node| {
        let with = node.with_nodes.to_string();
        let tables = node.memory.iter();
        tables.map(move |(kind, bytes)| (node.node, with.clone(), kind.clone(), *bytes))
    });
    let nodes: Vec<_> = nodes.collect();
    let entries = state.entries.iter().chain(&state.pod_entries);
    let blocks = entries.flat_map(|Blocks { pod, container, blocks }| {
        let container = container.clone().unwrap_or_default();
        let blocks = blocks.iter().cloned();
        blocks.map(move |block| (pod.to_string(), container.clone(), block))
    });
    let blocks: Vec<_> = blocks.collect();
    let rows = [
        ("File", file.to_owned()),
        ("Schema", format!("{:?}", state.schema)),
        ("Policy", state.policy.clone()),
    ];
    properties(rows, style) + &below(&NODES, &nodes, style) + &below(&BLOCKS, &blocks, style)
}

/// A table below a blank line; nothing without rows.
fn below<T>(columns: &[Column<T>], rows: &[T], style: TextStyle) -> String {
    if rows.is_empty() {
        String::new()
    } else {
        format!("\n{}", table(columns, rows, style))
    }
}
