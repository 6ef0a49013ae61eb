use serde_json::{Value, json};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::report::profile::Profile;
use stelia_koordinator::report::testing::facts;

use super::*;
use crate::tests::{cluster, pipe, pod_request};

const UID: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

fn topology(name: &str, profile: Profile) -> Value {
    crate::tests::topology(&facts(), name, profile)
}

#[test]
fn who_has_the_cpus_is_told_with_the_lists_where_these_are_known() {
    let pod = json!({
        "kind": "Pod", "metadata": { "name": "web", "namespace": "team-a", "uid": UID },
        "spec": { "nodeName": "b", "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2", "memory": "1Gi" } } }] },
    });
    // Free are 1 on node 0, and 6-7 on node 1.
    let cluster = cluster(&[topology("a", Profile::Koordinator), topology("b", Profile::Stelia), pod]);
    let why = WhyAnswer::of(&pod_request("cpus=4,memory=1Gi"), &cluster);
    assert_eq!((why.asked, why.room, why.unknown), (2, 0, 0));
    assert_eq!(why.reasons.len(), 1);
    assert_eq!(
        (why.reasons[0].reason.as_str(), why.reasons[0].nodes),
        ("kubelet would reject it: TopologyAffinityError", 2)
    );
    let words: Vec<String> = why.closest.iter().map(|one| one.in_words()).collect();
    assert_eq!(
        words,
        [
            "a has room for 2 of 4 CPUs on one NUMA node (free whole cores: 0 on NUMA node 0, 1 on NUMA node 1): \
             416de7c2-21de-472d-817c-fa9d4306cb7d has 2 (4-5)",
            "b has room for 2 of 4 CPUs on one NUMA node (free whole cores: 0 on NUMA node 0, 1 on NUMA node 1): \
             416de7c2-21de-472d-817c-fa9d4306cb7d has 2 (4-5)",
        ]
    );
    assert_eq!(why.failure().unwrap(), "no node has room for pod");
    let room = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster);
    assert_eq!(
        (room.room, room.names(), room.failure()),
        (2, vec!["a".to_owned(), "b".to_owned()], None)
    );
    assert!(room.closest.is_empty());
}

#[test]
fn a_node_that_cannot_tell_is_neither_full_nor_free() {
    let node = json!({ "kind": "Node", "metadata": { "name": "a" }, "status": { "allocatable": { "cpu": "8", "memory": "8Gi" } } });
    let mut broken = topology("b", Profile::Stelia);
    broken["attributes"] = json!([{ "name": "isolation.stelia.io/node", "value": "?" }]);
    broken["zones"] = json!([]);
    let mut of_broken = node.clone();
    of_broken["metadata"]["name"] = "b".into();
    let cluster = cluster(&[node.clone(), of_broken, broken]);
    let why = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster);
    assert_eq!((why.asked, why.room, why.unknown), (2, 0, 2));
    assert_eq!(
        why.failure().unwrap(),
        "no node is known to have room for pod; 2 cannot tell"
    );
    // One that refuses for another reason is full, whatever its CPUs are.
    let why = WhyAnswer::of(&pod_request("cpus=9,memory=1Gi"), &crate::tests::cluster(&[node]));
    assert_eq!((why.room, why.unknown, why.nodes[0].room), (0, 0, Some(false)));
}

#[test]
fn a_node_that_says_that_it_is_unusable_is_not_used() {
    let mut unusable = topology("a", Profile::Stelia);
    let state = json!({ "name": "isolation.stelia.io/state", "value": "unusable" });
    unusable["attributes"].as_array_mut().unwrap().push(state.clone());
    let mut ready = topology("b", Profile::Stelia);
    let mut state = state;
    state["value"] = json!("ready");
    ready["attributes"].as_array_mut().unwrap().push(state);
    let why = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster(&[unusable, ready]));
    assert_eq!(why.names(), ["b"]);
    assert!(
        why.nodes[0].reasons[0].what.contains("must not be used"),
        "{:?}",
        why.nodes[0]
    );
}

