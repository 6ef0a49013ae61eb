use serde_json::{Value, json};
use stelia_koordinator::report::Facts;
use stelia_koordinator::report::profile::Profile;
use stelia_koordinator::report::testing::{facts, large};

use super::*;
use crate::cluster::Chosen;
use crate::objects::Objects;
use crate::tests::{cluster, pipe, pod_request};

fn topology(facts: &Facts) -> Value {
    crate::tests::topology(facts, &facts.name, Profile::Stelia)
}

fn node(name: &str, memory: &str, pods: &str) -> Value {
    json!({
        "kind": "Node", "metadata": { "name": name },
        "status": { "allocatable": { "cpu": "256", "memory": memory, "pods": pods } },
    })
}

/// How many fit on the one node, whether there may be more, and what stops the next.
fn filled(items: &[Value], words: &str, until_full: bool) -> (Option<u64>, bool, String) {
    let plan = Plan::of(&pod_request(words), &cluster(items), until_full);
    let [node] = plan.nodes.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(plan.fits, node.fits.unwrap_or(0));
    let stop = node.stop.clone().map(|stop| stop.what);
    (node.fits, node.or_more, stop.unwrap_or_default())
}

#[test]
fn a_node_is_full_by_its_cpus_or_by_what_pods_may_request() {
    let vms = topology(&large());
    // 28 free CPUs on whole cores: 120 of 128 cores are not reserved, 96 are VMs'.
    let free = filled(std::slice::from_ref(&vms), "cpus=2,memory=1Gi", true);
    assert!(free.0.unwrap() > 10 && free.2.contains("NotAllocated"), "{free:?}");
    let memory = "too little allocatable memory";
    let pods = "it has as many pods as it may";
    for (amount, most, until_full, fits, stop) in [
        ("3Gi", "110", true, Some(3), memory),
        ("1Ti", "2", true, Some(2), pods),
        ("1Ti", "0", true, Some(0), pods),
        ("1Ti", "1000", true, free.0, free.2.as_str()),
        // Without filling each node is asked for one, and only a node without room has a reason.
        ("1Gi", "110", false, Some(1), ""),
        ("500Mi", "110", false, Some(0), memory),
    ] {
        let items = [vms.clone(), node("worker-1", amount, most)];
        let told = filled(&items, "cpus=2,memory=1Gi", until_full);
        assert_eq!(told, (fits, false, stop.to_owned()), "{amount} {most}");
    }
    let (fits, _, stop) = filled(&[topology(&facts())], "cpus=4,memory=1Gi", false);
    let rejection = "kubelet would reject it: TopologyAffinityError";
    assert_eq!((fits, stop.as_str()), (Some(0), rejection));
}

#[test]
fn where_nothing_stops_a_pod_the_limit_does() {
    // On the shared pool nothing is used up, and no Node tells what pods may request.
    let small = pod_request("cpus=500m,memory=1Gi");
    let plan = Plan::of(&small, &cluster(&[topology(&facts())]), true);
    assert_eq!((plan.fits, plan.or_more), (MAX_PODS_PER_NODE, true));
    let text = plan.text(pipe());
    assert!(text.contains("256 or more") && text.contains("256+"), "{text}");
}

#[test]
fn a_node_without_an_object_is_not_known() {
    let cluster = cluster(&[node("a", "1Ti", "110")]);
    let plan = Plan::of(&pod_request("cpus=2,memory=1Gi"), &cluster, true);
    assert_eq!((plan.nodes[0].fits, plan.unknown, plan.fits), (None, 1, 0));
    assert!(plan.failure().unwrap().contains("1 cannot tell"));
}

/// What the objects in tests/data/cluster/gpus have room for.
#[test]
fn vms_with_cpus_and_devices_on_the_same_numa_nodes_are_counted() {
    let text = std::fs::read_to_string("../../tests/data/cluster/gpus/cluster.json").unwrap();
    let mut objects = Objects::new(true);
    objects.read("", &text);
    let cluster = Cluster::of(objects, &Chosen::default()).unwrap();
    let counts = |words: &str| {
        let plan = Plan::of(&pod_request(words), &cluster, true);
        let of = |node: &Filled| (node.name.clone(), node.fits, node.together);
        let nodes: Vec<_> = plan.nodes.iter().map(of).collect();
        (nodes, plan.together)
    };
    let expected = [
        // The CPUs that are left are at one NUMA node, the devices at the other.
        ("gpu-1", 4, 0),
        ("gpu-2", 6, 5),
        ("gpu-3", 0, 0),
        // Three VMs have CPUs and devices at NUMA node 0, and one at 1.
        ("gpu-4", 6, 4),
    ];
    let expected = expected.map(|(name, fits, together)| (name.to_owned(), Some(fits), Some(together)));
    let (nodes, together) = counts("cpus=4,memory=1Gi,nvidia.com/gpu=1");
    assert_eq!((nodes, together), (expected.to_vec(), Some(9)));
    let (nodes, together) = counts("cpus=4,memory=1Gi");
    assert!(nodes.iter().all(|(.., together)| together.is_none()), "{nodes:?}");
    assert_eq!(together, None);
}
