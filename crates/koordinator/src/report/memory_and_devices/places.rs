//! Where devices are: by kubelet's record of those in use, and by what the ids of others say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stelia_api::VM_RESOURCE;
use stelia_cpus::NodeSet;
use stelia_kubelet::DeviceManagerState;
use stelia_kubelet::devices::DeviceEntry;

/// Below `/sys`.
const PCI_DEVICES: &str = "bus/pci/devices";
/// The files of IOMMU groups are here, by the groups' numbers.
const VFIO_FILES: &str = "/dev/vfio/";
/// Below `/`: a folder for each GPU of the host's driver, named by its PCI address.
const NVIDIA_GPUS: &str = "proc/driver/nvidia/gpus";
const GPU_UUID: &str = "GPU-";
const GPU_NUMBER: &str = "nvidia";
/// The plugin of `virt-handler` for `/dev/kvm` and other files without a place (KubeVirt's `generic_device.go`).
const KUBEVIRT_FILES: &str = "devices.kubevirt.io/";

/// What is known of the NUMA nodes that a plugin reports for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Nodes(NodeSet),
    /// The plugin reports no NUMA node.
    NoNodes,
    Unknown,
}

impl Place {
    /// The only NUMA node.
    pub(super) fn single(&self) -> Option<u32> {
        match self {
            Self::Nodes(nodes) if nodes.len() == 1 => nodes.first().copied(),
            _ => None,
        }
    }
}

/// Where the healthy devices of a resource are.
///
/// kubelet's record has the NUMA nodes of devices that a container has or had, and so shows whether the plugin reports any: one whose recorded devices
/// have none reports none, whatever the kernel knows (`excludeTopology` of SR-IOV's plugin). `by_id` says where others are.
pub fn places<'a>(
    state: &'a DeviceManagerState,
    resource: &str,
    by_id: impl Fn(&str) -> Place,
) -> BTreeMap<&'a str, Place> {
    let mut recorded: BTreeMap<&str, NodeSet> = BTreeMap::new();
    for entry in state.entries.iter().filter(|entry| entry.resource == resource) {
        for (id, nodes) in entry.nodes_by_id() {
            recorded.entry(device_of(id)).or_default().extend(nodes);
        }
    }
    let reports_none = !recorded.is_empty() && recorded.values().all(|nodes| nodes.is_empty());
    let nowhere = reports_none || resource == VM_RESOURCE || resource.starts_with(KUBEVIRT_FILES);
    let ids = state.registered.get(resource).into_iter().flatten();
    let place = |id: &'a String| match recorded.get(device_of(id)) {
        Some(nodes) if !nodes.is_empty() => Place::Nodes(nodes.clone()),
        Some(_) => Place::NoNodes,
        None if nowhere => Place::NoNodes,
        None => by_id(device_of(id)),
    };
    ids.map(|id| (id.as_str(), place(id))).collect()
}

/// Where the devices of a resource are, by what the kernel and NVIDIA's driver have for their ids.
#[derive(Debug, Clone)]
pub struct DevicePlaces {
    sys: PathBuf,
    /// NVIDIA's GPUs, a folder for each.
    gpus: PathBuf,
    /// Whether numbers are those of IOMMU groups, and not the plugin's own.
    ids_are_iommu_groups: bool,
}

impl DevicePlaces {
    /// IDs that are numbers count as IOMMU groups if the plugin gave a container the files of the groups that are its devices' ids, or if every
    /// id of the
    /// resource is a group of devices that vfio-pci drives; and in both cases only if no container has other files, or those of other groups:
    /// `0`, `1` and `2` may be any plugin's. `root`: `/`.
    pub fn new(root: &Path, state: &DeviceManagerState, resource: &str) -> Self {
        let sys = root.join("sys");
        let entries = state.entries.iter().filter(|entry| entry.resource == resource);
        let shown: BTreeSet<bool> = entries.filter_map(ids_are_groups).collect();
        let ids = state.registered.get(resource);
        let are_groups = |ids: &BTreeSet<String>| ids.iter().all(|id| !vfio_devices(&sys, id).is_empty());
        Self {
            ids_are_iommu_groups: !shown.contains(&false) && (shown.contains(&true) || ids.is_some_and(are_groups)),
            gpus: root.join(NVIDIA_GPUS),
            sys,
        }
    }