#[test]
fn what_is_taken_for_granted_is_told() {
    let why = WhyAnswer::of(
        &pod_request("cpus=2,memory=1Gi"),
        &cluster(&[topology("a", Profile::Nrt)]),
    );
    let assumed = why.assumed.join("\n");
    assert!(
        assumed.contains("no Nodes were read") && assumed.contains("1 node are published as amounts only"),
        "{assumed}"
    );
    assert_eq!(why.room, 1);
    let text = why.text(pipe());
    assert!(text.contains("Room:     on 1 of 1 nodes: a"), "{text}");
}

/// A VM of two CPUs of its own.
fn vm() -> PodRequest {
    let text = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": "vm" },
        "spec": { "domain": { "cpu": { "cores": 2, "dedicatedCpuPlacement": true }, "memory": { "guest": "1Gi" } } },
    });
    PodRequest::of_manifest(&text.to_string(), None, &AllocationRequest::default()).unwrap()
}

fn kubevirt_node(name: &str, labels: &Value, kvm: &str) -> Value {
    json!({
        "kind": "Node", "metadata": { "name": name, "labels": labels },
        "status": { "allocatable": {
            "cpu": "8", "memory": "8Gi", "devices.kubevirt.io/kvm": kvm, "devices.kubevirt.io/tun": "1k", "devices.kubevirt.io/vhost-net": "1k",
        } },
    })
}

#[test]
fn a_vm_needs_a_node_with_kubevirts_labels_and_devices() {
    let names = ["a", "b", "c", "d"];
    let mut objects: Vec<Value> = names.iter().map(|name| topology(name, Profile::Stelia)).collect();
    let labels = |schedulable: &str, cpu_manager: &str| json!({ "kubevirt.io/schedulable": schedulable, "kubevirt.io/cpumanager": cpu_manager });
    objects.extend([
        kubevirt_node("a", &labels("true", "true"), "1k"),
        kubevirt_node("b", &labels("false", "true"), "1k"),
        kubevirt_node("c", &labels("true", "false"), "1k"),
        kubevirt_node("d", &labels("true", "true"), "0"),
    ]);
    let cluster = cluster(&objects);
    let why = WhyAnswer::of(&vm().in_cluster(&cluster), &cluster);
    assert_eq!(why.names(), ["a"], "{why:?}");
    let reasons = why
        .nodes
        .iter()
        .map(|answer| answer.reasons.first().map(|one| one.detail.as_str()));
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [
            None,
            Some("kubevirt.io/schedulable=true"),
            Some("kubevirt.io/cpumanager=true"),
            Some("1 requested, 0 left")
        ]
    );
    assert!(!why.assumed.iter().any(|assumed| assumed.contains("KubeVirt requires")));
    // What is no VM may run on each.
    let pod = pod_request("cpus=2,memory=1Gi").in_cluster(&cluster);
    assert_eq!(WhyAnswer::of(&pod, &cluster).room, 4);
}

#[test]
fn without_any_node_of_kubevirt_its_labels_and_devices_are_only_named() {
    let node = json!({ "kind": "Node", "metadata": { "name": "a" }, "status": { "allocatable": { "cpu": "8", "memory": "8Gi" } } });
    let cluster = cluster(&[topology("a", Profile::Stelia), node]);
    let why = WhyAnswer::of(&vm().in_cluster(&cluster), &cluster);
    assert_eq!(why.room, 1);
    let assumed = why.assumed.join("\n");
    for words in [
        "KubeVirt requires the labels kubevirt.io/cpumanager=true, kubevirt.io/schedulable=true of the node",
        "KubeVirt requires the devices devices.kubevirt.io/kvm, devices.kubevirt.io/tun, devices.kubevirt.io/vhost-net of the node",
    ] {
        assert!(assumed.contains(words), "{assumed}");
    }
}
