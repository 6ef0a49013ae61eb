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
    assert_eq!((why.reasons.len(), why.reasons[0].nodes), (1, 2));
    assert!(why.reasons[0].reason.contains("TopologyAffinityError"));
    for (closest, node) in why.closest.iter().zip(["a", "b"]) {
        let words = closest.in_words();
        assert!(words.starts_with(&format!("{node} has room for 2 of 4 CPUs")));
        assert!(
            words.contains("0 on NUMA node 0, 1 on NUMA node 1") && words.ends_with(" has 2 (4-5)"),
            "{words}"
        );
    }
    assert_eq!((why.closest.len(), why.failure().is_some()), (2, true));
    let room = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster);
    assert_eq!((room.room, room.failure(), room.closest.len()), (2, None, 0));
    assert_eq!(room.with_room(), ["a", "b"]);
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
    assert!(why.failure().unwrap().contains("2 cannot tell"));
    // One that refuses for another reason is full, whatever its CPUs are.
    let why = WhyAnswer::of(&pod_request("cpus=9,memory=1Gi"), &crate::tests::cluster(&[node]));
    assert_eq!((why.room, why.unknown, why.nodes[0].room), (0, 0, Some(false)));
}

#[test]
fn a_node_that_says_that_it_is_unusable_is_not_used() {
    let nodes = [("a", "unusable"), ("b", "ready")].map(|(name, state)| {
        let mut object = topology(name, Profile::Stelia);
        let state = json!({ "name": "isolation.stelia.io/state", "value": state });
        object["attributes"].as_array_mut().unwrap().push(state);
        object
    });
    let why = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster(&nodes));
    assert_eq!(why.with_room(), ["b"]);
    assert!(why.nodes[0].reasons[0].what.contains("must not be used"));
}

#[test]
fn what_is_taken_for_granted_is_told() {
    let cluster = cluster(&[topology("a", Profile::Nrt)]);
    let why = WhyAnswer::of(&pod_request("cpus=2,memory=1Gi"), &cluster);
    let assumed = why.assumed.join("\n");
    assert!(
        ["no Nodes were read", "as amounts only"]
            .iter()
            .all(|part| assumed.contains(part))
    );
    assert_eq!(why.room, 1);
    assert!(why.text(pipe()).contains("on 1 of 1 nodes: a"));
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
    assert_eq!(why.with_room(), ["a"], "{why:?}");
    let reasons = [1, 2, 3].map(|at: usize| why.nodes[at].reasons[0].detail.as_str());
    let labels = ["kubevirt.io/schedulable=true", "kubevirt.io/cpumanager=true"];
    assert_eq!(reasons, [labels[0], labels[1], "1 requested, 0 left"]);
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
