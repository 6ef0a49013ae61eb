//! Compared with state files that kubelet 1.36.3 wrote while it admitted pods, CPUs and memory together.

use std::collections::BTreeMap;
use std::fs;

use stelia_cpus::testing::Shape;
use stelia_kubelet::{CpuManagerState, MemoryManagerState};

use super::super::*;
use crate::cpus::{CpuOptions, Kubelet};
use crate::pod::{Amounts, Container, ContainerKind, Resources};
use crate::testing::{self, pod};
use crate::{CpuManager, MemoryManager, NodeState, NumaNode, Settings, StartError, cpus, memory};

const GB: u64 = 1 << 30;
const PAGE: u64 = 2 << 20;

/// The node of `FORMAT.md`, with `pod_level` the feature gate.
fn node(policy: Policy, pod_level: bool) -> Node {
    let numa = |id: u32| NumaNode {
        memory: 128 * GB,
        huge_pages: [(PAGE, if id == 0 { 55_552 } else { 55_296 })].into(),
        distances: Vec::new(),
    };
    let machine = testing::machine(Shape::new(2, 32, 2).interleaved(), numa);
    let reserved = || BTreeMap::from([("memory".to_owned(), 2 * GB)]);
    let settings = Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), "0,64".parse().unwrap()),
        memory_manager: MemoryManager::Static {
            reserved: [(0, reserved()), (1, reserved())].into(),
        },
        topology_policy: policy,
        topology_scope: Scope::Pod,
        kubelet: Kubelet {
            pod_level_resource_managers: pod_level,
            ..Kubelet::default()
        },
        ..Settings::default()
    };
    Node::start(machine, settings, NodeState::default()).unwrap()
}

/// What kubelet wrote. The order in which it lists a container's blocks is random.
fn written(folder: &str) -> (cpus::CpuState, memory::MemoryState) {
    let read = |name: &str| fs::read(format!("../../tests/data/kubelet-checkpoints/{folder}/{name}")).unwrap();
    let cpus = CpuManagerState::parse(&read("cpu_manager_state")).unwrap();
    let memory = MemoryManagerState::parse(&read("memory_manager_state")).unwrap();
    let mut memory = memory::MemoryState::from(&memory);
    for blocks in memory.entries.values_mut().flat_map(BTreeMap::values_mut) {
        blocks.sort_by(|one, other| one.kind.cmp(&other.kind));
    }
    (cpus::CpuState::from(&cpus), memory)
}

/// Milli-CPUs, GiB of memory, GiB of huge pages.
fn container(name: &str, kind: ContainerKind, milli_cpus: u64, memory: u64, pages: u64) -> Container {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(memory * GB),
        huge_pages: (pages > 0).then_some((PAGE, pages * GB)).into_iter().collect(),
        ..Amounts::default()
    };
    Container::new(name, kind, Resources::guaranteed(amounts))
}

fn admitted(mut node: Node, pods: &[Pod]) -> Node {
    for pod in pods {
        node = admit(&node, pod)
            .unwrap_or_else(|rejection| panic!("{rejection:?}"))
            .node;
    }
    node
}

fn vm(cpus: u64, memory: u64, pages: u64) -> Container {
    container("instance", ContainerKind::App, cpus * 1000, memory, pages)
}

#[test]
fn a_fresh_node_is_the_one_kubelet_begins_with() {
    for (folder, pod_level) in [
        ("k136-gate-off/01-static-empty", false),
        ("k136-gate-on/01-static-empty", true),
    ] {
        let node = node(Policy::SingleNumaNode, pod_level);
        let (cpus, memory) = written(folder);
        assert_eq!((&node.state.cpus, &node.state.memory), (&cpus, &memory), "{folder}");
    }
}

