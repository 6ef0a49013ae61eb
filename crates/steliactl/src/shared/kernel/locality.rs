//! The NUMA nodes of a VM's memory, devices and interrupts beside those of its CPUs: what the daemon reports, and what only root
//! may read.

mod processes;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};
use stelia_cpus::located::{Located, Part};
use stelia_cpus::{NodeSet, Topology};
use stelia_kernel::locality::{
    Distance, Locality, MemoryPlace, PartRow, PciDevice, VfioDevices, certificate, list, numa_nodes, pairs, size,
};

use crate::shared::daemon::{Description, Failure};
use crate::shared::kernel::Roots;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::located;
use crate::shared::output::{self, Column, TextStyle, column, counted, headed, table};
pub(crate) use processes::Mapped;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmLocality {
    locality: Locality,
    /// The ledger's record; empty if there is none.
    recorded: Vec<Located>,
    devices_unknown: Option<String>,
    mapped: Option<Vec<Mapped>>,
}

/// A row of the certificate, with its shares and since when it is so.
pub(crate) struct CertificateRow {
    row: PartRow,
    located: Located,
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
    column("SINCE", |row: &CertificateRow| {
        located::clock(Some(row.located.since_us).filter(|since| *since > 0))
    }),
    column("DETAILS", |row: &CertificateRow| row.row.details.clone())
        .yields(1)
        .or_nothing(),
];

/// A GPU, a network card and their distance.
pub(crate) const PAIRS: [Column<[String; 3]>; 3] = [
    column("GPU", |[gpu, ..]: &[String; 3]| gpu.clone()),
    column("NIC", |[_, nic, _]: &[String; 3]| nic.clone()),
    column("DISTANCE", |[.., distance]: &[String; 3]| distance.clone()),
];

/// What a process has mapped on a NUMA node.
type MappedRow<'a> = (u32, &'static str, u64, &'a Mapped);

impl VmLocality {
    /// The daemon's report on this pod, and the VFIO devices that its processes have open, as far as they may be read.
    /// `None` where the daemon has no report on it.
    pub(crate) fn of(description: &Description, pod: &str, roots: &Roots, processes: &[Process]) -> Option<Self> {
        let mut locality = description.locality.instances.get(pod)?.clone();
        let pids = processes.iter().map(|process| process.pid);
        add_opened(&mut locality, &description.node.topology, roots, pids);
        Some(Self {
            locality,
            recorded: description.node.ledger.located.get(pod).cloned().unwrap_or_default(),
            devices_unknown: description.locality.devices_unknown.clone(),
            mapped: None,
        })
    }

    /// Adds the pages that the processes have mapped.
    ///
    /// # Errors
    /// A process's maps may not be read.
    pub(crate) fn read_maps(&mut self, roots: &Roots, processes: &[Process]) -> Result<(), Failure> {
        self.mapped = Some(processes::mapped(roots, processes)?);
        Ok(())
    }

    fn certificate(&self) -> Vec<CertificateRow> {
        let rows = certificate(&self.locality).into_iter();
        rows.map(|row| CertificateRow {
            located: row.shown(&self.locality, &self.recorded),
            row,
        })
        .collect()
    }

    /// The NUMA nodes of its CPUs.
    pub(crate) fn nodes(&self) -> &NodeSet {
        &self.locality.nodes
    }

    /// "4.0 GiB, 100 % local"; `None` where it is not known.
    pub(crate) fn memory_in_words(&self) -> Option<String> {
        let away = self.locality.away()?;
        Some(format!("{}, {} % local", size(away.of), 100 - away.percent()))
    }

    /// The parts of the VM that are on other NUMA nodes than its CPUs, with the nodes.
    pub(crate) fn remote(&self) -> Vec<String> {
        let rows = self.certificate().into_iter().map(|row| row.located);
        let remote = rows.filter(|one| one.remote().is_some_and(|percent| percent > 0));
        let words = |one: Located| {
            let (part, place) = (located::part(&one), located::place(&one));
            format!("{part}: {place}, NUMA node {}", located::nodes(&one))
        };
        remote.map(words).collect()
    }

    /// Tables, printed after the properties.
    pub(crate) fn text(&self, style: TextStyle) -> String {
        let locality = &self.locality;
        let rows = self.certificate();
        let mut heading = match rows.as_slice() {
            [] => "Locality: the VM has no exclusive CPUs".to_owned(),
            _ => format!("Locality: the VM's CPUs are on {}", numa_nodes(&locality.nodes)),
        };
        let shares = [(locality.away(), "remote"), (locality.attached(), "attached")];
        for (share, word) in shares {
            if let Some(share) = share.filter(|share| share.bytes > 0) {
                heading += &format!("; {share} of its memory is {word}");
            }
        }
        let mut body = String::new();
        if !rows.is_empty() {
            body += &table(&CERTIFICATE, &rows, style);
        }
        if style.legend {
            body += &located::legend(rows.iter().map(|row| &row.located));
        }
        if let Some(why) = &self.devices_unknown {
            body += &format!("kubelet's devices are not known: {}\n", output::printable(why));
        }
        headed(&heading, style, body) + &self.pairs(style) + &self.maps(style)
    }

    fn pairs(&self, style: TextStyle) -> String {
        let rows = pairs(&self.locality.pci).into_iter().map(|pair| {
            let words = |distance: Distance| format!("{}, {}", distance.name(), distance.words());
            let distance = pair.distance.map(words).unwrap_or_default();
            [pair.gpu.address.clone(), pair.nic.address.clone(), distance]
        });
        below("GPUs and network cards", &PAIRS, &rows.collect::<Vec<_>>(), style)
    }

