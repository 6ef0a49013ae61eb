//! The NUMA nodes of a VM's memory, devices and interrupts beside those of its CPUs: what the daemon reports, and what only root
//! may read.

mod json;
mod maps;
#[cfg(test)]
mod tests;
mod text;
mod vfio;

use stelia_cpus::located::Located;
use stelia_cpus::{NodeSet, Topology};

use crate::shared::daemon::{Description, Failure};
use crate::shared::kernel::Roots;
use crate::shared::kernel::threads::{self, Process};
pub(crate) use maps::Mapped;
use stelia_kernel::locality::{Locality, VfioDevices};
#[cfg(test)]
pub(crate) use text::CERTIFICATE;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmLocality {
    locality: Locality,
    /// The ledger's record; empty if there is none.
    recorded: Vec<Located>,
    devices_unknown: Option<String>,
    mapped: Option<Vec<Mapped>>,
}

impl VmLocality {
    /// The NUMA nodes of its CPUs.
    pub(crate) fn nodes(&self) -> &NodeSet {
        &self.locality.nodes
    }

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
        self.mapped = Some(maps::read(roots, processes)?);
        Ok(())
    }
}

/// Adds the VFIO devices that these processes have open, as far as they may be read.
fn add_opened(locality: &mut Locality, topology: &Topology, roots: &Roots, pids: impl Iterator<Item = i32>) {
    let opened = vfio::opened(roots, pids);
    if !opened.is_empty() {
        VfioDevices::new(&roots.proc, &roots.sys, topology).add(locality, &opened, |_| None);
    }
}

/// Adds the VFIO devices that the processes in this scope have open, as far as they may be read.
pub(crate) fn add_vfio_devices(locality: &mut Locality, topology: &Topology, roots: &Roots, scope: &str) {
    let pids = threads::members(roots, scope).unwrap_or_default();
    add_opened(locality, topology, roots, pids.into_iter());
}
