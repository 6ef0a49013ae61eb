mod genuine;
mod many_nodes;
mod properties;

use std::time::{Duration, Instant};

use rstest::rstest;
use stelia_cpus::testing::Shape;

use super::*;
use crate::cpus::{CpuOptions, CpuRefusal};
use crate::pod::Container;
use crate::{
    Amounts, ContainerKind, CpuManager, MemoryManager, NodeState, NumaNode, Resources, Settings, memory, testing,
};

/// Nodes of 4 cores of 2 threads; cores' first threads are numbered first.
fn node(nodes: u32, settings: Settings) -> Node {
    let numa = |_| NumaNode {
        memory: 16 << 30,
        ..NumaNode::default()
    };
    let machine = testing::machine(Shape::new(nodes, 4, 2).interleaved(), numa);
    Node::start(machine, settings, NodeState::default()).unwrap()
}

fn settings(policy: Policy, scope: Scope) -> Settings {
    Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), "0".parse().unwrap()),
        topology_policy: policy,
        topology_scope: scope,
        ..Settings::default()
    }
}

fn container(name: &str, kind: ContainerKind, milli_cpus: u64) -> Container {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(1 << 30),
        ..Amounts::default()
    };
    Container::new(name, kind, Resources::guaranteed(amounts))
}

fn pod(containers: Vec<Container>) -> Pod {
    testing::pod("pod", &containers)
}

#[rstest]
#[case(Policy::None, Ok("1-7,9-15"))]
#[case(Policy::BestEffort, Ok("1-7,9-15"))]
#[case(Policy::Restricted, Ok("1-7,9-15"))]
#[case(Policy::SingleNumaNode, Err("TopologyAffinityError"))]
fn a_container_larger_than_a_node(#[case] policy: Policy, #[case] expected: Result<&str, &str>) {
    let answer = admit(
        &node(2, settings(policy, Scope::Container)),
        &pod(vec![container("vm", ContainerKind::App, 14_000)]),
    );
    match (answer, expected) {
        (Ok(admission), Ok(cpus)) => {
            assert_eq!(admission.containers[0].cpus, Cpus::Exclusive(cpus.parse().unwrap()));
        }
        (Err(rejection), Err(reason)) => {
            assert_eq!(rejection.reason(), Some(reason));
            assert_eq!(
                (rejection.container.as_deref(), rejection.resource.as_deref()),
                (Some("vm"), Some("cpu"))
            );
        }
        (answer, _) => panic!("{answer:?}"),
    }
}

/// Scope container: each container is given its CPUs before the next one's hints are made.
#[test]
fn scope_container_takes_containers_one_by_one() {
    let pod = pod(vec![
        container("one", ContainerKind::App, 6000),
        container("two", ContainerKind::App, 6000),
    ]);
    let admission = admit(&node(2, settings(Policy::SingleNumaNode, Scope::Container)), &pod).unwrap();
    let nodes: Vec<String> = admission
        .containers
        .iter()
        .map(|own| own.hint.nodes.unwrap().to_string())
        .collect();
    assert_eq!(nodes, ["0", "1"]);
    assert_eq!(admission.merges.len(), 2);
}

/// Scope pod: what the containers need together must be on one node.
#[test]
fn scope_pod_asks_for_all_at_once() {
    let pod = pod(vec![
        container("one", ContainerKind::App, 6000),
        container("two", ContainerKind::App, 6000),
    ]);
    let rejection = admit(&node(2, settings(Policy::SingleNumaNode, Scope::Pod)), &pod).unwrap_err();
    assert_eq!(
        (rejection.reason(), rejection.container),
        (Some("TopologyAffinityError"), None)
    );
}

