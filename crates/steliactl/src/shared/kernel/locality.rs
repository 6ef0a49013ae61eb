//! The NUMA nodes of a VM's memory, devices and interrupts beside those of its CPUs: what the daemon reports, and what only root
//! may read.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::Serialize;
use stelia_cpus::located::{Located, Part};
use stelia_cpus::{NodeSet, Topology};
use stelia_kernel::locality::{Locality, PartRow, VfioDevices, certificate, pairs, size};
use stelia_kernel::vfio::behind;

use crate::shared::daemon::Description;
use crate::shared::kernel::Roots;
use crate::shared::kernel::threads::Process;
use crate::shared::located;
use crate::shared::output::{self, Column, TextStyle, column, counted, headed, table};

/// The daemon's report, with the devices that processes have open. It is the JSON too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct VmLocality {
    #[serde(flatten)]
    locality: Locality,
    /// The ledger's record; empty if there is none.
    recorded: Vec<Located>,
    devices_unknown: Option<String>,
}

/// A row of the certificate, with its shares and since when it is so.
pub(crate) type CertificateRow = (PartRow, Located);

pub(crate) const CERTIFICATE: [Column<CertificateRow>; 6] = [
    column("PART", |(_, located)| located::part(located)),
    column("AMOUNT", |(row, _): &CertificateRow| match row.part {
        Part::Memory | Part::HugePages => size(row.amount),
        Part::Interrupts => counted(row.amount, "time"),
        _ => row.amount.to_string(),
    })
    .right(),
    column("NUMA NODES", |(_, located): &CertificateRow| located::nodes(located)).yields(2),
    column("PLACE", |(_, located): &CertificateRow| located::place(located)).means(|(_, at)| located::meaning(at)),
    column("SINCE", |(_, located)| located::clock(located.since_us)),
    column("DETAILS", |(row, _): &CertificateRow| row.details.clone())
        .yields(1)
        .or_nothing(),
];

impl VmLocality {
    /// The daemon's report on this pod, and the VFIO devices that its processes have open, as far as they may be read.
    /// `None` where the daemon has no report on it.
    pub(crate) fn of(description: &Description, pod: &str, roots: &Roots, processes: &[Process]) -> Option<Self> {
        let mut locality = description.locality.instances.get(pod)?.clone();
        add_opened(&mut locality, &description.node.topology, roots, processes);
        Some(Self {
            locality,
            recorded: description.node.ledger.located.get(pod).cloned().unwrap_or_default(),
            devices_unknown: description.locality.devices_unknown.clone(),
        })
    }

    fn certificate(&self) -> Vec<CertificateRow> {
        let rows = certificate(&self.locality).into_iter();
        let with_shares = |row: PartRow| {
            let located = row.shown(&self.locality, &self.recorded);
            (row, located)
        };
        rows.map(with_shares).collect()
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
        let rows = self.certificate().into_iter().map(|(_, located)| located);
        let remote = rows.filter(|one| one.remote().is_some_and(|percent| percent > 0));
        let words = |one| [located::part, located::place, located::nodes].map(|words| words(&one));
        let words = remote.map(words);
        words
            .map(|[part, place, nodes]| format!("{part}: {place}, NUMA {nodes}"))
            .collect()
    }

    /// A table and lines, printed after the properties.
    pub(crate) fn text(&self, style: TextStyle) -> String {
        let (heading, mut body) = match self.certificate().as_slice() {
            [] => ("Locality: the VM has no exclusive CPUs".to_owned(), String::new()),
            rows => (
                format!("Locality: the VM's CPUs are on NUMA {}", self.nodes()),
                table(&CERTIFICATE, rows, style),
            ),
        };
        if let Some(why) = &self.devices_unknown {
            body += &format!("kubelet's devices are not known: {}\n", output::printable(why));
        }
        let lines = pairs(&self.locality.pci).into_iter().filter_map(|pair| {
            let (gpu, nic, distance) = (&pair.gpu.address, &pair.nic.address, pair.distance?);
            Some(format!(
                "GPU {gpu} and NIC {nic}: {}, {}\n",
                distance.name(),
                distance.words()
            ))
        });
        body.extend(lines);
        headed(&heading, style, body)
    }
}

/// Adds the VFIO devices that these processes have open. What may not be read is left out: only root may list the open files of a VM's
/// processes.
fn add_opened(locality: &mut Locality, topology: &Topology, roots: &Roots, processes: &[Process]) {
    let numbers = processes
        .iter()
        .flat_map(|process| open_devices(&roots.proc, process.pid));
    let numbers: BTreeSet<(u32, u32)> = numbers.collect();
    // Their addresses, of mediated ones the UUIDs.
    let opened = numbers.into_iter().flat_map(|number| behind(&roots.sys, number));
    let opened: BTreeSet<String> = opened.collect();
    if !opened.is_empty() {
        VfioDevices::new(&roots.proc, &roots.sys, topology).add(locality, &opened, |_| None);
    }
}

/// The numbers of the character devices that a process has open.
fn open_devices(proc: &Path, pid: i32) -> Vec<(u32, u32)> {
    let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let open = open.into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| {
        // A descriptor on a file system of the pod's is not followed: its server may never answer.
        let is_device = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with("/dev"));
        // O_PATH opens what the container is not allowed to use.
        let info = fs::read_to_string(proc.join(format!("{pid}/fdinfo")).join(entry.file_name())).unwrap_or_default();
        if !is_device || is_path_only(&info) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        let number = file.rdev();
        let parts = (rustix::fs::major(number), rustix::fs::minor(number));
        file.file_type().is_char_device().then_some(parts)
    });
    numbers.collect()
}

/// Whether a descriptor was opened with O_PATH: `flags` of its fdinfo, in octal (proc_pid_fdinfo(5)).
fn is_path_only(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::PATH.bits() != 0)
}
