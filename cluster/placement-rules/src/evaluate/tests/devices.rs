//! Nodes with GPUs: where CPUs and devices meet.

use super::*;
use crate::score::priority;

const GPU: &str = "nvidia.com/gpu";

/// Two NUMA nodes of eight CPUs, with two GPUs each, and a core reserved on the first.
fn node(policy: Policy, used: &[(u64, u64)]) -> Facts {
    let topology = host(2, 4, 2).topology();
    let machine = machine(&topology, &[[10, 21], [21, 10]]);
    let mut state = NodeState::default();
    state.devices.add_counted(GPU, Some(0), 2, 2);
    state.devices.add_counted(GPU, Some(1), 2, 2);
    let settings = Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), topology.siblings(0)),
        topology_policy: policy,
        ..Settings::default()
    };
    let mut node = Node::start(machine, settings, state).unwrap();
    for (number, (cpus, gpus)) in used.iter().enumerate() {
        let mut pod = pod(*cpus, *gpus);
        pod.uid = uid(number as u128 + 1).to_string();
        node = admit(&node, &pod).unwrap().node;
    }
    facts_of("n", &node, &topology, BTreeMap::new())
}

fn pod(cpus: u64, gpus: u64) -> Pod {
    let mut pod = testing::pod(cpus * 1000, 1);
    let devices: BTreeMap<String, u64> = (gpus > 0).then(|| (GPU.to_owned(), gpus)).into_iter().collect();
    let resources = &mut pod.containers[0].resources;
    resources.limits.devices.clone_from(&devices);
    resources.requests.devices = devices;
    pod
}

fn placement(facts: &Facts, cpus: u64, gpus: u64) -> Placement {
    ask(facts, Vec::new(), &plain(&pod(cpus, gpus))).unwrap()
}

/// The NUMA nodes of its CPUs, and of its devices.
fn nodes(placement: &Placement) -> (Vec<u32>, Vec<u32>) {
    let outcome = &placement.outcome;
    let [cpus, devices] = [outcome.numa_nodes.clone(), PlacedDevices::nodes(&outcome.devices)];
    (cpus.into_iter().collect(), devices.into_iter().collect())
}

#[test]
fn a_node_where_device_and_cpus_meet_comes_before_an_emptier_one_where_they_do_not() {
    // Its CPUs on NUMA node 0 are a pod's, and its GPUs on 1 are another's.
    let apart = node(Policy::BestEffort, &[(6, 0), (1, 2)]);
    let fuller = node(Policy::BestEffort, &[(6, 2), (2, 0)]);
    let (apart, meets) = (placement(&apart, 4, 1), placement(&fuller, 4, 1));
    assert_eq!((nodes(&apart), nodes(&meets)), ((vec![1], vec![0]), (vec![1], vec![1])));
    assert_eq!((apart.score.devices, meets.score.devices), (Some(0), Some(100)));
    assert_eq!((apart.score.distance, meets.score.distance), (64, 100));
    assert!(meets.score.total > apart.score.total);
    assert!(priority(meets.score.total) > priority(apart.score.total));
    // The total of a node where they do not meet is never more than that of one where they do.
    assert!(apart.score.total <= crate::score::MAX_SCORE / 2 && meets.score.total >= crate::score::MAX_SCORE / 2);
}

#[test]
fn one_numa_node_is_better_than_two_on_which_they_meet() {
    let [one, two] = [2, 4].map(|gpus| placement(&node(Policy::BestEffort, &[]), 6, gpus));
    assert_eq!((nodes(&one).1.len(), nodes(&two).1), (1, vec![0, 1]));
    assert_eq!((one.score.devices, two.score.devices), (Some(100), Some(50)));
    assert!(one.score.total > two.score.total);
}

#[test]
fn where_the_plugin_chooses_the_share_is_what_is_to_be_expected() {
    let placement = placement(&node(Policy::None, &[]), 4, 1);
    assert_eq!((nodes(&placement).1, placement.score.devices), (vec![0, 1], Some(50)));
}

#[test]
fn a_pod_without_devices_has_the_score_that_it_had() {
    let placement = placement(&node(Policy::BestEffort, &[]), 4, 0);
    assert_eq!((placement.score.devices, nodes(&placement).1), (None, vec![]));
    let parts = placement.score;
    let sum = 50 * parts.koordinator * 5 + 200 * parts.distance + 200 * parts.fragmentation + 100 * parts.company;
    assert_eq!(u32::from(parts.total), sum / 100);
}