    /// Where a device is by its id: a PCI address (`0000:3b:02.1`, `10000:03:00.0`), as SR-IOV's plugins give them, the number of an IOMMU group, as
    /// KubeVirt's plugin gives them, or a GPU's UUID or number, as NVIDIA's and GKE's plugins do. Other ids, and instances of MIG, say nothing.
    pub fn by_id(&self, id: &str) -> Place {
        if is_pci_address(id) {
            return self.pci(id);
        }
        if is_gpu(id) {
            return self.gpu(id).map_or(Place::Unknown, |address| self.pci(&address));
        }
        let of_group = self
            .ids_are_iommu_groups
            .then(|| vfio_devices(&self.sys, id))
            .into_iter()
            .flatten();
        let places: Vec<Place> = of_group.map(|device| numa_node(&device)).collect();
        match places.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => first.clone(),
            _ => Place::Unknown,
        }
    }

    fn pci(&self, address: &str) -> Place {
        numa_node(&self.sys.join(PCI_DEVICES).join(address.to_lowercase()))
    }

    /// The PCI address of a GPU that the host's driver has.
    fn gpu(&self, id: &str) -> Option<String> {
        let (key, value) = match id.strip_prefix(GPU_NUMBER) {
            Some(number) => ("Device Minor", number),
            None => ("GPU UUID", id),
        };
        let is_it = |line: &str| {
            line.split_once(':')
                .is_some_and(|(name, text)| name == key && text.trim() == value)
        };
        let mut folders = fs::read_dir(&self.gpus).ok()?.flatten();
        let folder = folders.find(|folder| {
            let text = fs::read_to_string(folder.path().join("information"));
            text.is_ok_and(|text| text.lines().any(is_it))
        })?;
        folder.file_name().into_string().ok()
    }
}

/// `GPU-` and a UUID, or `nvidia` and a number.
fn is_gpu(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    id.starts_with(GPU_UUID) || id.strip_prefix(GPU_NUMBER).is_some_and(is_number)
}

/// The physical device of an id: a GPU that is shared has an id for each share (`UUID::1` of NVIDIA's plugin, `nvidia0/vgpu1` of GKE's), and so have
/// instances of MIG (`nvidia0/gi0`; `MIG-GPU-UUID/1/0` of drivers before 470).
fn device_of(id: &str) -> &str {
    let id = id.split_once("::").map_or(id, |(device, _)| device);
    let gpu = id.strip_prefix("MIG-").unwrap_or(id);
    let gpu = gpu.split_once('/').map_or(gpu, |(gpu, _)| gpu);
    if is_gpu(gpu) { gpu } else { id }
}

/// Whether the ids of a container's devices are the numbers of the IOMMU groups of which it has the files. `None` where that is not seen: it has no
/// files for them, or those of iommufd, which have numbers of their own.
fn ids_are_groups(entry: &DeviceEntry) -> Option<bool> {
    if entry.files.is_empty() {
        return None;
    }
    let of_vfio: Vec<&str> = entry
        .files
        .iter()
        .filter_map(|file| file.strip_prefix(VFIO_FILES))
        .collect();
    if of_vfio.is_empty() {
        return Some(false);
    }
    // A group of a host without an IOMMU has that before its number.
    let numbers = of_vfio
        .into_iter()
        .map(|name| name.strip_prefix("noiommu-").unwrap_or(name));
    let groups: BTreeSet<&str> = numbers.filter(|name| name.parse::<u32>().is_ok()).collect();
    let mut ids = entry.devices.values().flatten();
    (!groups.is_empty()).then(|| ids.all(|id| groups.contains(id.as_str())))
}

/// The devices of the IOMMU group with this number that vfio-pci drives. Bridges may be in the group too.
fn vfio_devices(sys: &Path, group: &str) -> Vec<PathBuf> {
    let number = group.parse::<u32>().ok().filter(|number| number.to_string() == group);
    let folder = number.map(|number| sys.join(format!("kernel/iommu_groups/{number}/devices")));
    let of_group = folder
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten();
    let of_group = of_group
        .flatten()
        .map(|entry| sys.join(PCI_DEVICES).join(entry.file_name()));
    let is_given_away = |device: &PathBuf| {
        let driver = fs::read_link(device.join("driver"));
        driver.is_ok_and(|driver| driver.ends_with("vfio-pci"))
    };
    of_group.filter(is_given_away).collect()
}

fn is_pci_address(id: &str) -> bool {
    // A domain has 4 hexadecimal digits, and more above 0xffff (Volume Management Devices).
    let Some((domain, rest)) = id.split_once(':') else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shape = |(at, byte): (usize, u8)| match at {
        2 => byte == b':',
        5 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    (4..=8).contains(&domain.len()) && is_hex(domain) && rest.len() == 7 && rest.bytes().enumerate().all(shape)
}

/// -1 is no node.
fn numa_node(device: &Path) -> Place {
    let text = fs::read_to_string(device.join("numa_node"));
    match text.ok().and_then(|text| text.trim().parse::<i64>().ok()) {
        Some(number) => u32::try_from(number).map_or(Place::NoNodes, |node| Place::Nodes([node].into())),
        None => Place::Unknown,
    }
}