/// kubelet starts on its own files, and not on those of another machine.
#[test]
fn every_file_of_kubelets_goes_with_its_node() {
    for (folder, pod_level) in [
        ("k136-gate-off/03a-vm40", false),
        ("k136-gate-off/03b-many", false),
        ("k136-gate-on/03b-many", true),
        ("k136-gate-on/05a-podlevel-podscope", true),
    ] {
        let mut fresh = node(Policy::Restricted, pod_level);
        let (cpus, memory) = written(folder);
        let devices = Default::default();
        let state = NodeState { cpus, memory, devices };
        Node::start(fresh.machine.clone(), fresh.settings.clone(), state.clone()).unwrap();
        std::sync::Arc::make_mut(&mut fresh.machine)
            .numa
            .get_mut(&1)
            .unwrap()
            .memory += 1;
        let refused = Node::start(fresh.machine, fresh.settings, state).unwrap_err();
        assert!(
            matches!(&refused, StartError::Memory(memory::MemoryStartError::Differs { .. })),
            "{refused:?}"
        );
    }
}

fn many() -> [Pod; 5] {
    let mut sidecar = container("sidecar", ContainerKind::App, 1000, 1, 0);
    sidecar.resources.requests.memory = Some(GB / 2);
    sidecar.resources.limits.memory = Some(GB / 2);
    [
        pod("ce32ebd2-f905-449e-b74b-4231a84b88e1", &[vm(40, 8, 80)]),
        pod(
            "11111111-aaaa-4bbb-8ccc-000000000001",
            &[
                container("prepare", ContainerKind::Init, 2000, 1, 0),
                vm(16, 4, 16),
                container("virtiofsd", ContainerKind::App, 2000, 1, 0),
                container("frac", ContainerKind::App, 1500, 1, 0),
            ],
        ),
        pod("11111111-aaaa-4bbb-8ccc-000000000003", &[vm(8, 2, 8), sidecar]),
        pod("11111111-aaaa-4bbb-8ccc-000000000004", &[vm(20, 4, 40)]),
        pod("11111111-aaaa-4bbb-8ccc-000000000005", &[vm(30, 4, 40)]),
    ]
}

#[test]
fn pods_of_vms_are_given_what_kubelet_gave_them() {
    for (folder, pod_level) in [("k136-gate-off/03b-many", false), ("k136-gate-on/03b-many", true)] {
        for policy in [Policy::SingleNumaNode, Policy::Restricted, Policy::BestEffort] {
            let node = admitted(node(policy, pod_level), &many());
            let (cpus, memory) = written(folder);
            assert_eq!(
                (&node.state.cpus, &node.state.memory),
                (&cpus, &memory),
                "{folder}, {policy:?}"
            );
        }
    }
}

/// Without one of them, its resources are free for another of its kind.
#[test]
fn a_pod_that_comes_again_gets_the_same() {
    let all = admitted(node(Policy::SingleNumaNode, false), &many());
    for pod in many() {
        let without = all.without(&pod.uid);
        assert_ne!(without, all);
        let again = admit(&without, &pod).unwrap().node;
        assert_eq!(again.state.memory, all.state.memory);
    }
}

fn with_own(pod: Pod, milli_cpus: u64, memory: u64) -> Pod {
    let resources = Some(container("", ContainerKind::App, milli_cpus, memory, 0).resources);
    Pod { resources, ..pod }
}

fn sharing(name: &str) -> Container {
    let requests = Amounts {
        milli_cpus: Some(500),
        memory: Some(GB),
        ..Amounts::default()
    };
    let resources = Resources {
        requests,
        limits: Amounts::default(),
    };
    Container::new(name, ContainerKind::App, resources)
}

#[test]
fn pods_with_their_own_resources_are_divided_as_kubelet_divided_them() {
    let uid = |number: u32| format!("33333333-aaaa-4bbb-8ccc-{number:012}");
    let first = pod(&uid(1), &[vm(16, 16, 0), sharing("virtiofsd"), sharing("dnsmasq")]);
    let third = [
        container("init", ContainerKind::Init, 4000, 1, 0),
        container("side", ContainerKind::Sidecar, 2000, 1, 0),
        vm(4, 4, 0),
        sharing("helper"),
    ];
    let pods = [
        with_own(first, 20_000, 24),
        pod(&uid(2), &[vm(4, 2, 0)]),
        with_own(pod(&uid(3), &third), 8000, 8),
    ];
    let node = admitted(node(Policy::BestEffort, true), &pods);
    let (cpus, memory) = written("k136-gate-on/05a-podlevel-podscope");
    assert_eq!((&node.state.cpus, &node.state.memory), (&cpus, &memory));
}
