//! Reads the interrupts of devices and their masks: `/proc/irq` and `/sys/kernel/irq`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::cause;
use stelia_kernel::counters::interrupts::{Table, is_legacy_timer, vfio_device};

use crate::files::Files;

/// The mask of new interrupts.
pub const DEFAULT: &str = "/proc/irq/default_smp_affinity";

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The file with the mask of an interrupt, as a list.
pub fn mask_path(irq: u32) -> String {
    format!("/proc/irq/{irq}/smp_affinity_list")
}

/// Identifies an interrupt. Its number is not enough, because the kernel gives a number again once it is free.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub irq: u32,
    /// The number at its controller.
    pub hwirq: String,
    /// The drivers that handle it, joined by commas; empty while there is none.
    pub actions: String,
}

impl Identity {
    /// PCI address of the VFIO device that it belongs to. `None` for others, and for a line shared with others: that
    /// has several drivers. The names are those of the kernel's `vfio_pci_intrs.c`, such as
    /// `vfio-msix[0](0000:3b:00.0)`.
    pub fn vfio_device(&self) -> Option<&str> {
        vfio_device(&self.actions)
    }

    /// Whether `now`, which has this recorded interrupt's number, is the same interrupt. Drivers come and go during its life: a
    /// line that several devices share is one interrupt, whichever drivers use it. It is a different interrupt if it has
    /// drivers and none of the recorded ones is among them.
    pub fn lives_on_as(&self, now: &Self) -> bool {
        let drivers = |identity: &Self| -> BTreeSet<String> {
            let names = identity
                .actions
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        let (before, after) = (drivers(self), drivers(now));
        let same = (self.irq, &self.hwirq) == (now.irq, &now.hwirq);
        same && (before.is_empty() || after.is_empty() || !before.is_disjoint(&after))
    }
}

/// An interrupt as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupt {
    pub identity: Identity,
    /// The CPUs on which it may fire. The kernel shows a new mask at once, even if the interrupt moves only when it fires
    /// next.
    pub mask: CpuSet,
    /// The CPUs of the device's NUMA node; empty: it has none.
    pub local: CpuSet,
}

/// The result of reading all interrupts.
#[derive(Debug, Default)]
pub struct InterruptScan {
    /// By number.
    pub interrupts: Vec<Interrupt>,
    /// Interrupts that exist and could not be read.
    pub unread: BTreeSet<u32>,
    /// Why they could not be read.
    pub problems: Vec<String>,
}

/// The online CPUs.
pub fn online(files: &dyn Files) -> Result<CpuSet, String> {
    cpus(files, ONLINE).map_err(|error| failed(ONLINE, &error))
}

/// The mask of new interrupts.
pub fn default_mask(files: &dyn Files) -> Result<CpuSet, String> {
    let text = files.read(DEFAULT).map_err(|error| failed(DEFAULT, &error))?;
    CpuSet::from_mask(text.trim()).ok_or_else(|| format!("read {DEFAULT}: {text:?} is not a mask"))
}

/// The CPUs on which an interrupt fires now or, if a move is pending, will fire. `None` if the kernel has no such file.
pub fn effective(files: &dyn Files, irq: u32) -> Option<CpuSet> {
    cpus(files, &format!("/proc/irq/{irq}/effective_affinity_list")).ok()
}

/// Every interrupt of a device, including those without a driver at present. An interrupt that goes away meanwhile is left out.
///
/// # Errors
/// The list of interrupts cannot be read: with the path and the cause.
pub fn read(files: &dyn Files, table: &Table) -> Result<InterruptScan, String> {
    const ALL: &str = "/proc/irq";
    let mut numbers: Vec<u32> = files
        .list(ALL)
        .map_err(|error| failed(ALL, &error))?
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut scan = InterruptScan::default();
    let mut nodes = BTreeMap::new();
    for irq in numbers {
        // The CPUs' own ones are no device's.
        if is_legacy_timer(irq) || table.lines.get(&irq).is_some_and(|line| !line.is_device()) {
            continue;
        }
        match read_one(files, irq, &mut nodes) {
            // Those between arm64's CPUs: `/proc/interrupts` hides their numbers (`IRQ_HIDDEN`, arch/arm64/kernel/smp.c).
            Ok(interrupt) if interrupt.identity.actions == "IPI" => {}
            Ok(interrupt) => scan.interrupts.push(interrupt),
            Err((_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err((path, error)) => {
                scan.unread.insert(irq);
                scan.problems.push(failed(&path, &error));
            }
        }
    }
    Ok(scan)
}

fn read_one(files: &dyn Files, irq: u32, nodes: &mut BTreeMap<u32, CpuSet>) -> Result<Interrupt, (String, io::Error)> {
    let read = |path: String| files.read(&path).map_err(|error| (path, error));
    let attribute = |name: &str| read(format!("/sys/kernel/irq/{irq}/{name}"));
    let identity = Identity {
        irq,
        // Interrupts without a domain have an empty file.
        hwirq: attribute("hwirq")?.trim().into(),
        actions: attribute("actions")?.trim().into(),
    };
    let path = mask_path(irq);
    let mask = cpus(files, &path).map_err(|error| (path, error))?;
    let node = read(format!("/proc/irq/{irq}/node"))
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let local = node.map(|node: u32| nodes.entry(node).or_insert_with(|| node_cpus(files, node)).clone());
    Ok(Interrupt {
        identity,
        mask,
        local: local.unwrap_or_default(),
    })
}

/// Empty if the kernel has no NUMA nodes: CPUs near the device are only preferred.
fn node_cpus(files: &dyn Files, node: u32) -> CpuSet {
    cpus(files, &format!("/sys/devices/system/node/node{node}/cpulist")).unwrap_or_default()
}

fn cpus(files: &dyn Files, path: &str) -> io::Result<CpuSet> {
    let text = files.read(path)?;
    text.parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn failed(path: &str, error: &io::Error) -> String {
    format!("read {path}: {}", cause(error))
}