/// An init container's CPUs are used again, a sidecar's are not.
#[test]
fn init_containers_give_their_cpus_to_later_ones() {
    let pod = pod(vec![
        container("init", ContainerKind::Init, 2000),
        container("side", ContainerKind::Sidecar, 2000),
        container("vm", ContainerKind::App, 2000),
    ]);
    let admission = admit(&node(1, settings(Policy::Restricted, Scope::Container)), &pod).unwrap();
    let cpus = |index: usize| match &admission.containers[index].cpus {
        Cpus::Exclusive(cpus) => cpus.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(cpus(0), cpus(1));
    assert!(cpus(1).is_disjoint(&cpus(2)));
}

#[test]
fn what_a_pod_had_is_free_again_without_it() {
    let before = node(2, settings(Policy::BestEffort, Scope::Container));
    let admission = admit(&before, &pod(vec![container("vm", ContainerKind::App, 4000)])).unwrap();
    assert_ne!(admission.node, before);
    assert_eq!(admission.node.without("pod"), before);
}

#[test]
fn a_shared_container_is_on_the_nodes_pool() {
    let admission = admit(
        &node(2, settings(Policy::Restricted, Scope::Pod)),
        &pod(vec![container("vm", ContainerKind::App, 1500)]),
    )
    .unwrap();
    assert_eq!(admission.containers[0].cpus, Cpus::Shared);
}

fn with_memory(settings: Settings) -> Settings {
    let reserved = [(0, [("memory".to_owned(), 1 << 30)].into())].into();
    Settings {
        memory_manager: MemoryManager::Static { reserved },
        ..settings
    }
}

/// `GetPodAdmitResult`: an error with a reason of its own is passed on, any other becomes an unexpected error.
#[test]
fn a_rejection_has_kubelets_reason_and_words() {
    let options = CpuOptions {
        full_pcpus_only: true,
        ..CpuOptions::default()
    };
    let settings = Settings {
        cpu_manager: CpuManager::reserving(options, "0,8".parse().unwrap()),
        ..with_memory(Settings::default())
    };
    let node = node(2, settings);
    let halves = admit(&node, &pod(vec![container("vm", ContainerKind::App, 3000)])).unwrap_err();
    assert_eq!(halves.reason(), Some("SMTAlignmentError"));
    assert_eq!(
        halves.to_string(),
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );

    let mut large = pod(vec![container("vm", ContainerKind::App, 2000)]);
    large.containers[0].resources.requests.memory = Some(64 << 30);
    large.containers[0].resources.limits.memory = Some(64 << 30);
    let large = admit(&node, &large).unwrap_err();
    assert_eq!(large.reason(), Some("UnexpectedAdmissionError"));
    assert_eq!(
        large.to_string(),
        "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough \
         memory is available, which is unexpected"
    );
    assert_eq!(
        (large.container.as_deref(), large.resource.as_deref()),
        (Some("vm"), Some("memory"))
    );
}

fn pod_level(policy: Policy, scope: Scope) -> Node {
    let mut settings = with_memory(settings(policy, scope));
    settings.kubelet.pod_level_resource_managers = true;
    let mut node = node(2, settings);
    node.state.devices = testing::nics(2, 1);
    node
}

/// A pod of 4 CPUs and 4 GiB: a container with resources of its own, and one that shares what is left.
fn divided(milli_cpus: u64) -> Pod {
    let mut pod = pod(vec![
        container("vm", ContainerKind::App, milli_cpus),
        Container::new("logs", ContainerKind::App, Resources::default()),
    ]);
    pod.resources = Some(Resources::guaranteed(Amounts {
        milli_cpus: Some(4000),
        memory: Some(4 << 30),
        ..Amounts::default()
    }));
    let devices = [("example.com/nic".to_owned(), 1)].into();
    pod.containers[0].resources.limits.devices = devices;
    pod
}

/// `admitUsingPodResources`, and `AllocatePod` where the Topology Manager lets the pod through to it.
#[rstest]
#[case(
    Policy::Restricted,
    "TopologyAffinityError",
    "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
)]
#[case(
    Policy::BestEffort,
    "EmptyPodSharedPoolError",
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
)]
fn a_pod_that_leaves_no_shared_pool_is_rejected(#[case] policy: Policy, #[case] reason: &str, #[case] message: &str) {
    let rejection = admit(&pod_level(policy, Scope::Pod), &divided(4000)).unwrap_err();
    assert_eq!(
        (rejection.reason(), rejection.to_string().as_str()),
        (Some(reason), message)
    );
    assert_eq!(rejection.resource.as_deref(), Some("cpu"));
}

