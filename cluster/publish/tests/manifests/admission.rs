//! The admission policies over requests. These were written after the API's types and what a kube-apiserver sends (`tests/data/admission/`), each one that
//! a publisher makes and that is admitted; the tests change one thing in it at a time.

use cel::Env;
use rstest::rstest;
use serde_json::{Value, json};

use crate::policy::{all_policies, denials, expressions};
use crate::{read, repository};

const REQUESTS: [&str; 8] = [
    "topology-create",
    "topology-update",
    "topology-delete",
    "node-patch",
    "pod-status-patch",
    "event-create",
    "event-update",
    "rebind-status",
];
const NODE: &str = "authentication.kubernetes.io/node-name";

pub fn recorded(request: &str) -> Value {
    let path = repository(&format!("tests/data/admission/{request}.json"));
    serde_json::from_str(&read(&path)).unwrap_or_else(|e| panic!("{request}: {e}"))
}

/// The request with `value` at the pointer below `request`; a member that is not there is made.
pub fn changed(request: &str, pointer: &str, value: Value) -> Value {
    let mut review = recorded(request);
    set(&mut review, pointer, value);
    review
}

pub fn set(review: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    match review.pointer_mut(&format!("/request{parent}")) {
        Some(Value::Object(parent)) => drop(parent.insert(key, value)),
        Some(Value::Array(list)) if key == "-" => list.push(value),
        Some(Value::Array(list)) => list[key.parse::<usize>().expect("a place")] = value,
        _ => panic!("nothing at {parent}"),
    }
}

pub fn removed(request: &str, pointer: &str) -> Value {
    let mut review = recorded(request);
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    let gone = match review.pointer_mut(&format!("/request{parent}")) {
        Some(Value::Object(parent)) => parent.remove(&key),
        Some(Value::Array(list)) => Some(list.remove(key.parse().expect("a place"))),
        _ => None,
    };
    assert!(gone.is_some(), "nothing at {pointer}");
    review
}

/// The one message against the request, which has one thing wrong.
pub fn denied(review: &Value) -> String {
    let said = denials(review);
    assert_eq!(said.len(), 1, "{said:?}");
    said[0].1.clone()
}

pub fn messages(review: &Value) -> Vec<String> {
    denials(review).into_iter().map(|(_, message)| message).collect()
}

