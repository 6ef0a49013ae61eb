//! Where the VMs' memory and devices are. Read when a caller asks, never in a pass of the engine.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::{DeviceManagerState, PodUid};

use crate::cgroup::{CgroupPath, Cgroups, File, HugePage};
use crate::locality;
use crate::locality::{Localities, Locality, Memory, add_huge_pages, add_memory, nodes};

/// What is needed of a VM to read its locality.
#[derive(Debug, Clone, Copy)]
pub struct Vm<'a> {
    pub pod: &'a PodUid,
    /// The container's name in kubelet's files.
    pub container: &'a str,
    /// Its exclusive CPUs.
    pub cpus: &'a CpuSet,
    /// Its memory nodes, as text.
    pub mems: &'a str,
    pub scope: &'a CgroupPath,
    /// The container's own cgroup: what was charged before the move stays there.
    pub origin: &'a CgroupPath,
}

/// What is read once for all VMs of the node.
pub struct Reading<'a> {
    cgroups: &'a dyn Cgroups,
    topology: &'a Topology,
    pages: Vec<HugePage>,
    devices: Result<DeviceManagerState, String>,
}

impl<'a> Reading<'a> {
    /// Read it: kubelet's device file (`kubelet` is kubelet's root directory), and which huge pages there are. `root` is `/`.
    pub fn new(cgroups: &'a dyn Cgroups, topology: &'a Topology, root: &Path, kubelet: &Path) -> Self {
        let sizes = root.join("sys/kernel/mm/hugepages");
        let has = |size: &HugePage| sizes.join(size.directory()).is_dir();
        Self {
            cgroups,
            topology,
            pages: HugePage::ALL.into_iter().filter(has).collect(),
            devices: device_file(&device_manager_state(root, kubelet)),
        }
    }

    pub fn of<'b>(&self, all: impl Iterator<Item = Vm<'b>>) -> Localities {
        Localities {
            instances: all.map(|vm| (vm.pod.to_string(), self.one(vm))).collect(),
            devices_unknown: self.devices.as_ref().err().cloned(),
        }
    }

    /// What cannot be read counts as nothing: an instance may end at any moment.
    fn one(&self, vm: Vm<'_>) -> Locality {
        let mut memory = Memory::new();
        for cgroup in [vm.scope, vm.origin] {
            let read = |file| self.cgroups.read(cgroup, file).unwrap_or_default();
            add_memory(&mut memory, &read(File::MemoryNumaStat));
            for size in &self.pages {
                add_huge_pages(&mut memory, &read(File::HugetlbNumaStat(*size)));
            }
        }
        let state = self.devices.as_ref();
        Locality {
            nodes: nodes(self.topology, vm.cpus),
            allowed: vm.mems.to_owned(),
            memory,
            devices: state
                .map(|state| locality::devices(state, vm.pod, vm.container))
                .unwrap_or_default(),
        }
    }
}

/// kubelet's device file; without one no container has devices.
fn device_file(path: &Path) -> Result<DeviceManagerState, String> {
    let named = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    match fs::read(path) {
        Ok(bytes) => DeviceManagerState::parse(&bytes).map_err(|cause| named(&cause)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(DeviceManagerState::default()),
        Err(cause) => Err(named(&cause)),
    }
}
