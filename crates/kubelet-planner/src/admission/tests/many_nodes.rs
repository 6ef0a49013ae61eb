//! Machines with many NUMA nodes, most of them without CPUs or memory: NVIDIA GB200 and GH200, CXL, nodes without DIMMs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stelia_cpus::{Cpu, Topology};

use super::super::*;
use crate::cpus::{CpuGroups, CpuOptions};
use crate::devices::{Device, DeviceManager};
use crate::merge::{HintList, NodeMask, NodeTooHigh, testing};
use crate::pod::{Amounts, Container, ContainerKind, Resources};
use crate::{CpuManager, Machine, MemoryManager, NodeState, NumaNode, Settings, StartError, devices, merge};

const GB: u64 = 1 << 30;
const PAGE: u64 = 2 << 20;
const GPU: &str = "nvidia.com/gpu";

/// A NUMA node: CPUs, GiB of memory, GPUs.
type Numa = (u32, u64, u32);

/// CPU 0 is reserved, and a GiB of each node's memory.
fn machine(nodes: &BTreeMap<u32, Numa>) -> (Machine, NodeState) {
    let mut cpus = BTreeMap::new();
    let mut gpus = BTreeMap::new();
    for (node, (count, _, devices)) in nodes {
        for core in 0..*count {
            cpus.insert(
                cpus.len() as u32,
                Cpu {
                    package: *node,
                    core,
                    node: *node,
                },
            );
        }
        for _ in 0..*devices {
            let device = Device {
                nodes: [*node].into(),
                healthy: true,
            };
            gpus.insert(format!("gpu{}", gpus.len()), device);
        }
    }
    let highest = nodes.keys().next_back().copied().unwrap_or(0);
    let numa = |(id, (_, memory, _)): (&u32, &Numa)| {
        let own = NumaNode {
            memory: memory * GB,
            // The kernel has no folder of huge pages for a node without memory.
            huge_pages: (*memory > 0).then_some((PAGE, 0)).into_iter().collect(),
            distances: (0..=highest)
                .map(|other| 10 + u64::from(id.abs_diff(other) % 5))
                .collect(),
        };
        (*id, own)
    };
    let machine = Machine {
        cpus: CpuGroups::new(&Topology { cpus }, &BTreeMap::new()),
        numa: nodes.iter().map(numa).collect(),
    };
    let devices = devices::DeviceState {
        resources: (!gpus.is_empty()).then(|| (GPU.to_owned(), gpus)).into_iter().collect(),
        ..devices::DeviceState::default()
    };
    let state = NodeState {
        devices,
        ..NodeState::default()
    };
    (machine, state)
}

fn settings(nodes: &BTreeMap<u32, Numa>, policy: Policy, closest: bool, memory: bool) -> Settings {
    let with_memory = nodes.iter().filter(|(_, node)| node.1 > 0);
    let reserved = with_memory.map(|(id, _)| (*id, [("memory".to_owned(), GB)].into()));
    Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), "0".parse().unwrap()),
        memory_manager: if memory {
            MemoryManager::Static {
                reserved: reserved.collect(),
            }
        } else {
            MemoryManager::None
        },
        topology_policy: policy,
        topology_options: merge::MergeOptions {
            prefer_closest_numa_nodes: closest,
            max_allowable_numa_nodes: 64,
        },
        ..Settings::default()
    }
}

fn start(nodes: &BTreeMap<u32, Numa>, settings: Settings) -> Result<Node, StartError> {
    let (machine, state) = machine(nodes);
    Node::start(machine, settings, state)
}

fn pod(uid: usize, half_cpus: u64, memory: u64, gpus: u64) -> Pod {
    let amounts = Amounts {
        milli_cpus: Some(half_cpus * 500),
        memory: Some(memory * GB),
        devices: (gpus > 0).then(|| (GPU.to_owned(), gpus)).into_iter().collect(),
        ..Amounts::default()
    };
    let vm = Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts));
    crate::testing::pod(&format!("pod{uid}"), &[vm])
}

/// Two NUMA nodes of 72 CPUs, and 32 that a GPU's partitions would use.
fn gb200() -> BTreeMap<u32, Numa> {
    let node = |id: u32| (id, if id < 2 { (72, 480, 2) } else { (0, 0, 0) });
    (0..34).map(node).collect()
}

#[test]
fn a_gb200_has_an_answer_with_every_policy() {
    for policy in [
        Policy::None,
        Policy::BestEffort,
        Policy::Restricted,
        Policy::SingleNumaNode,
    ] {
        let mut node = start(&gb200(), settings(&gb200(), policy, false, true)).unwrap();
        let mut given = Vec::new();
        for uid in 0..2 {
            let admission = admit(&node, &pod(uid, 128, 400, 2)).unwrap();
            given.push(admission.containers[0].clone());
            node = admission.node;
        }
        let exclusive = |cpus: &str| Cpus::Exclusive(cpus.parse().unwrap());
        assert_eq!(given[0].cpus, exclusive("1-64"), "{policy:?}");
        assert_eq!(given[0].memory[0].nodes, [0], "{policy:?}");
        if policy != Policy::None {
            assert_eq!(given[1].cpus, exclusive("72-135"), "{policy:?}");
            assert_eq!(given[1].memory[0].nodes, [1], "{policy:?}");
        }
    }
}

