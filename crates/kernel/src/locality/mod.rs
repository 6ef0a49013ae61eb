//! Whether a VM's memory and devices are where its CPUs are: the NUMA nodes of both, compared.

mod certificate;
mod interrupts;
#[cfg(test)]
mod machines;
mod memory_only;
mod pci;
mod read;

pub use certificate::{PartRow, certificate, recorded};
pub use interrupts::{InterruptCounters, Interrupts};
pub use memory_only::{MemoryKind, MemoryOnlyNode, MemoryPlace};
pub use pci::{Distance, Pair, PciDevice, PciKind, pairs};
pub use read::{MeasuredVm, Reading, VfioDevices};

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use stelia_cpus::located::MAX_REMOTE_PERCENT;
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::{DeviceManagerState, PodUid};

use crate::cgroup::numa_stat::{self, ByNode};

/// Memory on other NUMA nodes than the VM's CPUs is reported if its share is larger than [`MAX_REMOTE_PERCENT`], and if it is more than this, in
/// bytes: QEMU's own heap is a large share of a guest that has touched little.
const MAX_REMOTE_BYTES: u64 = 64 << 20;

/// What a VM holds on one NUMA node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Anonymous memory: a guest's, where QEMU was given no file for it.
    pub anon: u64,
    /// The page cache, [`shmem`](Self::shmem) included.
    pub file: u64,
    /// Shared memory: a guest's on a memfd or in tmpfs.
    pub shmem: u64,
    /// Huge pages of every size.
    pub huge: u64,
}

impl NodeMemory {
    /// The kinds of pages of a guest's memory. The cache of files is not among them: it is reclaimed when
    /// memory is short.
    pub fn counted(&self) -> u64 {
        self.anon.saturating_add(self.shmem).saturating_add(self.huge)
    }
}

/// A VM's memory by NUMA node.
pub type MemoryByNode = BTreeMap<u32, NodeMemory>;

fn add(memory: &mut MemoryByNode, more: Option<ByNode>, field: fn(&mut NodeMemory) -> &mut u64) {
    for (node, bytes) in more.into_iter().flatten() {
        let held = field(memory.entry(node).or_default());
        *held = held.saturating_add(bytes);
    }
}

/// Add what a `memory.numa_stat` says. What it does not say counts as nothing.
pub(crate) fn add_memory(memory: &mut MemoryByNode, text: &str) {
    let counter = |name| numa_stat::counter(text, name);
    add(memory, counter("anon"), |node| &mut node.anon);
    add(memory, counter("file"), |node| &mut node.file);
    add(memory, counter("shmem"), |node| &mut node.shmem);
}

/// Add what a `hugetlb.<size>.numa_stat` says.
pub(crate) fn add_huge_pages(memory: &mut MemoryByNode, text: &str) {
    add(memory, numa_stat::huge_pages(text), |node| &mut node.huge);
}

/// Devices of one kind on one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    /// The resource as pods ask for it, such as `nvidia.com/gpu`.
    pub name: String,
    /// The NUMA node; `None` where its plugin names none.
    pub node: Option<u32>,
    pub count: u32,
}

/// How many devices of each resource a container has on each NUMA node. Ids of devices are left out: only kubelet and
/// its plugins know what they mean.
///
/// A device with several NUMA nodes counts once, on one of those in `near`, the nodes of the VM's CPUs, if it has any of them.
fn devices(state: &DeviceManagerState, (pod, container): (&PodUid, &str), near: &NodeSet) -> Vec<Device> {
    let entries = state.entries.iter();
    let own = entries.filter(|entry| entry.pod == *pod && entry.container == container);
    let mut counts: BTreeMap<(&str, Option<u32>), u32> = BTreeMap::new();
    for entry in own {
        for nodes in entry.nodes_by_id().into_values() {
            let node = nodes.intersection(near).next().or_else(|| nodes.first());
            *counts.entry((&entry.resource, node.copied())).or_default() += 1;
        }
    }
    let device = |((name, node), count): ((&str, _), _)| Device {
        name: name.to_owned(),
        node,
        count,
    };
    counts.into_iter().map(device).collect()
}

