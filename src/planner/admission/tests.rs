use rstest::rstest;

use super::*;
use crate::planner::cpus::{CpuTopology, Options};
use crate::planner::pod::Container;
use crate::planner::{Amounts, CpuManager, Kind, Machine, NumaNode, Resources, Settings, State};
use crate::topology::testing::Shape;

/// Nodes of 4 cores of 2 threads; cores' first threads are numbered first.
fn node(nodes: u32, settings: Settings) -> Node {
    let shape = Shape {
        nodes,
        cores: 4,
        threads: 2,
        interleaved: true,
    };
    let numa = NumaNode {
        memory: 16 << 30,
        ..NumaNode::default()
    };
    let machine = Machine {
        cpus: CpuTopology::new(&shape.topology(), &BTreeMap::new()),
        numa: (0..nodes).map(|id| (id, numa.clone())).collect(),
    };
    Node::start(machine, settings, State::default()).unwrap()
}

fn settings(policy: Policy, scope: Scope) -> Settings {
    Settings {
        cpu_manager: CpuManager::reserving(Options::default(), "0".parse().unwrap()),
        topology_policy: policy,
        topology_scope: scope,
        ..Settings::default()
    }
}

fn container(name: &str, kind: Kind, milli_cpus: u64) -> Container {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(1 << 30),
        ..Amounts::default()
    };
    Container::new(name, kind, Resources::guaranteed(amounts))
}

fn pod(containers: Vec<Container>) -> Pod {
    Pod {
        uid: "pod".to_owned(),
        resources: None,
        containers,
    }
}

#[rstest]
#[case(Policy::None, Ok("1-7,9-15"))]
#[case(Policy::BestEffort, Ok("1-7,9-15"))]
#[case(Policy::Restricted, Ok("1-7,9-15"))]
#[case(Policy::SingleNumaNode, Err("TopologyAffinityError"))]
fn a_container_larger_than_a_node(#[case] policy: Policy, #[case] expected: Result<&str, &str>) {
    let answer = admit(
        &node(2, settings(policy, Scope::Container)),
        &pod(vec![container("vm", Kind::App, 14_000)]),
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
        container("one", Kind::App, 6000),
        container("two", Kind::App, 6000),
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
        container("one", Kind::App, 6000),
        container("two", Kind::App, 6000),
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
        container("init", Kind::Init, 2000),
        container("side", Kind::Sidecar, 2000),
        container("vm", Kind::App, 2000),
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
    let admission = admit(&before, &pod(vec![container("vm", Kind::App, 4000)])).unwrap();
    assert_ne!(admission.node, before);
    assert_eq!(admission.node.without("pod"), before);
}

#[test]
fn a_shared_container_is_on_the_nodes_pool() {
    let admission = admit(
        &node(2, settings(Policy::Restricted, Scope::Pod)),
        &pod(vec![container("vm", Kind::App, 1500)]),
    )
    .unwrap();
    assert_eq!(admission.containers[0].cpus, Cpus::Shared);
}