/// Memory of a GPU that the kernel has as NUMA nodes, and more than a node has.
#[test]
fn a_vm_that_spans_both_nodes_of_a_gb200_takes_neither_the_gpus_memory_nor_empty_nodes() {
    let mut nodes = gb200();
    for gpu in [2, 10, 18, 26] {
        nodes.insert(gpu, (0, 186, 0));
    }
    let node = start(&nodes, settings(&nodes, Policy::BestEffort, false, true)).unwrap();
    let admission = admit(&node, &pod(0, 200, 700, 0)).unwrap();
    assert_eq!(admission.containers[0].hint.nodes, Some(NodeMask::from_bits(0b11)));
    assert_eq!(admission.containers[0].memory[0].nodes, [0, 1]);
}

#[test]
fn a_limit_of_the_planner_is_told_from_one_of_kubelets() {
    let nodes: BTreeMap<u32, Numa> = (0..64).map(|id| (id, (4, 4, 0))).collect();
    let with = |policy, memory| settings(&nodes, policy, false, memory);
    // Without a policy nobody asks for hints.
    let node = start(&nodes, with(Policy::None, false)).unwrap();
    let admission = admit(&node, &pod(0, 8, 1, 0)).unwrap();
    assert_eq!(admission.containers[0].cpus, Cpus::Exclusive("4-7".parse().unwrap()));
    for (policy, memory, resource) in [
        (Policy::None, true, "memory"),
        (Policy::Restricted, true, "memory"),
        (Policy::Restricted, false, "CPUs"),
    ] {
        let refused = start(&nodes, with(policy, memory)).unwrap_err();
        assert!(refused.is_unknown(), "{refused}");
        let text = refused.to_string();
        assert!(text.contains(&format!("{resource} can come from 64")), "{text}");
        assert!(text.contains("kubelet starts"), "{text}");
    }
    // kubelet's own limit comes first.
    let refused = start(
        &nodes,
        Settings {
            topology_options: merge::MergeOptions::default(),
            ..with(Policy::Restricted, true)
        },
    );
    let refused = refused.unwrap_err();
    assert!(
        !refused.is_unknown() && refused.to_string().contains("allowable-numa"),
        "{refused}"
    );
    // IBM's POWER9 with GPUs numbers their memory from 255 downwards.
    let power9: BTreeMap<u32, Numa> = [(0, (4, 8, 0)), (8, (4, 8, 0)), (255, (0, 8, 0))].into();
    assert!(start(&power9, settings(&power9, Policy::None, false, false)).is_ok());
    let refused = start(&power9, settings(&power9, Policy::None, false, true)).unwrap_err();
    assert_eq!(refused, StartError::Node(NodeTooHigh { node: 255 }));
}

/// What is known of a running node is not checked at its start: an object that names devices on 40 NUMA nodes ends no search.
#[test]
fn devices_on_more_nodes_than_are_searched_are_refused_at_admission() {
    let nodes: BTreeMap<u32, Numa> = (0..40).map(|id| (id, (u32::from(id < 2) * 4, 4, 0))).collect();
    let node = start(&nodes, settings(&nodes, Policy::Restricted, false, false)).unwrap();
    let with_gpus = nodes.iter().map(|(id, (cpus, memory, _))| (*id, (*cpus, *memory, 1)));
    let (_, state) = machine(&with_gpus.collect());
    let devices = state.devices;
    let node = node.with_state(NodeState {
        devices,
        ..node.state().clone()
    });
    let unknown = admit(&node, &pod(0, 4, 1, 1)).unwrap_err();
    assert!(unknown.is_unknown() && unknown.reason().is_none(), "{unknown}");
    assert!(admit(&node, &pod(0, 4, 1, 0)).is_ok());
}

/// CPUs distributed over 64 NUMA nodes: the sets of a few of them are looked at, those of many are not.
#[test]
fn too_many_combinations_are_no_answer_of_kubelets() {
    let nodes: BTreeMap<u32, Numa> = (0..64).map(|id| (id, (4, 4, 0))).collect();
    let mut settings = settings(&nodes, Policy::None, false, false);
    let options = CpuOptions {
        distribute_cpus_across_numa: true,
        ..CpuOptions::default()
    };
    settings.cpu_manager = CpuManager::reserving(options, "0".parse().unwrap());
    let node = start(&nodes, settings).unwrap();
    let admission = admit(&node, &pod(0, 12, 1, 0)).unwrap();
    let Cpus::Exclusive(cpus) = &admission.containers[0].cpus else {
        panic!("{admission:?}");
    };
    assert_eq!(cpus.len(), 6);
    let unknown = admit(&node, &pod(0, 160, 1, 0)).unwrap_err();
    assert!(unknown.is_unknown() && unknown.reason().is_none(), "{unknown}");
}