/// As the systemd unit asks, with a client certificate.
fn by_certificate(request: &str, node: &str) -> Value {
    let user = json!({"username": format!("stelia:publish:{node}"), "groups": ["stelia:publish", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=5f5f"]}});
    changed(request, "/userInfo", user)
}

/// Who asks, and whether that may be a publisher of another node, of none, or somebody else.
#[test]
fn a_publisher_may_do_for_its_own_node_what_one_of_another_or_of_none_may_not() {
    let node = format!("/userInfo/extra/{}", NODE.replace('/', "~1"));
    for request in REQUESTS {
        let mut others = removed(request, "/userInfo/extra");
        let koordlet = "system:serviceaccount:koordinator-system:koordlet";
        set(&mut others, "/userInfo/username", json!(koordlet));
        let groups = json!(["system:serviceaccounts", "system:authenticated"]);
        set(&mut others, "/userInfo/groups", groups);
        let named = |name: &str| {
            let mut review = by_certificate(request, "worker-1");
            set(&mut review, "/userInfo/username", json!(name));
            review
        };
        for review in [recorded(request), by_certificate(request, "worker-1"), others] {
            assert_eq!(denials(&review), [], "{request}");
        }
        for review in [
            changed(request, &node, json!(["worker-2"])),
            by_certificate(request, "worker-2"),
            removed(request, &node),
            removed(request, "/userInfo/extra"),
            changed(request, "/userInfo/extra", json!({})),
            changed(request, &node, json!([])),
        ] {
            let said = denied(&review);
            assert!(said.contains("own"), "{request}: {said}");
        }
        for name in [
            "stelia:publish:",
            "worker-1",
            "stelia:publish",
            "stelia:publish:worker-1:",
        ] {
            assert!(!denials(&named(name)).is_empty(), "{name}: {request}");
        }
    }
}

#[test]
fn kubelets_identity_writes_its_own_topology_and_what_else_it_writes_is_not_ours() {
    let kubelet = |request: &str, node: &str| {
        let name = format!("system:node:{node}");
        let user = json!({"username": name, "groups": ["system:nodes", "system:authenticated"]});
        changed(request, "/userInfo", user)
    };
    for request in ["topology-create", "topology-update", "topology-delete"] {
        assert_eq!(denials(&kubelet(request, "worker-1")), []);
        let said = denied(&kubelet(request, "worker-2"));
        assert_eq!(said, "a node writes its own NodeResourceTopology only");
    }
    let mut heartbeat = kubelet("node-status-patch", "worker-1");
    let beat = "/object/status/conditions/0/lastHeartbeatTime";
    set(&mut heartbeat, beat, json!("2026-11-24T08:05:08Z"));
    assert_eq!(denials(&heartbeat), []);
    let mut status = kubelet("pod-status-patch", "worker-1");
    set(&mut status, "/object/status/phase", json!("Succeeded"));
    assert_eq!(denials(&status), []);
}

#[rstest]
#[case("/object/metadata/name", json!("worker-2"), "a node writes its own NodeResourceTopology only")]
#[case("/object/metadata/ownerReferences/0/name", json!("worker-2"), "the owner of a NodeResourceTopology is its Node")]
#[case("/object/metadata/ownerReferences/0/kind", json!("Namespace"), "the owner of a NodeResourceTopology is its Node")]
#[case("/object/metadata/ownerReferences/0/apiVersion", json!("example.com/v1"), "the owner of a NodeResourceTopology is its Node")]
#[case("/object/metadata/ownerReferences/0/uid", json!("another"), "the owner of a NodeResourceTopology is its Node")]
#[case("/object/metadata/finalizers", json!(["example.com/stay"]), "a NodeResourceTopology has no finalizers")]
fn a_topology_that_is_not_the_nodes_own(#[case] pointer: &str, #[case] value: Value, #[case] message: &str) {
    for request in ["topology-create", "topology-update"] {
        let said = messages(&changed(request, pointer, value.clone()));
        assert!(said.iter().any(|one| one == message), "{request}: {said:?}");
    }
}

#[test]
fn a_publisher_makes_deletes_and_changes_no_rebind_resource_but_its_status() {
    let only_status = "a publisher changes the status of RebindResources only";
    for operation in ["CREATE", "DELETE"] {
        let review = changed("rebind-status", "/operation", json!(operation));
        assert_eq!(denied(&review), only_status);
    }
    let mut whole = changed("rebind-status", "/subResource", Value::Null);
    assert_eq!(denied(&whole), only_status);
    // Whose it is is said by the object that there is.
    set(&mut whole, "/subResource", json!("status"));
    set(&mut whole, "/oldObject/spec/nodeName", json!("worker-2"));
    assert_eq!(
        denied(&whole),
        "a publisher changes RebindResources of its own node only"
    );
}

#[test]
fn another_nodes_topology_is_not_deleted() {
    let review = changed("topology-delete", "/oldObject/metadata/name", json!("worker-2"));
    assert_eq!(denied(&review), "a node writes its own NodeResourceTopology only");
}

/// The change the other way round.
fn back(mut review: Value) -> Value {
    let [object, old] = ["object", "oldObject"].map(|key| review["request"][key].take());
    set(&mut review, "/object", old);
    set(&mut review, "/oldObject", object);
    review
}

/// Without this member of the request.
fn without(mut review: Value, parent: &str, key: &str) -> Value {
    let parent = review.pointer_mut(&format!("/request{parent}"));
    parent.and_then(Value::as_object_mut).expect("an object").remove(key);
    review
}

const NOTHING_OF_THE_STATUS: &str = "of the status of its Node a publisher changes nothing";

/// `null`: it is removed.
#[rstest]
#[case("/object/metadata/labels/kubernetes.io~1hostname", json!("other"), "labels")]
#[case("/object/metadata/labels/kubernetes.io~1hostname", Value::Null, "labels")]
#[case("/object/metadata/labels/node-role.kubernetes.io~1control-plane", json!(""), "labels")]
#[case("/object/metadata/labels/stelia.io~1steliad", json!("false"), "labels")]
#[case("/object/metadata/annotations/example.com~1a", json!("b"), "annotations")]
#[case("/object/metadata/annotations/volumes.kubernetes.io~1controller-managed-attach-detach", json!("false"), "annotations")]
#[case("/object/metadata/annotations", Value::Null, "annotations")]
#[case("/object/metadata/finalizers", json!(["example.com/stay"]), "metadata")]
#[case("/object/metadata/ownerReferences", json!([]), "metadata")]
#[case("/object/metadata/uid", Value::Null, "metadata")]
#[case("/object/spec/unschedulable", json!(true), "spec")]
#[case("/object/spec/podCIDR", json!("10.0.0.0/8"), "spec")]
#[case("/object/spec/providerID", Value::Null, "spec")]
#[case("/object/spec/comesLater", json!("x"), "spec")]
#[case("/object/spec/taints/0", json!({"key": "example.com/vms", "effect": "NoSchedule"}), "taints")]
#[case("/object/spec/taints/-", json!({"key": "example.com/other", "effect": "NoExecute"}), "taints")]
#[case("/object/spec/taints", json!([]), "taints")]
#[case("/object/status/images", Value::Null, "status")]
#[case("/object/status/capacity/cpu", json!("64"), "status")]
#[case("/object/status/capacity/stelia.io~1vm", json!("6"), "status")]
#[case("/object/status/allocatable/memory", json!("1Ti"), "status")]
#[case("/object/status/conditions/0/status", json!("False"), "status")]
#[case("/object/status/addresses/0/address", json!("192.0.2.99"), "status")]
#[case("/object/status/daemonEndpoints/kubeletEndpoint/Port", json!(1), "status")]
#[case("/object/status/comesLater", json!({}), "status")]
fn of_its_node_a_publisher_changes_its_own_keys_only(#[case] pointer: &str, #[case] value: Value, #[case] what: &str) {
    let review = match value {
        Value::Null => removed("node-patch", pointer),
        value => changed("node-patch", pointer, value),
    };
    let said = denied(&review);
    assert!(said.starts_with(&format!("of the {what} of its Node")), "{said}");
}

/// The resource stelia.io/vm was a publisher's before kubelet's device plugin published it.
#[test]
fn the_resource_that_an_earlier_publisher_wrote_is_denied_and_so_is_its_removal() {
    let asked = recorded("node-status-patch");
    assert_eq!(denied(&asked), NOTHING_OF_THE_STATUS);
    let by_certificate = by_certificate("node-status-patch", "worker-1");
    assert_eq!(denied(&by_certificate), NOTHING_OF_THE_STATUS);
    assert_eq!(denied(&back(asked)), NOTHING_OF_THE_STATUS);
}

#[test]
fn a_node_without_a_status_is_patched_too() {
    let bare = removed("node-patch", "/object/status");
    assert_eq!(denied(&bare), NOTHING_OF_THE_STATUS);
    assert_eq!(denials(&without(bare, "/oldObject", "status")), []);
}

#[test]
fn the_label_and_the_taint_may_go_and_come_again() {
    assert_eq!(denials(&back(recorded("node-patch"))), []);
    for list in ["object", "oldObject"] {
        let bare = removed("node-patch", &format!("/{list}/spec/taints"));
        let others = "of the taints of its Node a publisher changes stelia.io/not-ready only";
        assert_eq!(denied(&bare), others);
    }
}

#[test]
fn nodes_and_pods_are_neither_made_nor_deleted() {
    for (request, expected) in [
        ("node-patch", "a publisher neither makes nor deletes nodes"),
        ("pod-status-patch", "a publisher writes the status of pods only"),
    ] {
        for (operation, missing) in [("CREATE", "oldObject"), ("DELETE", "object")] {
            let mut review = changed(request, "/operation", json!(operation));
            set(&mut review, &format!("/{missing}"), Value::Null);
            let said = messages(&without(review, "", "subResource"));
            assert!(said.iter().any(|one| one == expected), "{operation}: {said:?}");
        }
    }
}

#[rstest]
#[case("/object/spec/nodeName", json!("worker-2"), "a publisher writes pods of its own node only")]
#[case("/object/status/conditions/1/status", json!("True"), "of the conditions of a pod a publisher writes stelia.io/isolated only")]
#[case("/object/status/conditions/-", json!({"type": "example.com/gate", "status": "True"}),
    "of the conditions of a pod a publisher writes stelia.io/isolated only")]
#[case("/object/status/phase", json!("Failed"), "of the status of a pod a publisher writes conditions only")]
#[case("/object/status/podIP", json!("192.0.2.99"), "of the status of a pod a publisher writes conditions only")]
#[case("/object/metadata/labels/app", json!("other"), "a publisher changes no metadata of pods")]
#[case("/object/metadata/annotations", json!({"a": "b"}), "a publisher changes no metadata of pods")]
fn of_a_pod_a_publisher_writes_its_condition_only(#[case] pointer: &str, #[case] value: Value, #[case] message: &str) {
    assert_eq!(denied(&changed("pod-status-patch", pointer, value)), message);
}

#[test]
fn no_condition_of_others_is_removed_and_the_first_may_be_ours() {
    let review = removed("pod-status-patch", "/object/status/conditions/0");
    let ours_only = "of the conditions of a pod a publisher writes stelia.io/isolated only";
    assert_eq!(denied(&review), ours_only);
    let mut first = recorded("pod-status-patch");
    let ours = first["request"]["object"]["status"]["conditions"][4].clone();
    set(&mut first, "/object/status/conditions", json!([ours]));
    assert_eq!(denials(&without(first, "/oldObject/status", "conditions")), []);
}

#[test]
fn a_pod_without_a_node_is_nobodys_and_the_pod_itself_is_not_changed() {
    let review = removed("pod-status-patch", "/object/spec/nodeName");
    assert_eq!(denied(&review), "a publisher writes pods of its own node only");
    let itself = without(recorded("pod-status-patch"), "", "subResource");
    assert_eq!(denied(&itself), "a publisher writes the status of pods only");
}

#[rstest]
#[case("/object/reportingController", json!("kubelet"), "a publisher reports as stelia.io/steliad, its own node being the instance")]
#[case("/object/reportingInstance", json!("worker-2"), "a publisher reports as stelia.io/steliad, its own node being the instance")]
#[case("/object/regarding/kind", json!("Node"), "a publisher reports on pods only")]
#[case("/object/regarding/namespace", json!("kube-system"), "a publisher reports on pods only")]
fn an_event_that_is_not_the_publishers(#[case] pointer: &str, #[case] value: Value, #[case] message: &str) {
    assert_eq!(denied(&changed("event-create", pointer, value)), message);
}

#[test]
fn events_of_others_are_neither_changed_nor_deleted() {
    let theirs = changed("event-update", "/oldObject/reportingInstance", json!("worker-2"));
    assert_eq!(denied(&theirs), "a publisher changes its own events only");
    // What the API server makes of one of the group "" without these.
    let theirs = removed("event-update", "/oldObject/reportingController");
    assert_eq!(denied(&theirs), "a publisher changes its own events only");
    let mut gone = changed("event-update", "/operation", json!("DELETE"));
    set(&mut gone, "/object", Value::Null);
    assert!(messages(&gone).contains(&"a publisher deletes no events".to_owned()));
}

/// What no policy can do: an event has no name of a node.
#[test]
fn an_event_about_a_pod_of_another_node_is_admitted_in_the_nodes_own_name() {
    let review = changed("event-create", "/object/regarding/name", json!("a-pod-of-worker-2"));
    assert_eq!(denials(&review), []);
}

#[test]
fn every_expression_is_of_standard_cel() {
    assert_eq!(all_policies().len(), 7);
    let all = expressions(all_policies());
    assert!(all.len() >= 30, "{}", all.len());
    assert_standard(&all);
}

pub fn assert_standard(expressions: &[&str]) {
    for expression in expressions {
        assert!(Env::stdlib().compile(expression).is_ok(), "{expression}");
        // Of Kubernetes' own functions and of optional syntax the evaluator here knows nothing.
        for beyond in [
            "orValue",
            "[?",
            ".?",
            "authorizer",
            "params",
            "quantity(",
            "namespaceObject",
        ] {
            assert!(!expression.contains(beyond), "{beyond}: {expression}");
        }
    }
}
