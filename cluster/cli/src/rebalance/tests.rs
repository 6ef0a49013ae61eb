use serde_json::{Value, json};
use stelia_cpus::testing::Shape;
use stelia_koordinator::allocator::{AllocationRequest, HeldCpus, NumaTopologyAlignmentPolicy};
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::{large, numa};
use stelia_koordinator::report::{ApiVersion, PodAllocation};

use super::*;
use crate::cluster::Chosen;
use crate::objects::{ObjectSelection, Objects};

fn uid(number: usize) -> String {
    format!("416de7c2-21de-472d-817c-fa9d4306cb{number:02x}")
}

/// A node of two NUMA nodes of four cores where steliad chooses, with these VMs: its number and CPUs. The first core is reserved.
fn node(name: &str, profile: Profile, vms: &[(usize, &str)]) -> Vec<Value> {
    let mut all = vec![described(name, profile, vms, &[])];
    all.push(json!({
        "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "14", "memory": "64Gi", "pods": "110", "stelia.io/vm": "14"}},
    }));
    all.extend(vms.iter().map(|(number, cpus)| {
        let cpus: CpuSet = cpus.parse().unwrap();
        let limits = json!({"cpu": cpus.len().to_string(), "memory": "2Gi", "stelia.io/vm": "1"});
        json!({
            "kind": "Pod", "metadata": {"namespace": "vms", "name": format!("vm-{number}"), "uid": uid(*number)},
            "spec": {"nodeName": name, "containers": [{"name": "vm", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        })
    }));
    all
}

/// What such a node publishes; `containers`: the numbers of those that are containers without a VM.
fn described(name: &str, profile: Profile, vms: &[(usize, &str)], containers: &[usize]) -> Value {
    let shape = Shape {
        nodes: 2,
        cores: 4,
        threads: 2,
        interleaved: false,
    };
    let mut facts = large();
    facts.name = name.to_owned();
    facts.kubelet.cpu_policy = "none".to_owned();
    facts.topology = shape.topology();
    facts.numa = numa(2);
    facts.reserved = "0-1".parse().unwrap();
    facts.kubelet.reserved = facts.reserved.clone();
    let allocation = |(number, cpus): &(usize, &str)| PodAllocation {
        pod: stelia_kubelet::PodUid::parse(&uid(*number)).unwrap(),
        name: None,
        cpus: cpus.parse().unwrap(),
        by_kubelet: false,
    };
    facts.allocations = vms.iter().map(allocation).collect();
    facts.exclusive = facts.allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    facts.shared = facts.topology.online().difference(&facts.exclusive);
    let allocator = facts.allocator.as_mut().unwrap();
    allocator.policies.reserved = facts.reserved.clone();
    allocator.policies.alignment = NumaTopologyAlignmentPolicy::SingleNumaNode;
    allocator.held = HeldCpus::default();
    let pod = |number: &usize| stelia_kubelet::PodUid::parse(&uid(*number)).unwrap();
    facts.containers = containers.iter().map(pod).collect();
    let version = profile.versions().last().copied().unwrap_or(ApiVersion::V1Alpha2);
    serde_json::to_value(object(&facts, profile, version, Method::default())).unwrap()
}

fn cluster(parts: &[Vec<Value>]) -> Cluster {
    let mut objects = Objects::new(ObjectSelection { pods: true, pod: None });
    objects.keep_whole();
    objects.read("", &json!({ "items": parts.concat() }).to_string());
    Cluster::of(objects, &Chosen::default()).unwrap()
}

const ALL: RebalanceLimits = RebalanceLimits {
    rebind: true,
    migrate: true,
    moves: 3,
    plans: 3,
};

fn asked(cluster: &Cluster, words: &str, may: RebalanceLimits) -> Rebalance {
    let pod_request = PodRequest::in_words(&[words.to_owned()], &AllocationRequest::default()).unwrap();
    Rebalance::of(&pod_request, cluster, may)
}

/// Six CPUs of one NUMA node: two and four are free on a, on b four.
fn tight() -> Cluster {
    cluster(&[
        node("a", Profile::Stelia, &[(1, "4-7"), (2, "8-11")]),
        node("b", Profile::Stelia, &[(3, "2-7"), (4, "8-11")]),
    ])
}

#[test]
fn a_pod_that_fits_moves_nobody() {
    let answer = asked(&tight(), "cpus=4,memory=1Gi", ALL);
    assert!(
        answer.fits.is_some() && answer.plans.is_empty() && answer.failure().is_none(),
        "{answer:?}"
    );
}

#[test]
fn a_node_without_enough_memory_or_vm_resources_has_no_room() {
    let answer = asked(&tight(), "cpus=4,memory=740Gi", ALL);
    assert_eq!((answer.fits.as_deref(), answer.plans.len()), (None, 0), "{answer:?}");
    let mut parts = [node("a", Profile::Stelia, &[(1, "4-7")])];
    parts[0][1]["status"]["allocatable"]["stelia.io/vm"] = "1".into();
    let answer = asked(&cluster(&parts), "cpus=4,memory=1Gi,stelia.io/vm=1", ALL);
    assert_eq!(answer.fits, None, "{answer:?}");
    assert!(answer.failure().is_some());
}

#[test]
fn a_node_that_was_deleted_has_no_room() {
    let mut parts = [node("a", Profile::Stelia, &[]), node("b", Profile::Stelia, &[])];
    parts[0].remove(1);
    let answer = asked(&cluster(&parts), "cpus=4,memory=1Gi", ALL);
    assert_eq!(answer.fits.as_deref(), Some("b"), "{answer:?}");
    let answer = asked(&cluster(&parts), "cpus=40,memory=1Gi", ALL);
    let passed_over: Vec<&str> = answer.passed_over.iter().map(|group| group.reason.as_str()).collect();
    assert!(passed_over.contains(&"its Node does not exist"), "{answer:?}");
}

#[test]
fn the_moves_are_told_with_the_names_of_the_vms_and_their_order() {
    let answer = asked(&tight(), "cpus=6,memory=1Gi", ALL);
    let best = &answer.plans[0];
    let told: Vec<(u64, &str, &str)> = best
        .moves
        .iter()
        .map(|one| (one.step, one.vm.as_str(), one.how))
        .collect();
    assert_eq!(
        (best.node.as_str(), told),
        ("a", vec![(1, "vms/vm-1", "rebind")]),
        "{answer:?}"
    );
    assert_eq!((best.cpus.to_string().as_str(), best.copied), ("2-7", 0));
    assert!(best.moves[0].to_cpus.is_subset(&"12-15".parse().unwrap()), "{best:?}");
    let text = answer.text(TextStyle::from(false));
    assert!(
        text.contains("a on CPUs 2-7 after 1 rebind;") && text.contains("a:4-7"),
        "{text}"
    );
    assert_eq!((answer.names()[0].as_str(), answer.vms), ("a", 4));
}

#[test]
fn without_rebinds_a_vm_goes_to_another_node_and_its_memory_counts() {
    let may = RebalanceLimits { rebind: false, ..ALL };
    let answer = asked(&tight(), "cpus=6,memory=1Gi", may);
    let best = &answer.plans[0];
    let [one] = best.moves.as_slice() else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (one.how, one.memory, best.copied),
        ("migrate", 2 << 30, 2 << 30),
        "{best:?}"
    );
    assert_ne!(one.to, best.node);
    let none = asked(&tight(), "cpus=6,memory=1Gi", RebalanceLimits { migrate: false, ..may });
    assert!(none.plans.is_empty() && none.failure().is_some(), "{none:?}");
}

#[test]
fn what_the_scheduler_counts_is_looked_at() {
    // The CPUs are there after a move; the memory is not.
    let answer = asked(&tight(), "cpus=6,memory=63Gi", ALL);
    assert!(answer.plans.is_empty(), "{answer:?}");
}

#[test]
fn nodes_that_cannot_be_searched_are_counted_by_the_reason() {
    let lean = node("c", Profile::Nrt, &[]);
    let mut unpublished = node("d", Profile::Stelia, &[]);
    unpublished.remove(0);
    let mut tainted = node("e", Profile::Stelia, &[]);
    tainted[1]["spec"] = json!({"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]});
    let answer = asked(&cluster(&[lean, unpublished, tainted]), "cpus=6,memory=1Gi", ALL);
    let reasons: Vec<&str> = answer.passed_over.iter().map(|group| group.reason.as_str()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        answer.text(TextStyle::from(false)).contains("no NodeResourceTopology"),
        "{reasons:?}"
    );
}

#[test]
fn pods_without_a_vm_and_pods_that_leave_stay() {
    let mut parts = node("a", Profile::Stelia, &[(1, "4-7"), (2, "8-15")]);
    parts[2]["metadata"]["deletionTimestamp"] = json!("2026-05-04T09:12:33Z");
    parts[3]["spec"]["containers"][0]["resources"]["limits"]
        .as_object_mut()
        .unwrap()
        .remove("stelia.io/vm");
    let answer = asked(
        &cluster(&[parts, node("b", Profile::Stelia, &[])]),
        "cpus=14,memory=1Gi",
        ALL,
    );
    assert_eq!((answer.vms, answer.plans.len()), (0, 0), "{answer:?}");
}

#[test]
fn a_container_without_a_vm_is_not_moved_whatever_it_asks_for_and_is_named() {
    // As tight(), but the smaller one on a is a container, and nobody else can go.
    let container = |with: bool| {
        let mut parts = node("a", Profile::Stelia, &[(1, "4-7"), (2, "8-11")]);
        if with {
            parts[0] = described("a", Profile::Stelia, &[(1, "4-7"), (2, "8-11")], &[1]);
        }
        cluster(&[parts, node("b", Profile::Stelia, &[(3, "2-7"), (4, "8-11")])])
    };
    let moved = |answer: &Rebalance| -> Vec<String> {
        let moves = answer.plans.iter().flat_map(|plan| &plan.moves);
        moves.map(|one| one.vm.clone()).collect()
    };
    let before = asked(&container(false), "cpus=6,memory=1Gi", ALL);
    assert!(moved(&before).contains(&"vms/vm-1".to_owned()), "{before:?}");
    assert!(before.staying.is_empty());
    let answer = asked(&container(true), "cpus=6,memory=1Gi", ALL);
    assert!(!moved(&answer).contains(&"vms/vm-1".to_owned()), "{answer:?}");
    assert_eq!(answer.vms, 3);
    let [stays] = answer.staying.as_slice() else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (
            stays.pod.as_str(),
            stays.node.as_str(),
            stays.isolation,
            stays.pod_uid.as_str()
        ),
        ("vms/vm-1", "a", "container", uid(1).as_str())
    );
    let text = answer.text(TextStyle::from(false));
    assert!(
        text.contains("vms/vm-1 on a: a container without a VM: it cannot be migrated live"),
        "{text}"
    );
}

#[test]
fn containers_are_counted_where_their_node_publishes_them() {
    let parts = [
        vec![described("a", Profile::Stelia, &[(1, "4-7"), (2, "8-11")], &[2])],
        node("b", Profile::Koordinator, &[(3, "2-7")]),
    ];
    let nodes = crate::nodes::Nodes::of(&cluster(&parts), 0).nodes;
    let counts: Vec<_> = nodes.iter().map(|row| (row.vms, row.containers)).collect();
    assert_eq!(counts, [(Some(2), Some(1)), (Some(1), None)]);
}

#[test]
fn on_a_terminal_each_move_is_a_sentence_with_the_whole_name() {
    let answer = asked(&tight(), "cpus=6,memory=1Gi", ALL);
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let text = answer.text(terminal);
    assert!(
        text.contains("Move 1:    rebind vms/vm-1 from CPUs 4-7 to CPUs 12-15\n"),
        "{text}"
    );
    assert!(!text.contains("STEP"), "{text}");
    assert!(answer.text(TextStyle::from(true)).contains("\nSTEP  VM"));
}
