//! What is read of machines that differ from a server with memory and CPUs on every node: `tests/data/sysfs`, whose README has their origins.

use std::path::Path;

use stelia_cpus::located::{Located, Part};
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::PodUid;

use super::read::{memory_only, pci};
use super::*;
use crate::cgroup::{CgroupPath, KernelCgroups};
use crate::test_root::Root;

const GIB: u64 = 1 << 30;

/// The tree of this extract.
fn machine(extract: &str) -> Root {
    let root = Root::new();
    for line in extract.lines() {
        match (line.split_once(" = "), line.split_once(" -> ")) {
            (Some((path, text)), _) => root.file(path, format!("{text}\n")),
            (None, Some((path, target))) => root.link(target, path),
            (None, None) => panic!("{line}"),
        };
    }
    root
}

fn node(kind: MemoryKind, device: Option<&str>, nearest: &[u32]) -> MemoryOnlyNode {
    MemoryOnlyNode {
        kind,
        device: device.map(str::to_owned),
        nearest: nearest.iter().copied().collect(),
    }
}

/// A VM with its CPUs on this node and so many GiB of memory on each.
fn vm(own: u32, memory_only: BTreeMap<u32, MemoryOnlyNode>, gib: &[(u32, u64)]) -> Locality {
    let memory = |gib: u64| NodeMemory {
        anon: gib * GIB,
        ..NodeMemory::default()
    };
    Locality {
        nodes: [own].into(),
        cpus: [(own, 4)].into(),
        memory: gib.iter().map(|(node, gib)| (*node, memory(*gib))).collect(),
        memory_only,
        ..Locality::default()
    }
}

fn devices(root: &Path, addresses: &[&str]) -> Vec<PciDevice> {
    let sys = root.join("sys");
    addresses
        .iter()
        .map(|address| pci::device(&sys, address).unwrap_or_else(|| panic!("{address}")))
        .collect()
}

#[test]
fn a_cxl_expander_is_attached_to_the_socket_it_is_plugged_into_and_remote_from_the_other() {
    let root = machine(include_str!("../../../../tests/data/sysfs/cxl-expander.txt"));
    let found = memory_only::nodes(&root);
    let expected = [
        (2, node(MemoryKind::Cxl, None, &[0])),
        (3, node(MemoryKind::Cxl, None, &[1])),
    ];
    assert_eq!(found, expected.into());

    let vm = vm(0, found, &[(0, 4), (2, 4), (3, 2)]);
    let (near, attached, remote) = (MemoryPlace::Near, MemoryPlace::Attached, MemoryPlace::Remote);
    assert_eq!(
        [0, 1, 2, 3].map(|node| vm.place(node)),
        [near, remote, attached, remote]
    );
    let (away, attached) = (vm.away().unwrap(), vm.attached().unwrap());
    assert_eq!((away.percent(), attached.percent()), (20, 40));
    assert_eq!(
        vm.memory_problem().unwrap(),
        "20 % (2.0 GiB of 10.0 GiB) of its memory is remote from its CPUs on NUMA 0: 2.0 GiB on 3 (CXL memory, nearest to 1)"
    );
    assert_eq!(
        vm.attached_note().unwrap(),
        "40 % (4.0 GiB of 10.0 GiB) of its memory is on NUMA nodes without CPUs that belong to it: 4.0 GiB on 2 (CXL memory, nearest to 0)"
    );
    let rows = certificate(&vm);
    let memory = rows[1].located();
    let shares = (memory.near_percent, memory.attached_percent, memory.remote());
    assert_eq!(
        (shares, memory.nodes),
        ((40, 40, Some(20)), vec![(0, 40), (2, 40), (3, 20)])
    );
}

#[test]
fn the_memory_of_graces_gpu_belongs_to_the_gpu_however_near() {
    let root = machine(include_str!("../../../../tests/data/sysfs/grace-hopper.txt"));
    let found = memory_only::nodes(&root);
    // One of the GPU's eight nodes has memory; the others are for its instances (MIG).
    let gpu = "0009:01:00.0";
    assert_eq!(found, [(1, node(MemoryKind::Device, Some(gpu), &[0]))].into());
    assert_eq!(found[&1].words(), "memory of 0009:01:00.0, nearest to 0");

    let mut vm = vm(0, found, &[(0, 1), (1, 1)]);
    assert_eq!((vm.place(1), vm.away().unwrap().percent()), (MemoryPlace::Remote, 50));
    vm.pci = devices(&root, &[gpu]);
    assert_eq!((vm.place(1), vm.away().unwrap().percent()), (MemoryPlace::Attached, 0));
    assert_eq!(vm.memory_problem(), None);
    assert_eq!(vm.devices_problem(), None);
}

