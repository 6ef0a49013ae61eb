use serde_json::{Value, json};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::{facts, large};
use stelia_koordinator::report::{ApiVersion, Facts};

use super::*;
use crate::cluster::Chosen;
use crate::objects::{ObjectSelection, Objects};

fn topology(facts: &Facts) -> Value {
    serde_json::to_value(object(facts, Profile::Stelia, ApiVersion::V1Alpha2, Method::default())).unwrap()
}

fn node(name: &str, memory: &str, pods: &str) -> Value {
    json!({
        "kind": "Node", "metadata": { "name": name },
        "status": { "allocatable": { "cpu": "256", "memory": memory, "pods": pods } },
    })
}

fn cluster(items: &[Value]) -> Cluster {
    let mut objects = Objects::new(ObjectSelection { pods: true, pod: None });
    objects.read("", &json!({ "items": items }).to_string());
    Cluster::of(objects, &Chosen::default()).unwrap()
}

fn pod_request(words: &str) -> PodRequest {
    PodRequest::in_words(&[words.to_owned()], &AllocationRequest::default()).unwrap()
}

/// How many fit on the one node, whether there may be more, and what stops the next.
fn filled(items: &[Value], words: &str, until_full: bool) -> (Option<u64>, bool, String) {
    let plan = Plan::of(&pod_request(words), &cluster(items), until_full);
    let [node] = plan.nodes.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(plan.fits, node.fits.unwrap_or(0));
    (node.fits, node.or_more, node.stopped_by.clone().unwrap_or_default())
}

#[test]
fn a_node_is_full_by_its_cpus_or_by_what_pods_may_request() {
    let vms = topology(&large());
    // 28 free CPUs on whole cores: 120 of 128 cores are not reserved, 96 are VMs'.
    let free = filled(std::slice::from_ref(&vms), "cpus=2,memory=1Gi", true);
    assert!(
        free.0.is_some_and(|count| count > 10) && free.2.contains("NotAllocated"),
        "{free:?}"
    );
    let with = |memory, pods| {
        filled(
            &[vms.clone(), node("worker-1", memory, pods)],
            "cpus=2,memory=1Gi",
            true,
        )
    };
    assert_eq!(
        with("3Gi", "110"),
        (
            Some(3),
            false,
            "too little memory is left of what pods may request".to_owned()
        )
    );
    assert_eq!(
        with("1Ti", "2"),
        (Some(2), false, "it has as many pods as it may".to_owned())
    );
    assert_eq!(
        with("1Ti", "0"),
        (Some(0), false, "it has as many pods as it may".to_owned())
    );
    assert_eq!(with("1Ti", "1000"), free);
}

#[test]
fn without_filling_each_node_is_asked_for_one() {
    let node = topology(&facts());
    assert_eq!(
        filled(std::slice::from_ref(&node), "cpus=2,memory=1Gi", false),
        (Some(1), false, String::new())
    );
    let (fits, _, stop) = filled(std::slice::from_ref(&node), "cpus=4,memory=1Gi", false);
    assert_eq!(
        (fits, stop.as_str()),
        (Some(0), "kubelet would reject it: TopologyAffinityError")
    );
}

#[test]
fn where_nothing_stops_a_pod_the_limit_does() {
    // On the shared pool nothing is used up, and no Node tells what pods may request.
    let plan = Plan::of(
        &pod_request("cpus=500m,memory=1Gi"),
        &cluster(&[topology(&facts())]),
        true,
    );
    assert_eq!((plan.fits, plan.or_more), (MAX_PODS_PER_NODE, true));
    let text = plan.text(TextStyle::from(true));
    assert!(
        text.contains("256 or more on 1 of 1 node") && text.contains("256+"),
        "{text}"
    );
}

#[test]
fn a_node_without_an_object_is_not_known() {
    let plan = Plan::of(
        &pod_request("cpus=2,memory=1Gi"),
        &cluster(&[node("a", "1Ti", "110")]),
        true,
    );
    assert_eq!((plan.nodes[0].fits, plan.unknown, plan.fits), (None, 1, 0));
    assert_eq!(
        plan.failure().unwrap(),
        "no node is known to have room for pod; 1 cannot tell"
    );
}

#[test]
fn many_equal_nodes_share_a_row_on_a_terminal() {
    let nodes: Vec<Value> = (0..30)
        .map(|number| {
            let mut object = topology(&facts());
            object["metadata"]["name"] = format!("w-{number:02}.dc1.example").into();
            object
        })
        .collect();
    let plan = Plan::of(&pod_request("cpus=2,memory=1Gi"), &cluster(&nodes), false);
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let text = plan.text(terminal);
    assert!(text.contains("\nw-00 +29    1  -\n") && !text.contains("dc1"), "{text}");
    let piped = plan.text(TextStyle::from(true));
    assert_eq!(piped.matches(".dc1.example ").count(), 30, "{piped}");
}