#[test]
fn a_pod_with_its_own_resources_is_divided() {
    let node = pod_level(Policy::SingleNumaNode, Scope::Pod);
    let admission = admit(&node, &divided(2000)).unwrap();
    let [vm, logs] = &admission.containers[..] else {
        panic!("{:?}", admission.containers);
    };
    let nodes = vm.hint.nodes.unwrap();
    assert_eq!(nodes.len(), 1);
    let set = |cpus: &Cpus| match cpus {
        Cpus::Exclusive(cpus) | Cpus::PodShared(cpus) => cpus.clone(),
        Cpus::Shared => panic!("{cpus:?}"),
    };
    assert!(matches!(vm.cpus, Cpus::Exclusive(_)) && matches!(logs.cpus, Cpus::PodShared(_)));
    assert_eq!((set(&vm.cpus).len(), set(&logs.cpus).len()), (2, 2));
    assert_eq!([vm.memory[0].size, logs.memory[0].size], [1 << 30, 3 << 30]);
    let nic: Vec<&String> = vm.devices["example.com/nic"].ids.iter().collect();
    assert_eq!(nic, [&format!("nic{nodes}")]);
    let again = admission.node.without("pod");
    assert_eq!(again, node);
}

/// In scope container, containers that are not themselves Guaranteed run on the node's shared pool.
#[test]
fn scope_container_divides_no_pod() {
    let mut node = pod_level(Policy::BestEffort, Scope::Container);
    std::sync::Arc::make_mut(&mut node.settings).memory_manager = MemoryManager::None;
    let admission = admit(&node, &divided(2000)).unwrap();
    assert!(matches!(admission.containers[0].cpus, Cpus::Exclusive(_)));
    assert_eq!(admission.containers[1].cpus, Cpus::Shared);
    assert_eq!(admission.node.without("pod"), node);
}

/// A fault of kubelet: its memory manager looks for NUMA nodes for such a container too, although it requests nothing.
#[rstest]
#[case(Policy::BestEffort, memory::MemoryRefusal::OtherGroup)]
#[case(Policy::SingleNumaNode, memory::MemoryRefusal::NoNodes)]
fn in_scope_container_memory_of_nothing_is_rejected(#[case] policy: Policy, #[case] refusal: memory::MemoryRefusal) {
    let rejection = admit(&pod_level(policy, Scope::Container), &divided(2000)).unwrap_err();
    assert_eq!(rejection.reason(), Some("UnexpectedAdmissionError"));
    assert_eq!(
        (rejection.cause, rejection.container.as_deref()),
        (Cause::Memory(refusal), Some("logs"))
    );
}