/// Where one VM's CPUs, memory and devices are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// The NUMA nodes of the VM's exclusive CPUs; empty where it has none, or they are offline.
    #[serde(with = "stelia_cpus::node_set::as_array")]
    pub nodes: NodeSet,
    /// How many of these CPUs each NUMA node has.
    pub cpus: BTreeMap<u32, u32>,
    /// The memory nodes it may use, as `cpuset.mems` has them; empty: all.
    pub allowed: NodeSet,
    /// What it holds, by NUMA node; empty where the kernel does not say.
    pub memory: MemoryByNode,
    /// Its devices, as kubelet's device file has them.
    pub devices: Vec<Device>,
    /// Its VFIO devices, as the runtime's configuration has them.
    pub pci: Vec<PciDevice>,
    /// The interrupts of these; `None` where it has none, or they cannot be read.
    pub interrupts: Option<Interrupts>,
    /// The host's NUMA nodes with memory and without CPUs.
    pub memory_only: BTreeMap<u32, MemoryOnlyNode>,
}

/// How many of these CPUs each NUMA node has; those that are offline are left out.
pub fn cpus_by_node(topology: &Topology, cpus: &CpuSet) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for (_, cpu) in topology.cpus.iter().filter(|(cpu, _)| cpus.contains(**cpu)) {
        *counts.entry(cpu.node).or_default() += 1;
    }
    counts
}

/// The NUMA nodes of the online CPUs among these.
pub fn nodes(topology: &Topology, cpus: &CpuSet) -> NodeSet {
    cpus_by_node(topology, cpus).into_keys().collect()
}

/// How much of a VM's memory is on some NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShare {
    /// Bytes on these nodes.
    pub bytes: u64,
    /// All bytes.
    pub of: u64,
}

impl MemoryShare {
    /// The share, from 0 to 1; 0 of no memory.
    pub fn ratio(self) -> f64 {
        if self.of == 0 {
            0.0
        } else {
            self.bytes as f64 / self.of as f64
        }
    }

    /// The share in percent, to the nearest.
    pub fn percent(self) -> u64 {
        (self.ratio() * 100.0).round() as u64
    }

    /// Whether it is reported: more than 10 % and than 64 MiB.
    pub fn is_too_much(self) -> bool {
        let more_than = u128::from(self.bytes) * 100 > u128::from(self.of) * u128::from(MAX_REMOTE_PERCENT);
        more_than && self.bytes > MAX_REMOTE_BYTES
    }
}

impl fmt::Display for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} % ({} of {})", self.percent(), size(self.bytes), size(self.of))
    }
}

impl Locality {
    /// Whether this NUMA node is one of its CPUs'.
    pub fn is_own(&self, node: u32) -> bool {
        self.nodes.contains(&node)
    }

    /// How memory on this node, or a device there, counts. Memory of a device belongs to that: it is attached if the device is the VM's,
    /// and remote if it is another's, however near. Other memory without CPUs is attached if the VM has the nearest ones.
    pub fn place(&self, node: u32) -> MemoryPlace {
        if self.is_own(node) {
            return MemoryPlace::Near;
        }
        let belongs = self.memory_only.get(&node).is_some_and(|memory| {
            if memory.kind == MemoryKind::Device {
                let device = memory.device.as_deref();
                return device.is_some_and(|device| self.pci.iter().any(|own| own.is_of(device)));
            }
            !memory.nearest.is_disjoint(&self.nodes)
        });
        if belongs {
            MemoryPlace::Attached
        } else {
            MemoryPlace::Remote
        }
    }

    /// Its memory on nodes of this kind; `None` where it has no exclusive CPUs, or its memory is unknown.
    fn memory_at(&self, place: MemoryPlace) -> Option<MemoryShare> {
        if self.nodes.is_empty() || self.memory.is_empty() {
            return None;
        }
        let sum = |only: Option<MemoryPlace>| {
            let nodes = self
                .memory
                .iter()
                .filter(|(node, _)| only.is_none_or(|only| self.place(**node) == only));
            nodes.fold(0u64, |sum, (_, memory)| sum.saturating_add(memory.counted()))
        };
        Some(MemoryShare {
            bytes: sum(Some(place)),
            of: sum(None),
        })
    }