#[test]
fn a_grace_gpu_that_a_vm_has_gives_the_kernel_no_memory() {
    let root = machine(include_str!("../../../../tests/data/sysfs/grace-hopper-vfio.txt"));
    assert_eq!(memory_only::nodes(&root), BTreeMap::new());
    let device = &devices(&root, &["0009:01:00.0"])[0];
    assert_eq!(
        (device.kind(), device.node, device.details().as_str()),
        (PciKind::Gpu, Some(0), "10de:2342")
    );
}

#[test]
fn equal_distances_of_gpus_memory_tell_no_node_but_the_driver_tells_the_gpu() {
    let root = machine(include_str!("../../../../tests/data/sysfs/power9-nvlink.txt"));
    let found = memory_only::nodes(&root);
    assert_eq!(found.len(), 6);
    assert_eq!(found[&255], node(MemoryKind::Device, Some("0004:05:00.0"), &[]));
    assert_eq!(found[&250], node(MemoryKind::Device, Some("0035:05:00.0"), &[]));
    let mut vm = vm(0, found, &[(0, 1), (255, 1), (250, 1)]);
    vm.pci = devices(&root, &["0004:05:00.0"]);
    assert_eq!(
        [vm.place(255), vm.place(250), vm.place(8)],
        [MemoryPlace::Attached, MemoryPlace::Remote, MemoryPlace::Remote]
    );
}

#[test]
fn the_firmwares_initiators_decide_and_a_device_that_computes_has_no_cpus() {
    let root = machine(include_str!("../../../../tests/data/sysfs/initiators.txt"));
    let found = memory_only::nodes(&root);
    let nearest: Vec<(u32, String)> = found
        .iter()
        .map(|(node, one)| (*node, one.nearest.to_string()))
        .collect();
    let expected = [(5, "0"), (6, "2"), (7, "0,2"), (8, "1"), (9, "3"), (10, "1,3")];
    assert_eq!(nearest, expected.map(|(node, near)| (node, near.to_owned())));
    assert!(found.values().all(|one| one.kind == MemoryKind::Other));
    assert_eq!(vm(2, found, &[]).place(7), MemoryPlace::Attached);
}

#[test]
fn a_gpu_and_a_card_are_as_far_apart_as_nvidia_smi_says() {
    let of = |extract: &str, addresses: &[&str]| -> Vec<(String, String, Option<Distance>)> {
        let found = devices(&machine(extract), addresses);
        let address = |device: &PciDevice| device.address.clone();
        let distances = pairs(&found).into_iter();
        distances
            .map(|pair| (address(pair.gpu), address(pair.nic), pair.distance))
            .collect()
    };
    let pair = |gpu: &str, nic: &str, distance| (gpu.to_owned(), nic.to_owned(), Some(distance));
    let dgx = include_str!("../../../../tests/data/sysfs/dgx-a100.txt");
    let (gpu, near, far) = ("0000:07:00.0", "0000:0c:00.0", "0000:61:00.0");
    let expected = [pair(gpu, near, Distance::Switches), pair(gpu, far, Distance::System)];
    assert_eq!(of(dgx, &[gpu, near, far]), expected);
    let hgx = include_str!("../../../../tests/data/sysfs/hgx-h100.txt");
    let (other, beside, nic) = ("0000:b8:00.0", "0000:d9:00.0", "0000:da:00.0");
    let expected = [pair(other, nic, Distance::Node), pair(beside, nic, Distance::Switch)];
    assert_eq!(of(hgx, &[other, beside, nic]), expected);
}

#[test]
fn firmware_without_numa_nodes_leaves_the_host_bridge() {
    let root = machine(include_str!("../../../../tests/data/sysfs/server-2010.txt"));
    let found = devices(&root, &["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:09:03.0"]);
    let kinds: Vec<PciKind> = found.iter().map(PciDevice::kind).collect();
    assert_eq!(kinds, [PciKind::Storage, PciKind::Nic, PciKind::Nic, PciKind::Gpu]);
    assert!(found.iter().all(|device| device.node.is_none()));
    let all = pairs(&found);
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|pair| pair.distance == Some(Distance::HostBridge)));
    // Below another host bridge nothing is known.
    let elsewhere = PciDevice {
        path: vec!["pci0000:80".to_owned(), "0000:80:01.0".to_owned()],
        ..found[1].clone()
    };
    assert_eq!(found[3].distance(&elsewhere), None);
}

