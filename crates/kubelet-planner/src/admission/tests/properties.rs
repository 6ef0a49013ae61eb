//! Laws of admission on generated nodes and pods.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;

use super::super::*;
use crate::cpus::CpuOptions;
use crate::pod::{Amounts, Container, ContainerKind, Resources};
use crate::{CpuManager, MemoryManager, NodeState, NumaNode, Settings, testing};

const GB: u64 = 1 << 30;
const RESOURCE: &str = "example.com/nic";

/// Nodes of 4 cores of 2 threads, 8 GiB, 4 huge pages of 1 GiB and 2 devices.
fn node(nodes: u32, policy: Policy, scope: Scope) -> Node {
    let numa = |id: u32| {
        let distance = |other: u32| if other == id { 10u64 } else { 20 };
        NumaNode {
            memory: 8 * GB,
            huge_pages: [(GB, 4)].into(),
            distances: (0..nodes).map(distance).collect(),
        }
    };
    let machine = testing::machine(Shape::new(nodes, 4, 2).interleaved(), numa);
    let settings = Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), "0".parse().unwrap()),
        memory_manager: MemoryManager::Static {
            reserved: [(0, [("memory".to_owned(), GB)].into())].into(),
        },
        topology_policy: policy,
        topology_scope: scope,
        ..Settings::default()
    };
    let state = NodeState {
        devices: testing::nics(2 * nodes, 2),
        ..NodeState::default()
    };
    Node::start(machine, settings, state).unwrap()
}

/// Half CPUs, GiB of memory, huge pages, devices.
type Sizes = (u64, u64, u64, u64);

fn container(index: usize, kind: ContainerKind, sizes: Sizes) -> Container {
    let (half_cpus, memory, pages, devices) = sizes;
    let amounts = Amounts {
        milli_cpus: Some(half_cpus * 500),
        memory: Some(memory * GB),
        huge_pages: (pages > 0).then_some((GB, pages * GB)).into_iter().collect(),
        devices: (devices > 0)
            .then_some((RESOURCE.to_owned(), devices))
            .into_iter()
            .collect(),
    };
    Container::new(&format!("c{index}"), kind, Resources::guaranteed(amounts))
}

fn pods() -> impl Strategy<Value = Vec<Pod>> {
    let sizes = (1u64..16, 1u64..6, 0u64..4, 0u64..3);
    let kinds = prop_oneof![Just(ContainerKind::Init), Just(ContainerKind::Sidecar)];
    let init = proptest::collection::vec((kinds, sizes.clone()), 0..2);
    let apps = proptest::collection::vec((Just(ContainerKind::App), sizes), 1..3);
    let containers = (init, apps).prop_map(|(mut init, apps)| {
        init.extend(apps);
        let containers = init.into_iter().enumerate();
        containers
            .map(|(index, (kind, sizes))| container(index, kind, sizes))
            .collect()
    });
    let numbered = |pods: Vec<Vec<Container>>| {
        let pod = |(number, containers)| Pod {
            uid: format!("pod{number}"),
            resources: None,
            containers,
        };
        pods.into_iter().enumerate().map(pod).collect()
    };
    proptest::collection::vec(containers, 1..6).prop_map(numbered)
}

/// The exclusive CPUs of all containers of an admission.
fn exclusive(admission: &Admission) -> CpuSet {
    let cpus = admission.containers.iter().map(|own| match &own.cpus {
        Cpus::Exclusive(cpus) => cpus.clone(),
        Cpus::Shared | Cpus::PodShared(_) => CpuSet::new(),
    });
    cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
}

fn free_memory(node: &Node) -> BTreeMap<(u32, String), u64> {
    let tables = node.state.memory.nodes.iter().flat_map(|(id, own)| {
        let tables = own.tables.iter();
        tables.map(move |(kind, table)| ((*id, kind.clone()), table.free))
    });
    tables.collect()
}

fn policies() -> impl Strategy<Value = Policy> {
    proptest::sample::select(Policy::ALL.to_vec())
}

fn scopes() -> impl Strategy<Value = Scope> {
    proptest::sample::select(Scope::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// What a pod gets was free before and is assigned after; a rejected pod's request changes nothing. When all pods
    /// are gone the node is as it was.
    #[test]
    fn what_is_given_was_free_and_comes_back(
        nodes in 1u32..4,
        policy in policies(),
        scope in scopes(),
        pods in pods(),
    ) {
        let fresh = node(nodes, policy, scope);
        let mut now = fresh.clone();
        let mut admitted = Vec::new();
        for pod in &pods {
            let Ok(admission) = admit(&now, pod) else {
                continue;
            };
            let cpus = exclusive(&admission);
            prop_assert!(cpus.is_subset(&now.state.cpus.default));
            prop_assert!(cpus.is_disjoint(&admission.node.state.cpus.default));
            prop_assert!(admission.faults.is_empty());
            for own in &admission.containers {
                let devices = own.devices.get(RESOURCE).map(|chosen| chosen.ids.clone()).unwrap_or_default();
                let (before, after) = (&now.state.devices, &admission.node.state.devices);
                prop_assert!(devices.iter().all(|id| before.available(RESOURCE).contains(id.as_str())));
                prop_assert!(devices.iter().all(|id| !after.available(RESOURCE).contains(id.as_str())));
            }
            let (before, after) = (free_memory(&now), free_memory(&admission.node));
            prop_assert!(after.iter().all(|(place, free)| *free <= before[place]));
            prop_assert_ne!(&before, &after);
            now = admission.node;
            admitted.push(pod);
        }
        for pod in admitted {
            now = now.without(&pod.uid);
        }
        prop_assert_eq!(now, fresh);
    }

    /// Policy `none` never rejects by topology.
    #[test]
    fn without_a_policy_topology_rejects_nobody(nodes in 1u32..4, scope in scopes(), pods in pods()) {
        let mut now = node(nodes, Policy::None, scope);
        for pod in &pods {
            match admit(&now, pod) {
                Ok(admission) => {
                    prop_assert!(admission.merges.is_empty());
                    now = admission.node;
                }
                Err(rejection) => prop_assert_ne!(rejection.reason(), Some("TopologyAffinityError")),
            }
        }
    }

    /// `single-numa-node`: all that a container gets is on one node.
    #[test]
    fn a_container_is_on_one_node(nodes in 1u32..4, pods in pods()) {
        let mut now = node(nodes, Policy::SingleNumaNode, Scope::Container);
        for pod in &pods {
            let Ok(admission) = admit(&now, pod) else {
                continue;
            };
            for own in &admission.containers {
                let mut at = BTreeSet::new();
                if let Cpus::Exclusive(cpus) = &own.cpus {
                    at.extend(cpus.iter().map(|cpu| cpu % (4 * nodes) / 4));
                }
                at.extend(own.memory.iter().flat_map(|block| block.nodes.iter().copied()));
                for id in own.devices.values().flat_map(|chosen| &chosen.ids) {
                    at.extend(&now.state.devices.resources[RESOURCE][id].nodes);
                }
                prop_assert_eq!(at.len(), 1, "{:?}", own);
            }
            now = admission.node;
        }
    }
}
