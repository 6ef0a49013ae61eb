//! Where the VMs' memory and devices are. Read when a caller asks and once an hour for the ledger, never in a pass of the engine.

pub(super) mod memory_only;
pub(super) mod pci;
mod vfio_devices;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::{DeviceManagerState, PodUid};

use crate::cgroup::{CgroupPath, Cgroups, File, HugePage};
use crate::locality::{
    self, Localities, Locality, MemoryByNode, MemoryOnlyNode, add_huge_pages, add_memory, cpus_by_node,
};
use crate::vfio;
pub use vfio_devices::VfioDevices;

/// What is needed of a VM to read its locality.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredVm<'a> {
    pub pod: &'a PodUid,
    /// The container's name in kubelet's files.
    pub container: &'a str,
    /// Its exclusive CPUs.
    pub cpus: &'a CpuSet,
    /// Its memory nodes, as text.
    pub mems: &'a NodeSet,
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
    memory_only: BTreeMap<u32, MemoryOnlyNode>,
    /// Whether VFIO has any device: else no VM has one, and no container's configuration is read.
    has_vfio: bool,
    vfio: VfioDevices<'a>,
    /// `/run`.
    run: PathBuf,
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
            devices: DeviceManagerState::read(&device_manager_state(root, kubelet)).map(Option::unwrap_or_default),
            memory_only: memory_only::nodes(root),
            has_vfio: vfio::has_devices(&root.join("sys")),
            vfio: VfioDevices::new(&root.join("proc"), &root.join("sys"), topology),
            run: root.join("run"),
        }
    }

    pub fn of<'b>(&self, all: impl Iterator<Item = MeasuredVm<'b>>) -> Localities {
        Localities {
            instances: all.map(|vm| (vm.pod.to_string(), self.one(vm))).collect(),
            devices_unknown: self.devices.as_ref().err().cloned(),
        }
    }

    /// What cannot be read counts as nothing: an instance may end at any moment.
    fn one(&self, vm: MeasuredVm<'_>) -> Locality {
        let mut memory = MemoryByNode::new();
        // With a tree in place both are the same cgroup.
        let origin = (vm.origin != vm.scope).then_some(vm.origin);
        for cgroup in [vm.scope].into_iter().chain(origin) {
            let read = |file| self.cgroups.read(cgroup, file).unwrap_or_default();
            add_memory(&mut memory, &read(File::MemoryNumaStat));
            for size in &self.pages {
                add_huge_pages(&mut memory, &read(File::HugetlbNumaStat(*size)));
            }
        }
        let state = self.devices.as_ref();
        let cpus = cpus_by_node(self.topology, vm.cpus);
        let nodes: NodeSet = cpus.keys().copied().collect();
        let mut locality = Locality {
            allowed: vm.mems.clone(),
            memory,
            devices: state
                .map(|state| locality::devices(state, (vm.pod, vm.container), &nodes))
                .unwrap_or_default(),
            nodes,
            cpus,
            memory_only: self.memory_only.clone(),
            ..Locality::default()
        };
        if self.has_vfio {
            let resource = |address: &str| self.resource(vm, address);
            let devices = vfio::devices(&self.run, self.vfio.sys(), vm.origin);
            self.vfio.add(&mut locality, &devices, resource);
        }
        locality
    }

    /// The resource by which kubelet gave the container this device: its plugin named the device's group or the device, or its id is the address.
    fn resource(&self, vm: MeasuredVm<'_>, address: &str) -> Option<String> {
        let state = self.devices.as_ref().ok()?;
        let own = state
            .entries
            .iter()
            .filter(|entry| entry.pod == *vm.pod && entry.container == vm.container);
        let mut with = own.filter(|entry| {
            let mut behind = entry.files.iter().flat_map(|file| vfio::of_file(self.vfio.sys(), file));
            behind.any(|one| one == address) || entry.devices.values().any(|ids| ids.contains(address))
        });
        Some(with.next()?.resource.clone())
    }
}