#[test]
fn a_mediated_device_and_a_virtual_function_are_parts_of_their_gpu() {
    let root = machine(include_str!("../../../../tests/data/sysfs/vgpu.txt"));
    let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
    let found = devices(&root, &[uuid, "0000:41:00.4"]);
    assert_eq!(found[0].name(), format!("GPU {uuid}"));
    assert_eq!(found[0].details(), "10de:20b0, GRID A100-1-5C of 0000:41:00.0");
    assert_eq!(found[1].details(), "10de:20b0, VF of 0000:41:00.0");
    assert!(
        found
            .iter()
            .all(|part| part.is_of("0000:41:00.0") && part.node == Some(1))
    );
    assert_eq!(
        pci::device(&root.join("sys"), "0000:40:01.1"),
        None,
        "a bridge is the host's"
    );
    assert_eq!(pci::device(&root.join("sys"), "0000:99:00.0"), None);
}

/// kubelet's file, the runtime's configuration and `/sys` lead to one row a device.
#[test]
fn a_vm_with_a_vgpu_has_its_resource_and_its_interrupts() {
    let root = machine(include_str!("../../../../tests/data/sysfs/vgpu.txt"));
    let bundle = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json";
    root.file(
        bundle,
        r#"{"linux": {"devices": [{"type": "c", "major": 243, "minor": 77}, {"type": "c", "major": 243, "minor": 78}]}}"#,
    );
    for group in [77, 78] {
        let target = format!("../../devices/virtual/vfio/{group}");
        root.link(target, &format!("sys/dev/char/243:{group}"));
    }
    root.file(
        "proc/interrupts",
        "           CPU0       CPU1\n 40:          3          1  IR-PCI-MSIX-0000:41:00.4  0-edge  vfio-msix[0](0000:41:00.4)\n",
    );
    root.file("proc/irq/40/effective_affinity_list", "1\n");
    let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
    let scope = CgroupPath::parse("/stelia.slice/vm.scope").unwrap();
    let origin = format!(
        "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-c1.scope",
        pod.as_str().replace('-', "_")
    );
    let origin = CgroupPath::parse(&origin).unwrap();
    let shape = stelia_cpus::testing::Shape::new(2, 1, 1);
    let (topology, cpus): (Topology, CpuSet) = (shape.topology(), "1".parse().unwrap());
    let cgroups = KernelCgroups::new(root.join("cgroup"));
    let whose = MeasuredVm {
        pod: &pod,
        container: "vm",
        cpus: &cpus,
        mems: &NodeSet::new(),
        scope: &scope,
        origin: &origin,
    };
    let reading = Reading::new(&cgroups, &topology, &root, &root.join("kubelet"));
    let read = &reading.of([whose].into_iter()).instances[pod.as_str()];
    let rows = certificate(read);
    let told: Vec<(Part, &str, u8)> = rows
        .iter()
        .map(|row| (row.part, row.name.as_str(), row.located().near_percent))
        .collect();
    assert_eq!(
        told,
        [
            (Part::Cpus, "", 100),
            (Part::Device, "GPU 0000:41:00.4", 100),
            (Part::Device, "GPU 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", 100),
            (Part::Interrupts, "", 25),
        ]
    );
    assert_eq!(rows[3].details, "1 vector, now to 1");

    // What the VM's processes have open is added once.
    let mut again = read.clone();
    let opened = ["0000:41:00.4", "0000:41:00.0"].map(str::to_owned).into();
    VfioDevices::new(&root.join("proc"), &root.join("sys"), &topology).add(&mut again, &opened, |_| None);
    let addresses: Vec<&str> = again.pci.iter().map(|device| device.address.as_str()).collect();
    assert_eq!(
        addresses,
        ["0000:41:00.0", "0000:41:00.4", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"]
    );
}

#[test]
fn a_mig_instance_is_known_by_its_resource_alone() {
    let mut vm = vm(0, BTreeMap::new(), &[]);
    let device = |name: &str, node| Device {
        name: name.to_owned(),
        node,
        count: 1,
    };
    vm.devices = vec![
        device("nvidia.com/mig-1g.10gb", Some(0)),
        device("nvidia.com/mig-1g.10gb", Some(1)),
        device("devices.kubevirt.io/kvm", None),
    ];
    let rows = certificate(&vm);
    let told = rows[1..].iter().map(|row| {
        let (name, details) = (row.name.as_str(), row.details.as_str());
        (name, details, row.amount, row.located().near_percent)
    });
    let kvm = ("devices.kubevirt.io/kvm", "", 1, 0);
    let mig = ("nvidia.com/mig-1g.10gb", "MIG", 2, 50);
    assert_eq!(told.collect::<Vec<_>>(), [kvm, mig]);
    assert_eq!(rows[1].located().remote(), None, "its node is not known");
}

#[test]
fn a_device_that_kubelet_gave_is_reported_once() {
    let mut vm = vm(0, BTreeMap::new(), &[]);
    let gpu = |resource: Option<&str>, node| PciDevice {
        address: "0000:3b:00.0".to_owned(),
        class: 0x03_0200,
        node,
        resource: resource.map(str::to_owned),
        ..PciDevice::default()
    };
    vm.pci = vec![gpu(Some("nvidia.com/GH100"), Some(1))];
    let of_plugin = |node| Device {
        name: "nvidia.com/GH100".to_owned(),
        node,
        count: 1,
    };
    let problem = |vm: &Locality| vm.devices_problem().unwrap().split_once(": ").unwrap().1.to_owned();
    vm.devices = vec![of_plugin(Some(1))];
    assert_eq!(problem(&vm), "nvidia.com/GH100 on 1");
    assert_eq!(certificate(&vm).len(), 2, "CPUs and one device");
    // Its plugin reports no NUMA node; the kernel does.
    vm.devices = vec![of_plugin(None)];
    assert_eq!(problem(&vm), "GPU 0000:3b:00.0 on 1");
    vm.devices.clear();
    assert_eq!(problem(&vm), "GPU 0000:3b:00.0 on 1");
}

#[test]
fn a_share_that_is_not_all_is_not_100_and_one_that_is_something_not_0() {
    let mut vm = vm(0, BTreeMap::new(), &[(0, 1000), (1, 1)]);
    let memory = certificate(&vm)[1].located();
    assert_eq!((memory.nodes, memory.near_percent), (vec![(0, 99), (1, 1)], 99));
    vm.nodes.clear();
    assert!(certificate(&vm).is_empty());
}

#[test]
fn interrupts_are_recorded_by_what_fired_last_and_shown_since_then_while_they_go_there() {
    let mut vm = vm(0, BTreeMap::new(), &[]);
    let interrupts = |targets: &[(u32, u32)], fired: &[(u32, u64)]| Interrupts {
        vectors: targets.iter().map(|(_, vectors)| vectors).sum(),
        targets: targets.iter().copied().collect(),
        fired: fired.iter().copied().collect(),
        ..Interrupts::default()
    };
    let of_interrupts = |parts: Vec<Located>| parts.into_iter().find(|one| one.part == Part::Interrupts).unwrap();
    let shown = |vm: &Locality, record: &Located| {
        let rows = certificate(vm);
        let row = rows.iter().find(|row| row.part == Part::Interrupts).unwrap();
        let shown = row.shown(vm, std::slice::from_ref(record));
        (row.amount, shown.near_percent, shown.nodes, shown.since_us)
    };
    // Most fired on the other node before they were moved to the VM's.
    vm.interrupts = Some(interrupts(&[(0, 2)], &[(0, 10), (1, 5000)]));
    let first = of_interrupts(recorded(&vm, BTreeMap::new(), &[]));
    assert_eq!(first.nodes, [(0, 100)], "where they go");
    let fired = BTreeMap::from([(0, 97), (1, 3)]);
    let mut record = of_interrupts(recorded(&vm, fired, std::slice::from_ref(&first)));
    assert_eq!(record.nodes, [(0, 97), (1, 3)]);
    record.since_us = 7;
    let quiet = of_interrupts(recorded(&vm, BTreeMap::new(), std::slice::from_ref(&record)));
    assert_eq!(quiet.nodes, record.nodes, "none fired that would be elsewhere");
    let by_record = vec![(0, 97), (1, 3)];
    assert_eq!(shown(&vm, &record), (5010, 97, by_record.clone(), 7));
    // More interrupts change nothing, and vectors that go elsewhere do.
    vm.interrupts = Some(interrupts(&[(0, 2)], &[(0, 900), (1, 5000)]));
    assert_eq!(shown(&vm, &record), (5900, 97, by_record.clone(), 7));
    // Another VM's CPUs have the same interrupts remote.
    vm.nodes = [1].into();
    assert_eq!(shown(&vm, &record), (5900, 3, by_record, 7));
    vm.nodes = [0].into();
    vm.interrupts = Some(interrupts(&[(1, 2)], &[(0, 900), (1, 5000)]));
    assert_eq!(shown(&vm, &record), (5900, 15, vec![(0, 15), (1, 85)], 0));
    // Nor is it known since when they are where a record without a time or without NUMA nodes has them.
    vm.interrupts = Some(interrupts(&[(0, 2)], &[(0, 900), (1, 5000)]));
    record.since_us = 0;
    assert_eq!(shown(&vm, &record).3, 0);
    (record.since_us, record.nodes) = (7, Vec::new());
    assert_eq!(shown(&vm, &record).3, 0);
}
