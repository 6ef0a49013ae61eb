//! The NUMA nodes of a VM's memory and devices beside those of its CPUs: what the daemon reports, and what only root
//! may read.

mod maps;
#[cfg(test)]
mod tests;
mod vfio;

use serde_json::{Value, json};

use crate::shared::daemon::Failure;
use crate::shared::kernel::Roots;
use crate::shared::kernel::threads::Process;
use crate::shared::output::{self, TextStyle, column, headed, table};
pub(crate) use maps::Mapped;
use stelia_node::locality::{Device, Localities, Locality, NodeMemory, list, size};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmLocality {
    locality: Locality,
    devices_unknown: Option<String>,
    mapped: Option<Vec<Mapped>>,
}

impl VmLocality {
    /// The daemon's report on this pod, and the VFIO devices that its processes have open, as far as they may be read.
    /// `None` where the daemon has no report on it.
    pub(crate) fn of(mut localities: Localities, pod: &str, roots: &Roots, processes: &[Process]) -> Option<Self> {
        let mut locality = localities.instances.remove(pod)?;
        let pids = processes.iter().map(|process| process.pid);
        locality.devices.extend(vfio::devices(roots, pids));
        Some(Self {
            locality,
            devices_unknown: localities.devices_unknown,
            mapped: None,
        })
    }

    /// Adds the pages that the processes have mapped.
    ///
    /// # Errors
    /// A process's maps may not be read.
    pub(crate) fn read_maps(&mut self, roots: &Roots, processes: &[Process]) -> Result<(), Failure> {
        self.mapped = Some(maps::read(roots, processes)?);
        Ok(())
    }

    /// Tables, printed after the properties.
    pub(crate) fn text(&self, style: TextStyle) -> String {
        self.memory(style) + &self.devices(style) + &self.maps(style)
    }

    fn memory(&self, style: TextStyle) -> String {
        let locality = &self.locality;
        if locality.memory.is_empty() {
            return String::new();
        }
        let heading = match locality.away() {
            Some(away) => format!("{away} is not on the NUMA nodes of its CPUs, {}", list(&locality.nodes)),
            None => "it has no CPUs of its own".to_owned(),
        };
        let columns = [
            column("NODE", |(node, ..): &(u32, bool, NodeMemory)| node.to_string()),
            column("OWN", |(_, own, _)| yes(*own)),
            column("ANON", |(.., memory)| size(memory.anon)),
            column("SHMEM", |(.., memory)| size(memory.shmem)),
            column("HUGE PAGES", |(.., memory)| size(memory.huge)),
            column("FILE", |(.., memory)| size(memory.file)),
        ];
        let rows = locality.memory.iter();
        let rows = rows.map(|(node, memory)| (*node, locality.is_own(*node), *memory));
        let rows: Vec<_> = rows.collect();
        headed(&format!("Memory: {heading}"), style, table(&columns, &rows, style))
    }

    fn devices(&self, style: TextStyle) -> String {
        let locality = &self.locality;
        let unknown = self.devices_unknown.iter();
        let unknown: String = unknown
            .map(|why| format!("kubelet's are not known: {}\n", output::printable(why)))
            .collect();
        let columns = [
            column("NODE", |(_, device): &(Option<bool>, &Device)| {
                device.node.map(|node| node.to_string()).unwrap_or_default()
            }),
            column("OWN", |(own, _)| own.map(yes).unwrap_or_default()),
            column("COUNT", |(_, device)| device.count.to_string()),
            column("DEVICE", |(_, device)| device.name.clone()),
        ];
        let rows = locality.devices.iter();
        let rows: Vec<_> = rows
            .map(|device| (device.node.map(|node| locality.is_own(node)), device))
            .collect();
        if rows.is_empty() && unknown.is_empty() {
            return String::new();
        }
        headed(
            "Devices",
            style,
            unknown
                + &table(
                    &columns,
                    &rows,
                    TextStyle {
                        legend: style.legend && !rows.is_empty(),
                        ..style
                    },
                ),
        )
    }

    fn maps(&self, style: TextStyle) -> String {
        let columns = [
            column("NODE", |(node, ..): &(u32, bool, u64, &Mapped)| node.to_string()),
            column("OWN", |(_, own, ..)| yes(*own)),
            column("MAPPED", |(_, _, bytes, _)| size(*bytes)),
            column("PID", |(.., process)| process.pid.to_string()),
            column("PROCESS", |(.., process)| process.name.clone()),
        ];
        let rows = self.mapped.iter().flatten().flat_map(|process| {
            let row = move |(node, bytes): (&u32, &u64)| (*node, self.locality.is_own(*node), *bytes, process);
            process.nodes.iter().map(row)
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return String::new();
        }
        headed("Mapped", style, table(&columns, &rows, style))
    }

    pub(crate) fn json(&self) -> Value {
        let locality = &self.locality;
        let away = locality.away();
        let nodes = locality.memory.iter().map(|(node, memory)| {
            json!({ "node": node, "own": locality.is_own(*node), "anon_bytes": memory.anon, "file_bytes": memory.file,
                    "shmem_bytes": memory.shmem, "huge_pages_bytes": memory.huge })
        });
        let devices = locality.devices.iter().map(|device| {
            let own = device.node.map(|node| locality.is_own(node));
            json!({ "name": device.name, "node": device.node, "own": own, "count": device.count })
        });
        json!({
            "cpu_nodes": list(&locality.nodes),
            "away_bytes": away.map(|away| away.bytes),
            "counted_bytes": away.map(|away| away.of),
            "away_ratio": away.map(|away| away.ratio()),
            "too_much_away": locality.memory_problem().is_some(),
            "nodes": nodes.collect::<Vec<_>>(),
            "devices": devices.collect::<Vec<_>>(),
            "devices_unknown": self.devices_unknown,
            "mapped": self.mapped,
        })
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// The VFIO devices of the VM in this scope, as far as they may be read.
pub(crate) fn vfio_devices(roots: &Roots, scope: &str) -> Vec<Device> {
    let pids = crate::shared::kernel::threads::members(roots, scope).unwrap_or_default();
    vfio::devices(roots, pids.into_iter())
}