    /// How much of its memory is remote; `None` where it has no exclusive CPUs, or its memory is unknown.
    pub fn away(&self) -> Option<MemoryShare> {
        self.memory_at(MemoryPlace::Remote)
    }

    /// How much of its memory is on NUMA nodes without CPUs that belong to its own; `None` as for [`away`](Self::away).
    pub fn attached(&self) -> Option<MemoryShare> {
        self.memory_at(MemoryPlace::Attached)
    }

    /// What these nodes have of its memory, `512 MiB on 1, 1.0 GiB on 2`.
    fn memory_on(&self, place: MemoryPlace) -> String {
        let there = self.memory.iter().filter(|(node, _)| self.place(**node) == place);
        let there = there.filter(|(_, memory)| memory.counted() > 0);
        let there = there.map(|(node, memory)| match self.memory_only.get(node) {
            None => format!("{} on {node}", size(memory.counted())),
            Some(only) => format!("{} on {node} ({})", size(memory.counted()), only.words()),
        });
        there.collect::<Vec<_>>().join(", ")
    }

    /// Whether kubelet's device file has the NUMA node of a resource.
    fn has_node(&self, resource: &str) -> bool {
        let same = self.devices.iter().filter(|device| device.name == resource);
        same.into_iter().any(|device| device.node.is_some())
    }

    /// Its devices on other NUMA nodes than its CPUs', each with its node; none where either's NUMA node is unknown. A device that kubelet gave
    /// is named by its resource, once.
    fn devices_away(&self) -> Vec<(String, u32)> {
        let of_kubelet = self.devices.iter().map(|device| match device.count {
            1 => (device.name.clone(), device.node),
            count => (format!("{count} × {}", device.name), device.node),
        });
        let known = |device: &&PciDevice| {
            let resource = device.resource.as_deref();
            !resource.is_some_and(|resource| self.has_node(resource))
        };
        let of_pci = self.pci.iter().filter(known).map(|device| (device.name(), device.node));
        let all = of_kubelet.chain(of_pci).filter_map(|(name, node)| Some((name, node?)));
        all.filter(|(_, node)| !self.nodes.is_empty() && self.place(*node) == MemoryPlace::Remote)
            .collect()
    }

    /// What is reported of its memory; `None` if nothing is wrong.
    pub fn memory_problem(&self) -> Option<String> {
        let away = self.away().filter(|away| away.is_too_much())?;
        Some(format!(
            "{away} of its memory is remote from its CPUs on {}: {}",
            numa_nodes(&self.nodes),
            self.memory_on(MemoryPlace::Remote)
        ))
    }

    /// What is said of memory on NUMA nodes without CPUs that belong to its own, if it is as much as would be reported of remote memory.
    pub fn attached_note(&self) -> Option<String> {
        let attached = self.attached().filter(|attached| attached.is_too_much())?;
        let there = self.memory_on(MemoryPlace::Attached);
        Some(format!(
            "{attached} of its memory is on NUMA nodes without CPUs that belong to it: {there}"
        ))
    }

    /// What is reported of its devices; `None` if nothing is wrong.
    pub fn devices_problem(&self) -> Option<String> {
        let away = self.devices_away().into_iter();
        let away: Vec<String> = away.map(|(name, node)| format!("{name} on {node}")).collect();
        let text = || {
            let (nodes, away) = (numa_nodes(&self.nodes), away.join(", "));
            format!("devices are remote from its CPUs on {nodes}: {away}")
        };
        (!away.is_empty()).then(text)
    }

    /// How to get memory near the CPUs, or why it may be elsewhere.
    pub fn memory_cure(&self) -> String {
        let strays = self.memory.iter().any(|(node, memory)| {
            memory.counted() > 0 && self.place(*node) == MemoryPlace::Remote && self.allowed.contains(node)
        });
        if strays {
            let allowed = &self.allowed;
            return format!(
                "its memory nodes are {allowed}: kubelet's choice, or the VM does not fit on fewer (/usr/share/doc/steliad/locality.md)"
            );
        }
        "memoryManagerPolicy: Static, then start the container anew where its NUMA nodes have the memory free (/usr/share/doc/steliad/locality.md)"
            .to_owned()
    }
}

