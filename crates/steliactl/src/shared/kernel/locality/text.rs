//! The locality of a VM as tables.

use stelia_cpus::located::{Located, Part};
use stelia_kernel::locality::{
    Distance, Locality, MemoryOnlyNode, MemoryPlace, NodeMemory, PartRow, certificate, numa_nodes, pairs, size,
};

use super::{Mapped, VmLocality};
use crate::shared::located;
use crate::shared::output::{self, Column, TextStyle, column, counted, headed, table};

/// A row of the certificate, with its shares and since when it is so.
pub(crate) struct CertificateRow {
    row: PartRow,
    located: Located,
}

impl CertificateRow {
    fn since_us(&self) -> Option<u64> {
        Some(self.located.since_us).filter(|since| *since > 0)
    }
}

pub(crate) const CERTIFICATE: [Column<CertificateRow>; 6] = [
    column("PART", |row: &CertificateRow| located::part(&row.located)),
    column("AMOUNT", |row: &CertificateRow| match row.row.part {
        Part::Memory | Part::HugePages => size(row.row.amount),
        Part::Interrupts => counted(row.row.amount, "time"),
        _ => row.row.amount.to_string(),
    })
    .right(),
    column("NUMA NODES", |row: &CertificateRow| located::nodes(&row.located)).yields(2),
    column("PLACE", |row: &CertificateRow| located::place(&row.located)).means(|row| located::meaning(&row.located)),
    column("SINCE", |row: &CertificateRow| located::clock(row.since_us())),
    column("DETAILS", |row: &CertificateRow| row.row.details.clone())
        .yields(1)
        .or_nothing(),
];

/// A GPU, a network card and their distance.
const PAIRS: [Column<[String; 3]>; 3] = [
    column("GPU", |[gpu, ..]: &[String; 3]| gpu.clone()),
    column("NIC", |[_, nic, _]: &[String; 3]| nic.clone()),
    column("DISTANCE", |[.., distance]: &[String; 3]| distance.clone()),
];

/// A NUMA node with memory of the VM.
struct MemoryRow {
    node: u32,
    own: &'static str,
    memory: NodeMemory,
    /// What the memory of a node without CPUs is; empty for any other.
    without_cpus: String,
}

impl VmLocality {
    /// "4.0 GiB, 100 % local"; `None` where it is not known.
    pub(crate) fn memory_in_words(&self) -> Option<String> {
        let away = self.locality.away()?;
        Some(format!("{}, {} % local", size(away.of), 100 - away.percent()))
    }

    /// The parts of the VM that are on other NUMA nodes than its CPUs, with the nodes.
    pub(crate) fn remote(&self) -> Vec<String> {
        let rows = certificate(&self.locality).into_iter();
        let located = rows.map(|row| row.shown(&self.locality, &self.recorded));
        let remote = located.filter(|one| one.remote().is_some_and(|percent| percent > 0));
        let words = |one: Located| {
            let (part, place) = (located::part(&one), located::place(&one));
            format!("{part}: {place}, NUMA node {}", located::nodes(&one))
        };
        remote.map(words).collect()
    }

    /// Tables, printed after the properties.
    pub(crate) fn text(&self, style: TextStyle) -> String {
        self.certificate(style) + &self.pairs(style) + &self.memory(style) + &self.maps(style)
    }

    fn certificate(&self, style: TextStyle) -> String {
        let unknown = self.devices_unknown.iter();
        let unknown: String = unknown
            .map(|why| format!("kubelet's devices are not known: {}\n", output::printable(why)))
            .collect();
        let rows = certificate(&self.locality).into_iter().map(|row| CertificateRow {
            located: row.shown(&self.locality, &self.recorded),
            row,
        });
        let rows: Vec<CertificateRow> = rows.collect();
        let heading = if rows.is_empty() {
            "Locality: the VM has no exclusive CPUs".to_owned()
        } else {
            format!("Locality: the VM's CPUs are on {}", numa_nodes(&self.locality.nodes))
        };
        let table = if rows.is_empty() {
            String::new()
        } else {
            table(&CERTIFICATE, &rows, style)
        };
        let legend = if style.legend {
            located::legend(rows.iter().map(|row| &row.located))
        } else {
            String::new()
        };
        headed(&heading, style, table + &legend + &unknown)
    }

