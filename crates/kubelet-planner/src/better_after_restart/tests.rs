use std::collections::BTreeMap;

use stelia_cpus::testing::Shape;

use super::*;
use crate::cpus::{CpuState, CpuTopology, Options};
use crate::merge::{Policy, Scope};
use crate::{CpuManager, Machine, MemoryManager, NodeState, NumaNode, Settings, memory};

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Two sockets with a NUMA node of four cores of two threads, 0-3,8-11 and 4-7,12-15, on which these pods run, each
/// with one container. CPUs 0 and 8 are reserved.
fn node(pods: &[(&str, &str)]) -> Node {
    let shape = Shape {
        nodes: 2,
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
        numa: [(0, numa.clone()), (1, numa)].into(),
    };
    let settings = Settings {
        cpu_manager: CpuManager::reserving(Options::default(), set("0,8")),
        topology_policy: Policy::BestEffort,
        topology_scope: Scope::Container,
        ..Settings::default()
    };
    let entry = |(pod, cpus): &(&str, &str)| ((*pod).to_owned(), [("vm".to_owned(), set(cpus))].into());
    let entries: BTreeMap<String, BTreeMap<String, CpuSet>> = pods.iter().map(entry).collect();
    let given = all(entries.values().flat_map(|own| own.values()));
    let cpus = CpuState {
        default: set("0-15").difference(&given),
        entries,
        ..CpuState::default()
    };
    let state = NodeState {
        cpus,
        ..NodeState::default()
    };
    Node::start(machine, settings, state).unwrap()
}

fn advised(node: &Node, pods: &[&str]) -> Vec<Restart> {
    let pods: Vec<Pod> = pods.iter().map(|pod| request(node, pod).unwrap()).collect();
    restarts(node, &pods)
}

fn in_words(restarts: &[Restart]) -> Vec<String> {
    let words = |step: &Restart| format!("{}: {} to {}", step.pod, step.before.cpus, step.after.cpus);
    restarts.iter().map(words).collect()
}

#[test]
fn on_a_fragmented_node_the_restart_of_one_pod_makes_the_next_one_possible() {
    let node = node(&[("a", "3,5,11,13"), ("b", "1-2,4,9-10,12"), ("c", "6,14")]);
    // Six free CPUs of one NUMA node are there only after a has left node 0.
    assert_eq!(in_words(&advised(&node, &["b"])), [""; 0]);
    let both = advised(&node, &["b", "a", "c"]);
    assert_eq!(
        in_words(&both),
        ["a: 3,5,11,13 to 5,7,13,15", "b: 1-2,4,9-10,12 to 1-3,9-11"]
    );
    for step in &both {
        assert_eq!((step.before.nodes.len(), step.before.sockets), (2, 2));
        assert_eq!(
            (step.after.nodes.len(), step.after.sockets, step.makes_room),
            (1, 1, false)
        );
    }
}

#[test]
fn a_pod_that_gains_nothing_is_restarted_where_another_needs_its_cpus() {
    let node = node(&[("a", "5,13"), ("b", "1,4,6-7,9,12,14-15"), ("c", "2,10")]);
    assert_eq!(in_words(&advised(&node, &["b", "c"])), [""; 0]);
    let both = advised(&node, &["a", "b", "c"]);
    assert_eq!(
        in_words(&both),
        ["a: 5,13 to 3,11", "b: 1,4,6-7,9,12,14-15 to 4-7,12-15"]
    );
    assert_eq!([both[0].makes_room, both[1].makes_room], [true, false]);
}

#[test]
fn whole_cores_are_a_gain_and_pods_that_have_them_are_left_alone() {
    let node = node(&[("torn", "1,2"), ("whole", "3,11")]);
    let restarts = advised(&node, &["torn", "whole"]);
    assert_eq!(in_words(&restarts), ["torn: 1-2 to 1,9"]);
    assert_eq!(
        (restarts[0].before.partial_cores, restarts[0].after.partial_cores),
        (2, 0)
    );
}

#[test]
fn cpus_that_would_leave_the_pods_memory_or_devices_are_no_gain() {
    let mut node = node(&[("a", "1,4"), ("b", "2-3,9-11")]);
    assert_eq!(in_words(&advised(&node, &["a"])), ["a: 1,4 to 4,12"]);
    let gpu = crate::devices::Device {
        nodes: [0].into(),
        healthy: true,
    };
    let devices = &mut node.state.devices;
    devices
        .resources
        .insert("gpu".to_owned(), [("g0".to_owned(), gpu)].into());
    let given = [("gpu".to_owned(), ["g0".to_owned()].into())].into();
    devices
        .entries
        .insert("a".to_owned(), [("vm".to_owned(), given)].into());
    std::sync::Arc::make_mut(&mut node.settings).topology_policy = Policy::None;
    assert_eq!(in_words(&advised(&node, &["a"])), [""; 0]);
}

#[test]
fn a_request_is_told_from_what_the_managers_hold() {
    let mut settings = node(&[]).settings().clone();
    settings.memory_manager = MemoryManager::Static {
        reserved: [(0, [(memory::kind(None), 1 << 30)].into())].into(),
    };
    let machine = node(&[]).machine().clone();
    let node = Node::start(machine, settings, NodeState::default()).unwrap();
    let amounts = Amounts {
        milli_cpus: Some(4000),
        memory: Some(2 << 30),
        ..Amounts::default()
    };
    let helper = Amounts {
        milli_cpus: Some(1),
        memory: Some(1 << 20),
        ..Amounts::default()
    };
    let pod = Pod {
        uid: "pod".to_owned(),
        resources: None,
        containers: [("helper", helper), ("vm", amounts)]
            .map(|(name, amounts)| Container::new(name, ContainerKind::App, Resources::guaranteed(amounts)))
            .into(),
    };
    let after = admit(&node, &pod).unwrap().node;
    assert_eq!(request(&after, "pod").unwrap(), pod);
    assert_eq!(request(&after, "other"), Err(NoRequest::NoCpus));
}

#[test]
fn a_request_that_the_files_do_not_tell_is_not_guessed() {
    let mut node = node(&[("a", "1,9")]);
    let own = node.state.cpus.entries.get_mut("a").unwrap();
    own.insert("init".to_owned(), set("9"));
    assert_eq!(request(&node, "a"), Err(NoRequest::InitContainers));
    node.state.cpus.pods.insert("a".to_owned(), set("1,9"));
    assert_eq!(request(&node, "a"), Err(NoRequest::PodLevel));
}