/// What the managers say, with the memory manager's hints over all NUMA nodes if `all`.
fn lists(node: &Node, pod: &Pod, all: bool) -> Vec<HintList> {
    let container = &pod.containers[0];
    let state = node.state();
    let mut lists = DeviceManager::default()
        .hints(&state.devices, node.nodes(), pod, Some(container))
        .unwrap();
    let cpus = node.cpu_policy().unwrap();
    lists.push(("cpu".to_owned(), cpus.hints(&state.cpus, pod, Some(container))));
    let own = |hints: &HintList| {
        let masks = hints.iter().flatten().filter_map(|hint| hint.nodes);
        masks.reduce(|some, others| some | others)
    };
    let others = lists.iter().filter_map(|(_, hints)| own(hints));
    let others = if all {
        Some(node.nodes())
    } else {
        others.reduce(|some, others| some & others)
    };
    let memory = node.memory_policy().unwrap();
    lists.extend(memory.hints(&state.memory, pod, Some(container), others).unwrap());
    lists.into_iter().map(|(_, hints)| hints).collect()
}

/// Up to `most` NUMA nodes, each without CPUs, memory or GPUs now and then; the first has CPUs and memory.
fn nodes(most: usize) -> impl Strategy<Value = BTreeMap<u32, Numa>> {
    let some = |most: u32| prop_oneof![2 => Just(0u32), 3 => 1..=most];
    let node = (some(4), some(6), some(2), 1u32..3);
    proptest::collection::vec(node, 1..=most).prop_map(|nodes| {
        let mut found = BTreeMap::new();
        let mut id = 0;
        for (cpus, memory, gpus, gap) in nodes {
            let node = if found.is_empty() {
                (cpus.max(2), u64::from(memory.max(2)), gpus)
            } else {
                (cpus, u64::from(memory), gpus)
            };
            found.insert(id, node);
            id += gap;
        }
        found
    })
}

fn requests() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    proptest::collection::vec((1u64..20, 1u64..12, 0u64..4), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Leaving out nodes without memory changes no merge: the brute force has all sets of all nodes, as kubelet does.
    #[test]
    fn hints_without_empty_nodes_merge_as_all_hints_do(
        nodes in nodes(6),
        policy in proptest::sample::select(vec![Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode]),
        closest in any::<bool>(),
        requests in requests(),
    ) {
        let mut node = start(&nodes, settings(&nodes, policy, closest, true)).unwrap();
        for (uid, (cpus, memory, gpus)) in requests.into_iter().enumerate() {
            let pod = pod(uid, cpus, memory, gpus);
            let (few, all) = (lists(&node, &pod, false), lists(&node, &pod, true));
            let merged = node.merger.merge(&few);
            prop_assert_eq!(merged, node.merger.merge(&all), "{:?}", pod);
            if testing::permutations(&all) < 20_000 {
                prop_assert_eq!(merged, testing::merge(&node.merger, &all));
            }
            if let Ok(admission) = admit(&node, &pod) {
                node = admission.node;
            }
        }
    }

    /// Nodes that have nothing at all change no answer, however many they are; except where nothing is agreed on, or anything is as
    /// good: then the hint has all nodes, and so the group of the memory.
    #[test]
    fn nodes_without_anything_change_no_answer(
        nodes in nodes(5),
        empty in 1u32..50,
        policy in proptest::sample::select(Policy::ALL.to_vec()),
        closest in any::<bool>(),
        requests in requests(),
    ) {
        let nodes: BTreeMap<u32, Numa> = nodes.into_iter().filter(|(_, node)| *node != (0, 0, 0)).collect();
        let highest = nodes.keys().next_back().copied().unwrap_or(0);
        let mut more = nodes.clone();
        more.extend((1..=empty).map(|beyond| (highest + beyond, (0, 0, 0))));
        let mut node = start(&nodes, settings(&nodes, policy, closest, true)).unwrap();
        let mut large = start(&more, settings(&more, policy, closest, true)).unwrap();
        for (uid, (cpus, memory, gpus)) in requests.into_iter().enumerate() {
            let pod = pod(uid, cpus, memory, gpus);
            let open = |node: &Node| {
                let hint = node.merger.merge(&lists(node, &pod, false));
                hint.nodes.is_none_or(|nodes| nodes == node.nodes())
            };
            if policy != Policy::None && (open(&node) || open(&large)) {
                return Ok(());
            }
            match (admit(&node, &pod), admit(&large, &pod)) {
                (Ok(small), Ok(other)) => {
                    let (one, two) = (&small.containers[0], &other.containers[0]);
                    prop_assert_eq!(
                        (&one.cpus, &one.memory, &one.devices),
                        (&two.cpus, &two.memory, &two.devices)
                    );
                    prop_assert_eq!(one.hint, two.hint);
                    (node, large) = (small.node, other.node);
                }
                (Err(small), Err(other)) => prop_assert_eq!(small.reason(), other.reason()),
                (small, other) => prop_assert!(false, "{:?}\n{:?}", small, other),
            }
        }
    }
}
