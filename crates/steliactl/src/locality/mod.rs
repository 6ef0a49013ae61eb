//! Where a VM's memory and devices are beside its CPUs: what the daemon tells, and what only root may see.

mod maps;
#[cfg(test)]
mod tests;
mod vfio;

use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Failure;
use super::threads::{Process, Roots};
use super::verify::Finding;
use super::view;
pub use maps::Mapped;
use stelia_node::locality::{Localities, Locality, NodeMemory, list, size};

/// Of the text that `Describe` answers; nothing of an older daemon's.
///
/// # Errors
/// It is no such text.
pub fn parse(description: &str) -> Result<Localities, Failure> {
    #[derive(Deserialize)]
    struct Description {
        #[serde(default)]
        locality: Localities,
    }
    let description: Description = serde_json::from_str(description)
        .map_err(|cause| Failure::Other(format!("what the daemon tells of memory and devices: {cause}")))?;
    Ok(description.locality)
}

/// What does not lie where it should, of all pods or of one. Devices are no finding: where they are is kubelet's choice, made
/// once, and the VM's restart may well not change it.
pub fn findings(localities: &Localities, pod: Option<&str>) -> Vec<Finding> {
    let asked = localities.instances.iter();
    let asked = asked.filter(|(uid, _)| pod.is_none_or(|pod| pod == uid.as_str()));
    let found = asked.filter_map(|(uid, locality)| {
        Some(Finding {
            pod_uid: uid.clone(),
            problem: locality.memory_problem()?,
            cure: locality.memory_cure(),
        })
    });
    found.collect()
}

/// What `show` tells of one VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    locality: Locality,
    devices_unknown: Option<String>,
    mapped: Option<Vec<Mapped>>,
}

impl Seen {
    /// What the daemon tells of this pod, and the VFIO devices that its processes hold, as far as they may be seen. `None` where
    /// the daemon knows nothing.
    pub fn of(mut localities: Localities, pod: &str, roots: &Roots, processes: &[Process]) -> Option<Self> {
        let mut locality = localities.instances.remove(pod)?;
        let pids = processes.iter().map(|process| process.pid);
        locality.devices.extend(vfio::devices(roots, pids));
        Some(Self {
            locality,
            devices_unknown: localities.devices_unknown,
            mapped: None,
        })
    }

    /// The same, with what the processes have mapped.
    ///
    /// # Errors
    /// It may not be read.
    pub fn with_mapped(self, roots: &Roots, processes: &[Process]) -> Result<Self, Failure> {
        let mapped = Some(maps::read(roots, processes)?);
        Ok(Self { mapped, ..self })
    }

    /// For readers: tables after the properties.
    pub fn text(&self, legend: bool) -> String {
        self.memory(legend) + &self.devices(legend) + &self.maps(legend)
    }

    fn memory(&self, legend: bool) -> String {
        let locality = &self.locality;
        if locality.memory.is_empty() {
            return String::new();
        }
        let heading = match locality.away() {
            Some(away) => format!("{away} is not on the NUMA nodes of its CPUs, {}", list(&locality.nodes)),
            None => "it has no CPUs of its own".to_owned(),
        };
        let rows = locality.memory.iter().map(|(node, memory)| {
            let NodeMemory {
                anon,
                file,
                shmem,
                huge,
            } = *memory;
            let own = yes(locality.is_own(*node));
            let bytes = [anon, shmem, huge, file].map(size);
            [vec![node.to_string(), own], bytes.to_vec()].concat()
        });
        let header = ["NODE", "OWN", "ANON", "SHMEM", "HUGE PAGES", "FILE"];
        headed(
            &format!("Memory: {heading}"),
            legend,
            view::table(&header, rows.collect(), legend, None),
        )
    }

    fn devices(&self, legend: bool) -> String {
        let locality = &self.locality;
        let unknown = self.devices_unknown.iter();
        let unknown: String = unknown
            .map(|why| format!("kubelet's are not known: {}\n", view::printable(why)))
            .collect();
        let rows = locality.devices.iter().map(|device| {
            let node = device.node.map_or_else(String::new, |node| node.to_string());
            let own = device.node.map_or_else(String::new, |node| yes(locality.is_own(node)));
            [node, own, device.count.to_string(), device.name.clone()].map(|cell| view::or_dash(&cell))
        });
        let rows: Vec<Vec<String>> = rows.map(Vec::from).collect();
        if rows.is_empty() && unknown.is_empty() {
            return String::new();
        }
        let table = match rows.is_empty() {
            true => String::new(),
            false => view::table(&["NODE", "OWN", "COUNT", "DEVICE"], rows, legend, None),
        };
        headed("Devices", legend, unknown + &table)
    }

    fn maps(&self, legend: bool) -> String {
        let rows = self.mapped.iter().flatten().flat_map(|mapped| {
            let row = |(node, bytes): (&u32, &u64)| {
                let own = yes(self.locality.is_own(*node));
                let name = view::or_dash(&mapped.name);
                vec![node.to_string(), own, size(*bytes), mapped.pid.to_string(), name]
            };
            mapped.nodes.iter().map(row)
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if rows.is_empty() {
            return String::new();
        }
        let header = ["NODE", "OWN", "MAPPED", "PID", "PROCESS"];
        headed("Mapped", legend, view::table(&header, rows, legend, None))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let locality = &self.locality;
        let away = locality.away();
        let nodes = locality.memory.iter().map(|(node, memory)| {
            json!({ "Node": node, "Own": locality.is_own(*node), "AnonBytes": memory.anon, "FileBytes": memory.file,
                    "ShmemBytes": memory.shmem, "HugePagesBytes": memory.huge })
        });
        let devices = locality.devices.iter().map(|device| {
            let own = device.node.map(|node| locality.is_own(node));
            json!({ "Name": device.name, "Node": device.node, "Own": own, "Count": device.count })
        });
        json!({
            "CPUNodes": list(&locality.nodes),
            "AwayBytes": away.map(|away| away.bytes),
            "CountedBytes": away.map(|away| away.of),
            "AwayShare": away.map(|away| away.ratio()),
            "TooMuchAway": locality.memory_problem().is_some(),
            "Nodes": nodes.collect::<Vec<_>>(),
            "Devices": devices.collect::<Vec<_>>(),
            "DevicesUnknown": self.devices_unknown,
            "Mapped": self.mapped,
        })
    }
}

/// Without a legend a table is told from others by its columns only.
fn headed(heading: &str, legend: bool, table: String) -> String {
    match legend {
        true => format!("\n{heading}\n{table}"),
        false => table,
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// The VFIO devices of a VM whose scope this is, as far as they may be seen.
pub(super) fn vfio_devices(roots: &Roots, scope: &str) -> Vec<stelia_node::locality::Device> {
    let pids = super::threads::members(roots, scope).unwrap_or_default();
    vfio::devices(roots, pids.into_iter())
}