#[test]
fn a_taint_is_not_broken_inside_on_a_terminal_of_80_columns() {
    let refusal = |what: &str, detail: &str| Refusal {
        what: what.to_owned(),
        detail: detail.to_owned(),
    };
    let taint = refusal("taint node.kubernetes.io/unreachable:NoSchedule is not tolerated", "");
    let rejection = refusal(
        "kubelet would reject it: TopologyAffinityError",
        "no NUMA node has 32 free CPUs",
    );
    let nodes: Vec<String> = (0..8).map(|number| format!("worker-00{number}")).collect();
    let reasons = nodes
        .iter()
        .flat_map(|node| [(node.as_str(), &taint), (node.as_str(), &rejection)]);
    let groups = groups(reasons);
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let text = table_of(&groups, terminal);
    assert!(text.contains("node.kubernetes.io/unreachable:NoSchedule "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn without_filling_only_nodes_without_room_have_a_reason() {
    let items = [topology(&large()), node("worker-1", "1Gi", "110")];
    assert_eq!(
        filled(&items, "cpus=2,memory=1Gi", false),
        (Some(1), false, String::new())
    );
    let plan = Plan::of(&pod_request("cpus=2,memory=1Gi"), &cluster(&items), false);
    assert_eq!(plan.stops, []);
    assert!(plan.assumed.iter().any(|text| text.starts_with("no pods were read")));
    let (fits, _, stop) = filled(&items, "cpus=2,memory=2Gi", false);
    assert_eq!(fits, Some(0));
    assert!(stop.contains("memory"), "{stop}");
}

#[test]
fn different_details_of_a_reason_are_named_by_how_many_nodes_have_them() {
    let of = |details: &[&str]| {
        let refusals: Vec<(String, Refusal)> = (1..)
            .zip(details)
            .map(|(number, detail)| {
                let refusal = Refusal {
                    what: "not Ready".to_owned(),
                    detail: (*detail).to_owned(),
                };
                (format!("w-{number}"), refusal)
            })
            .collect();
        let groups = groups(refusals.iter().map(|(node, refusal)| (node.as_str(), refusal)));
        let text = table_of(&groups, TextStyle::default());
        text.split("  ").last().unwrap().trim_end().to_owned()
    };
    let (rack, other) = ("Kubelet stopped posting", "the network is not ready");
    assert_eq!(
        of(&[other, rack, rack, rack, rack, rack]),
        "5: w-2, w-3, w-4, …: Kubelet stopped posting; 1: w-1: the network is not ready"
    );
    // A single further name is not left out.
    assert_eq!(of(&[rack; 4]), "w-1, w-2, w-3, w-4: Kubelet stopped posting");
    assert_eq!(of(&[""; 5]), "w-1, w-2, w-3, …");
    assert_eq!(of(&["2 of 4", "1 of 4"]), "w-1 (2 of 4), w-2 (1 of 4)");
    let checksums = ["the checksum is 1", "the checksum is 2", "the checksum is 3"];
    assert_eq!(of(&checksums), "w-1, w-2, w-3; the first of them: the checksum is 1");
}

/// What the objects in tests/data/cluster/gpus have room for.
#[test]
fn vms_with_devices_are_counted_together_and_by_sums() {
    let text = std::fs::read_to_string("../../tests/data/cluster/gpus/cluster.json").unwrap();
    let mut objects = Objects::new(ObjectSelection { pods: true, pod: None });
    objects.read("", &text);
    let cluster = Cluster::of(objects, &Chosen::default()).unwrap();
    let counts = |words: &str| {
        let plan = Plan::of(&pod_request(words), &cluster, true);
        let of = |node: &Filled| (node.name.clone(), node.fits, node.together, node.by_sum);
        let nodes: Vec<_> = plan.nodes.iter().map(of).collect();
        (nodes, plan.together, plan.by_sum)
    };
    let expected = [
        // The CPUs that are left are at one NUMA node, the devices at the other.
        ("gpu-1", 4, 0, 4),
        ("gpu-2", 6, 5, 6),
        ("gpu-3", 0, 0, 4),
        // Three VMs have CPUs and devices at NUMA node 0, and one at 1.
        ("gpu-4", 6, 4, 6),
    ];
    let expected =
        expected.map(|(name, fits, together, by_sum)| (name.to_owned(), Some(fits), Some(together), Some(by_sum)));
    assert_eq!(
        counts("cpus=4,memory=1Gi,nvidia.com/gpu=1"),
        (expected.to_vec(), Some(9), Some(20))
    );
    let (nodes, together, by_sum) = counts("cpus=4,memory=1Gi");
    assert!(
        nodes
            .iter()
            .all(|(_, _, together, by_sum)| (*together, *by_sum) == (None, None)),
        "{nodes:?}"
    );
    assert_eq!((together, by_sum), (None, None));
}