    fn pairs(&self, style: TextStyle) -> String {
        let rows = pairs(&self.locality.pci).into_iter().map(|pair| {
            let words = |distance: Distance| format!("{}, {}", distance.name(), distance.words());
            let distance = pair.distance.map(words).unwrap_or_default();
            [pair.gpu.address.clone(), pair.nic.address.clone(), distance]
        });
        let rows: Vec<[String; 3]> = rows.collect();
        if rows.is_empty() {
            String::new()
        } else {
            headed("GPUs and network cards", style, table(&PAIRS, &rows, style))
        }
    }

    fn memory(&self, style: TextStyle) -> String {
        let locality = &self.locality;
        if locality.memory.is_empty() {
            return String::new();
        }
        let attached = locality.attached().filter(|attached| attached.bytes > 0);
        let attached = attached.map(|attached| format!("; {attached} is attached, on NUMA nodes without CPUs"));
        let heading = match locality.away() {
            Some(away) => format!(
                "{away} is remote from the VM's CPUs on {}{}",
                numa_nodes(&locality.nodes),
                attached.unwrap_or_default()
            ),
            None => "the VM has no exclusive CPUs".to_owned(),
        };
        let columns = [
            column("NODE", |row: &MemoryRow| row.node.to_string()),
            column("OWN", |row| row.own.to_owned()),
            column("ANON", |row| size(row.memory.anon)),
            column("SHMEM", |row| size(row.memory.shmem)),
            column("HUGE PAGES", |row| size(row.memory.huge)),
            column("FILE", |row| size(row.memory.file)),
            column("WITHOUT CPUS", |row: &MemoryRow| row.without_cpus.clone())
                .yields(1)
                .or_nothing(),
        ];
        let rows = locality.memory.iter().map(|(node, memory)| {
            let memory_only = locality.memory_only.get(node);
            MemoryRow {
                node: *node,
                own: own(locality, *node),
                memory: *memory,
                without_cpus: memory_only.map(MemoryOnlyNode::words).unwrap_or_default(),
            }
        });
        let rows: Vec<MemoryRow> = rows.collect();
        // On most hosts every node has CPUs.
        let count = if rows.iter().all(|row| row.without_cpus.is_empty()) {
            columns.len() - 1
        } else {
            columns.len()
        };
        let columns = columns.get(..count).unwrap_or_default();
        headed(&format!("Memory: {heading}"), style, table(columns, &rows, style))
    }

    fn maps(&self, style: TextStyle) -> String {
        let columns = [
            column("NODE", |(node, ..): &(u32, &'static str, u64, &Mapped)| {
                node.to_string()
            }),
            column("OWN", |(_, own, ..)| (*own).to_owned()),
            column("MAPPED", |(_, _, bytes, _)| size(*bytes)),
            column("PID", |(.., process)| process.pid.to_string()),
            column("PROCESS", |(.., process)| process.name.clone()),
        ];
        let rows = self.mapped.iter().flatten().flat_map(|process| {
            let row = move |(node, bytes): (&u32, &u64)| (*node, own(&self.locality, *node), *bytes, process);
            process.nodes.iter().map(row)
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return String::new();
        }
        headed("Mapped", style, table(&columns, &rows, style))
    }
}

/// Whether a node is one of its CPUs', or has memory that belongs to those.
fn own(locality: &Locality, node: u32) -> &'static str {
    match locality.place(node) {
        MemoryPlace::Near => "yes",
        MemoryPlace::Attached => "attached",
        MemoryPlace::Remote => "no",
    }
}