/// The VMs of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Localities {
    /// Each VM by its pod's UID.
    pub instances: BTreeMap<String, Locality>,
    /// Why kubelet's device file cannot be used: no devices are known then.
    pub devices_unknown: Option<String>,
}

/// `NUMA 0`, `NUMA 0-1`
pub fn numa_nodes(nodes: &NodeSet) -> String {
    format!("NUMA {nodes}")
}

/// Bytes for readers: three digits and the unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut number, mut at) = (bytes as f64, 0);
    while number >= 1000.0 && at + 1 < UNITS.len() {
        (number, at) = (number / 1024.0, at + 1);
    }
    let digits = if at == 0 || number >= 99.95 { 0 } else { 1 };
    format!("{number:.digits$} {}", UNITS[at])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stelia_cpus::testing::Shape;
    use stelia_kubelet::devices::DeviceEntry;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A VM whose CPUs are on node 0, with so many MiB of anonymous memory on each node.
    fn vm(mib: &[u64]) -> Locality {
        let node = |(node, mib): (usize, &u64)| {
            let memory = NodeMemory {
                anon: mib * MIB,
                ..NodeMemory::default()
            };
            (u32::try_from(node).unwrap(), memory)
        };
        Locality {
            nodes: [0].into(),
            memory: mib.iter().enumerate().map(node).collect(),
            ..Locality::default()
        }
    }

    #[test]
    fn a_tenth_or_little_is_borne_and_more_is_told() {
        for (mib, told) in [
            (vec![1024, 0], false),
            (vec![900, 100], false),
            (vec![899, 101], true),
            (vec![512, 512], true),
            // All of it, and little: a guest that has touched nothing yet.
            (vec![0, 64], false),
            (vec![0, 65], true),
            (vec![], false),
            (vec![0, 0], false),
        ] {
            assert_eq!(vm(&mib).memory_problem().is_some(), told, "{mib:?}");
        }
    }

    #[test]
    fn a_vm_without_cpus_of_its_own_is_near_to_everything() {
        let mut vm = vm(&[0, 1024]);
        vm.nodes.clear();
        vm.devices = vec![device("nic", Some(1), 1)];
        assert_eq!(
            (vm.away(), vm.memory_problem(), vm.devices_problem()),
            (None, None, None)
        );
    }

    #[test]
    fn huge_pages_and_shared_memory_count_and_the_page_cache_does_not() {
        let mut memory = MemoryByNode::new();
        add_memory(
            &mut memory,
            "anon N0=1 N1=2\nfile N0=1000 N1=30\nshmem N0=0 N1=10\nfile_mapped N0=7 N1=7\n",
        );
        add_huge_pages(&mut memory, "total=300 N0=100 N1=200\n");
        add_huge_pages(&mut memory, "total=4000 N0=4000 N1=0");
        add_memory(&mut memory, "anon N0=5 N1=0\n");
        let node = |anon, file, shmem, huge| NodeMemory {
            anon,
            file,
            shmem,
            huge,
        };
        assert_eq!(memory, [(0, node(6, 1000, 0, 4100)), (1, node(2, 30, 10, 200))].into());
        let vm = Locality {
            nodes: [0].into(),
            memory,
            ..Locality::default()
        };
        assert_eq!(vm.away(), Some(MemoryShare { bytes: 212, of: 4318 }));
    }

    /// What Linux 6.12 printed of a VM's scope, whose 256 MiB QEMU laid on both nodes in turn.
    #[test]
    fn a_genuine_file_of_a_vm_that_is_away_says_so() {
        let mut memory = MemoryByNode::new();
        add_memory(
            &mut memory,
            include_str!("../../../../tests/data/numa-stat/memory.numa_stat"),
        );
        let vm = Locality {
            nodes: [0].into(),
            memory,
            ..Locality::default()
        };
        let away = MemoryShare {
            bytes: 134_217_728,
            of: 281_989_120,
        };
        assert_eq!((vm.away(), away.percent()), (Some(away), 48));
        assert!(vm.memory_problem().is_some());
    }

    fn device(name: &str, node: Option<u32>, count: u32) -> Device {
        let name = name.to_owned();
        Device { name, node, count }
    }

    #[test]
    fn devices_elsewhere_are_named_and_those_nobody_knows_of_are_not() {
        let mut vm = vm(&[1, 0]);
        vm.devices = vec![
            device("devices.kubevirt.io/kvm", None, 1),
            device("nvidia.com/gpu", Some(0), 1),
            device("nvidia.com/gpu", Some(1), 2),
            device("vendor.com/nic", Some(1), 1),
        ];
        assert_eq!(
            vm.devices_problem().unwrap(),
            "devices are remote from its CPUs on NUMA 0: 2 × nvidia.com/gpu on 1, vendor.com/nic on 1"
        );
        vm.nodes.insert(1);
        assert_eq!(vm.devices_problem(), None);
    }

    #[test]
    fn a_device_with_several_numa_nodes_counts_once_and_is_near_if_one_of_them_is() {
        let pod = PodUid::parse("ce32ebd2-f905-449e-b74b-4231a84b88e1").unwrap();
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let entry = |resource: &str, devices: [(Option<u32>, &[&str]); 2]| DeviceEntry {
            pod: pod.clone(),
            container: "instance".to_owned(),
            resource: resource.to_owned(),
            devices: devices.map(|(node, of)| (node, ids(of))).into(),
            files: BTreeSet::new(),
        };
        let state = DeviceManagerState {
            entries: vec![
                entry("gpu", [(Some(0), &["a", "b"]), (Some(1), &["a", "c"])]),
                entry("nic", [(None, &["d"]), (Some(1), &["e"])]),
            ],
            ..DeviceManagerState::default()
        };
        for (near, gpus) in [(0, [2, 1]), (1, [1, 2]), (2, [2, 1])] {
            let found = devices(&state, (&pod, "instance"), &[near].into());
            let [zero, one] = gpus;
            let expected = [
                device("gpu", Some(0), zero),
                device("gpu", Some(1), one),
                device("nic", None, 1),
                device("nic", Some(1), 1),
            ];
            assert_eq!(found, expected, "CPUs on {near}");
        }
        assert_eq!(devices(&state, (&pod, "other"), &[0].into()), []);

        let mut both = state.clone();
        both.entries = vec![entry("gpu", [(Some(0), &["a"]), (Some(1), &["a"])])];
        let mut vm = vm(&[1, 0]);
        vm.devices = devices(&both, (&pod, "instance"), &vm.nodes);
        assert_eq!(vm.devices_problem(), None);
        let row = &certificate(&vm)[1];
        assert_eq!(
            (row.name.as_str(), row.amount, row.located().near_percent),
            ("gpu", 1, 100)
        );
    }

    #[test]
    fn the_cure_tells_a_choice_from_an_accident() {
        let mut vm = vm(&[512, 512]);
        assert!(vm.memory_cure().starts_with("memoryManagerPolicy"));
        vm.allowed = [0, 1].into();
        assert!(vm.memory_cure().starts_with("its memory nodes are 0-1"));
        // It was moved there before it was held to node 0.
        vm.allowed = [0].into();
        assert!(vm.memory_cure().starts_with("memoryManagerPolicy"));
    }

    #[test]
    fn the_nodes_of_cpus_are_those_of_the_online_ones() {
        let shape = Shape::new(2, 2, 2);
        let of = |cpus: &str| nodes(&shape.topology(), &cpus.parse().unwrap()).to_string();
        assert_eq!(
            [of("0-1"), of("2-5"), of("7,99"), of("99"), of("")],
            ["0", "0-1", "1", "", ""]
        );
    }

    #[test]
    fn sizes_have_two_or_three_digits() {
        let small = [0, 999, 1000, 99 << 10].map(size);
        assert_eq!(small, ["0 B", "999 B", "1.0 KiB", "99.0 KiB"]);
        let large = [512 * MIB, 1023 * MIB, 80 << 30, u64::MAX].map(size);
        assert_eq!(large, ["512 MiB", "1.0 GiB", "80.0 GiB", "16384 PiB"]);
    }
}