/// 255 hints each of CPUs, memory, huge pages and devices.
#[test]
fn eight_numa_nodes_take_no_time() {
    let numa = |_| NumaNode {
        memory: 64 << 30,
        huge_pages: [(2 << 20, 1024)].into(),
        distances: vec![10; 8],
    };
    let machine = testing::machine(Shape::new(8, 64, 2).interleaved(), numa);
    let state = NodeState {
        devices: testing::nics(8, 1),
        ..NodeState::default()
    };
    let settings = with_memory(settings(Policy::BestEffort, Scope::Container));
    let node = Node::start(machine, settings, state).unwrap();
    let amounts = Amounts {
        milli_cpus: Some(16_000),
        memory: Some(1 << 30),
        huge_pages: [(2 << 20, 1 << 30)].into(),
        devices: [("example.com/nic".to_owned(), 1)].into(),
    };
    let vm = Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts));
    let pod = pod(vec![vm]);
    let started = Instant::now();
    let admission = admit(&node, &pod).unwrap();
    let took = started.elapsed();
    let counts: Vec<usize> = admission.merges[0].hints.iter().map(|(_, hints)| hints.len()).collect();
    assert_eq!(counts, [255; 4]);
    // The limit is for a debug build on a busy machine.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_rejection_has_kubelets_reason_and_message() {
    let of = |cause| Rejection {
        cause,
        container: None,
        resource: None,
        merges: Vec::new(),
    };
    assert_eq!(of(Cause::Topology).reason(), Some("TopologyAffinityError"));
    assert_eq!(of(Cause::Cpus(CpuRefusal::WouldNotReturn)).reason(), None);
    let (requested, available) = (4, 2);
    let few = of(Cause::Cpus(CpuRefusal::NotEnough { requested, available }));
    assert_eq!(few.reason(), Some("UnexpectedAdmissionError"));
    assert_eq!(
        few.to_string(),
        "Allocate failed due to not enough cpus available to satisfy request: requested=4, available=2, which is unexpected"
    );
}

fn with_gpus(mut container: Container) -> Container {
    for amounts in [&mut container.resources.limits, &mut container.resources.requests] {
        amounts.devices.insert("gpu".to_owned(), 1);
    }
    container
}

/// NUMA node 0 has 8 CPUs free and 1 has 4: the container with the GPU has its CPUs where that is.
#[test]
fn a_rejection_is_unknown_where_it_depends_on_the_place_of_an_earlier_containers_device() {
    let node = node(
        2,
        Settings {
            cpu_manager: CpuManager::reserving(CpuOptions::default(), "4-7".parse().unwrap()),
            ..settings(Policy::Restricted, Scope::Container)
        },
    );
    let mut state = node.state().clone();
    state.devices.add_counted("gpu", Some(1), 1, 1);
    let at_1 = node.with_state(state.clone());
    state.devices.unplaced.insert("gpu".to_owned());
    let unplaced = node.with_state(state);
    let first = with_gpus(container("c1", ContainerKind::App, 4000));
    let two = |second: u64| pod(vec![first.clone(), container("c2", ContainerKind::App, second)]);
    let refused = |node: &Node, pod: &Pod| admit(node, pod).map(drop).map_err(|refused| refused.is_unknown());
    assert_eq!(refused(&unplaced, &two(8000)), Err(true));
    assert_eq!(refused(&at_1, &two(8000)), Ok(()));
    // There are not so many CPUs on both.
    assert_eq!(refused(&unplaced, &two(12000)), Err(false));
    let alone = pod(vec![container("c2", ContainerKind::App, 9000)]);
    assert_eq!(refused(&unplaced, &alone), Ok(()), "on both");
}

#[test]
fn an_answer_that_depends_on_whether_a_plugin_reports_numa_nodes_is_unknown() {
    let node = node(2, settings(Policy::SingleNumaNode, Scope::Container));
    let mut state = node.state().clone();
    state.devices.add_counted("gpu", Some(0), 1, 1);
    state.devices.assumed.insert("gpu".to_owned());
    let node = node.with_state(state);
    // Only node 1 has 8 CPUs.
    let refused = admit(&node, &pod(vec![with_gpus(container("c", ContainerKind::App, 8000))])).unwrap_err();
    assert!(refused.is_unknown() && refused.to_string().contains("gpu"), "{refused}");
    // One way or the other.
    assert!(admit(&node, &pod(vec![with_gpus(container("c", ContainerKind::App, 4000))])).is_ok());
    let refused = admit(&node, &pod(vec![with_gpus(container("c", ContainerKind::App, 9000))])).unwrap_err();
    assert_eq!(refused.reason(), Some("TopologyAffinityError"));
}