    fn maps(&self, style: TextStyle) -> String {
        let columns: [Column<MappedRow<'_>>; 5] = [
            column("NODE", |(node, ..)| node.to_string()),
            column("OWN", |(_, own, ..)| (*own).to_owned()),
            column("MAPPED", |(_, _, bytes, _)| size(*bytes)),
            column("PID", |(.., process)| process.pid.to_string()),
            column("PROCESS", |(.., process)| process.name.clone()),
        ];
        let own = |node: u32| match self.locality.place(node) {
            MemoryPlace::Near => "yes",
            MemoryPlace::Attached => "attached",
            MemoryPlace::Remote => "no",
        };
        let rows = self.mapped.iter().flatten().flat_map(|process| {
            let nodes = process.nodes.iter();
            nodes.map(move |(node, bytes)| (*node, own(*node), *bytes, process))
        });
        below("Mapped", &columns, &rows.collect::<Vec<_>>(), style)
    }

    pub(crate) fn json(&self) -> Value {
        let locality = &self.locality;
        let (away, attached) = (locality.away(), locality.attached());
        let nodes = locality.memory.iter().map(|(node, memory)| {
            json!({ "node": node, "own": locality.is_own(*node), "place": locality.place(*node).name(),
                    "anon_bytes": memory.anon, "file_bytes": memory.file,
                    "shmem_bytes": memory.shmem, "huge_pages_bytes": memory.huge })
        });
        let memory_only = locality.memory_only.iter().map(|(node, one)| {
            json!({ "node": node, "kind": one.kind, "device": one.device, "nearest": list(&one.nearest) })
        });
        let pairs = pairs(&locality.pci)
            .into_iter()
            .map(|pair| json!({ "gpu": pair.gpu.address, "nic": pair.nic.address, "distance": pair.distance }));
        json!({
            "cpu_nodes": list(&locality.nodes),
            "away_bytes": away.map(|away| away.bytes),
            "counted_bytes": away.map(|away| away.of),
            "away_ratio": away.map(|away| away.ratio()),
            "attached_bytes": attached.map(|attached| attached.bytes),
            "attached_ratio": attached.map(|attached| attached.ratio()),
            "too_much_away": locality.memory_problem().is_some(),
            "nodes": nodes.collect::<Vec<_>>(),
            "memory_only": memory_only.collect::<Vec<_>>(),
            "devices": devices(locality),
            "devices_unknown": self.devices_unknown,
            "certificate": self.certificate().iter().map(|row| row.json(locality)).collect::<Vec<_>>(),
            "interrupts": locality.interrupts,
            "pairs": pairs.collect::<Vec<_>>(),
            "mapped": self.mapped,
        })
    }
}

/// A table below its heading; nothing without rows.
fn below<T>(heading: &str, columns: &[Column<T>], rows: &[T], style: TextStyle) -> String {
    match rows {
        [] => String::new(),
        rows => headed(heading, style, table(columns, rows, style)),
    }
}

impl CertificateRow {
    fn json(&self, locality: &Locality) -> Value {
        let (row, located) = (&self.row, &self.located);
        let share = |percent: u8| (!located.nodes.is_empty()).then_some(percent);
        let pci = |device: &PciDevice| {
            json!({
                "address": device.address, "kind": device.kind(), "vendor": format!("{:04x}", device.vendor),
                "device": format!("{:04x}", device.device), "part_of": device.part_of, "mediated": device.mediated,
                "resource": device.resource,
            })
        };
        let device = locality.pci.iter().find(|device| device.name() == row.name);
        json!({
            "part": row.part, "name": row.name, "amount": row.amount, "nodes": row.by_node,
            "near_percent": share(located.near_percent), "attached_percent": share(located.attached_percent),
            "since_us": Some(located.since_us).filter(|since| *since > 0), "device": device.map(pci),
        })
    }
}

/// kubelet's, then those of VFIO.
fn devices(locality: &Locality) -> Vec<Value> {
    let one = |name: &str, node: Option<u32>, count: u32| {
        let own = node.map(|node| locality.is_own(node));
        json!({ "name": name, "node": node, "own": own, "count": count })
    };
    let of_kubelet = locality.devices.iter();
    let of_kubelet = of_kubelet.map(|device| one(&device.name, device.node, device.count));
    let of_vfio = locality.pci.iter();
    let of_vfio = of_vfio.map(|device| one(&format!("VFIO {}", device.address), device.node, 1));
    of_kubelet.chain(of_vfio).collect()
}

/// Adds the VFIO devices that these processes have open, as far as they may be read.
fn add_opened(locality: &mut Locality, topology: &Topology, roots: &Roots, pids: impl Iterator<Item = i32>) {
    let opened = processes::opened(roots, pids);
    if !opened.is_empty() {
        VfioDevices::new(&roots.proc, &roots.sys, topology).add(locality, &opened, |_| None);
    }
}

/// Adds the VFIO devices that the processes in this scope have open, as far as they may be read.
pub(crate) fn add_vfio_devices(locality: &mut Locality, topology: &Topology, roots: &Roots, scope: &str) {
    let pids = threads::members(roots, scope).unwrap_or_default();
    add_opened(locality, topology, roots, pids.into_iter());
}
