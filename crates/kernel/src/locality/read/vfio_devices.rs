//! The VFIO devices of a VM and their interrupts, by the devices' addresses.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stelia_cpus::{CpuSet, Topology};

use super::pci;
use crate::counters::{self, interrupts::Table};
use crate::locality::{Interrupts, Locality, PciDevice};

/// What is read once for all VMs of the node.
pub struct VfioDevices<'a> {
    topology: &'a Topology,
    proc: PathBuf,
    sys: PathBuf,
    /// Read with the first VM that has a device; `None` inside if it cannot be read.
    interrupts: OnceCell<Option<Table>>,
}

impl<'a> VfioDevices<'a> {
    /// `proc` is `/proc`, `sys` is `/sys`.
    pub fn new(proc: &Path, sys: &Path, topology: &'a Topology) -> Self {
        Self {
            topology,
            proc: proc.to_owned(),
            sys: sys.to_owned(),
            interrupts: OnceCell::new(),
        }
    }

    pub(super) fn sys(&self) -> &Path {
        &self.sys
    }

    /// Adds the devices with these addresses, and the interrupts of all. Devices that the VM has already stay as they are. `resource`: by which one
    /// kubelet gave it, by its address.
    pub fn add(
        &self,
        locality: &mut Locality,
        addresses: &BTreeSet<String>,
        resource: impl Fn(&str) -> Option<String>,
    ) {
        let is_known = |address: &String| locality.pci.iter().any(|known| known.address == *address);
        let new = addresses.iter().filter(|address| !is_known(address));
        let new = new.filter_map(|address| pci::device(&self.sys, address));
        let new = new.map(|device| PciDevice {
            resource: resource(&device.address),
            ..device
        });
        let new: Vec<PciDevice> = new.collect();
        if new.is_empty() {
            return;
        }
        locality.pci.extend(new);
        locality.pci.sort();
        let own = locality.pci.iter().map(|device| device.address.as_str()).collect();
        let path = self.proc.join("interrupts");
        let table = self
            .interrupts
            .get_or_init(|| counters::read(&path, Table::parse))
            .as_ref();
        locality.interrupts = table.map(|table| Interrupts::of(table, &own, self.topology, |irq| self.target(irq)));
    }

    /// The CPUs that an interrupt goes to; one, where the interrupt controller has a target.
    fn target(&self, irq: u32) -> Option<CpuSet> {
        let file = self.proc.join(format!("irq/{irq}/effective_affinity_list"));
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }
}
