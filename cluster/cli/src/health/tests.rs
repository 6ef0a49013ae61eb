use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::tests::{cluster, dead, node, pipe, terminal, wide};

/// The object of a node, with these attributes beside those that every object has.
fn object(name: &str, attributes: &[(&str, &str)]) -> Value {
    let attributes = attributes.iter().map(|(name, value)| {
        let name = format!("isolation.stelia.io/{name}");
        json!({"name": name, "value": value})
    });
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name}, "zones": [],
        "attributes": attributes.collect::<Vec<_>>(),
    })
}

fn summary(reason: &str, instances: Value, degraded: u64, more: Value) -> String {
    let message = if reason == "Ready" { "" } else { "wrong checksum" };
    let mut summary = json!({
        "version": "0.2.0", "reason": reason, "message": message, "instances": instances, "degraded": degraded,
        "waiting_too_long": 0,
    });
    for (member, value) in more.as_object().into_iter().flatten() {
        summary[member] = value.clone();
    }
    summary.to_string()
}

fn ready(name: &str, instances: Value, degraded: u64) -> Value {
    object(name, &[("summary", &summary("Ready", instances, degraded, json!({})))])
}

fn of(items: &[Value]) -> Health {
    Health::of(&cluster(items))
}

fn states(health: &Health) -> Vec<(&str, &str)> {
    let nodes = health.nodes.iter();
    nodes.map(|node| (node.name.as_str(), node.health.name())).collect()
}

fn fleet() -> Vec<Value> {
    let label = |name, ready| node(name, json!({"stelia.io/ready": ready}));
    let good = json!({"isolated": 10, "waiting": 1});
    let older = summary("Ready", good.clone(), 3, json!({"version": "0.1.0"}));
    let last = summary("Ready", good.clone(), 0, json!({}));
    let unusable = summary("KubeletStateUnusable", json!({}), 0, json!({}));
    vec![
        node("control-plane", json!({})),
        label("w-1", "true"),
        ready("w-1", good, 0),
        label("w-2", "true"),
        object("w-2", &[("summary", &older)]),
        label("w-3", "false"),
        object("w-3", &[("state", "away"), ("summary", &last)]),
        label("w-4", "false"),
        object("w-4", &[("state", "unusable"), ("summary", &unusable)]),
        node("w-5", json!({"stelia.io/steliad": "true"})),
        label("w-6", "false"),
        object("w-6", &[]),
        label("w-7", "true"),
        ready("w-7", json!({"pinned": 2}), 0),
    ]
}

#[test]
fn every_node_that_is_meant_to_run_steliad_has_a_state_and_trouble_comes_first() {
    let health = of(&fleet());
    let expected = [
        ("w-3", "away"),
        ("w-5", "unpublished"),
        ("w-4", "not-ready"),
        ("w-6", "not-ready"),
        ("w-2", "degraded"),
        ("w-7", "pinned"),
        ("w-1", "ok"),
    ];
    assert_eq!(states(&health), expected);
    let json = serde_json::to_value(&health).unwrap();
    assert_eq!(json["without_steliad"], 1);
    let versions = json!([{"name": "0.2.0", "nodes": 4}, {"name": "0.1.0", "nodes": 1}]);
    assert_eq!(json["versions"], versions);
    assert_eq!(
        json["vms"],
        json!({"isolated": 30, "pinned": 2, "waiting": 3, "shared": 0, "evicted": 0, "releasing": 0, "other": 0, "degraded": 3,
            "waiting_too_long": 0})
    );
    // What may be the administrator's choice comes last.
    assert_eq!(health.reasons.last().unwrap().reason, "VMs are pinned");
    assert_eq!(health.failure().unwrap(), "5 of 7 nodes need attention");

    let text = health.text(pipe());
    for words in [
        "0.2.0 on 4 nodes, 0.1.0 on 1 node",
        "35: 30 isolated, 2 pinned, 3 waiting; 3 degraded",
        "1 node without steliad",
        "KubeletStateUnusable (wrong checksum)",
        "; not published by 2 nodes",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A node whose VMs are pinned is counted, and has no line of its own but with -o wide.
    assert!(!text.contains("\nw-1 ") && !text.contains("\nw-7 "), "{text}");
    assert!(health.text(wide()).contains("\nw-1 "));
}

fn with(text: &str) -> Vec<Value> {
    vec![object("w", &[("summary", text)])]
}

fn of_summary(instances: Value, more: Value) -> Vec<Value> {
    with(&summary("Ready", instances, 0, more))
}

fn of_state(state: &str) -> Vec<Value> {
    let summary = summary("Ready", json!({"isolated": 1}), 0, json!({}));
    vec![object("w", &[("state", state), ("summary", &summary)])]
}

fn good() -> Value {
    ready("w", json!({"isolated": 9}), 0)
}

fn other() -> Value {
    ready("w", json!({}), 5)
}

fn broken() -> Value {
    let mut object = good();
    object["zones"] = json!("x");
    object
}

fn labelled(labels: Value) -> Value {
    node("w", labels)
}

#[rstest]
#[case(vec![labelled(json!({})), good()], "ok", "")]
#[case(with("not json"), "unreadable", "its summary cannot be read: ")]
#[case(with("[]"), "unreadable", "its summary cannot be read: it is not a JSON object")]
#[case(with(&summary("", json!({}), 0, json!({}))), "unreadable", "its summary cannot be read: it does not say")]
// Whether VMs in a state of a newer version are isolated is not known.
#[case(of_summary(json!({"resting": 7}), json!({})), "unreadable", "VMs in states that are not known: 7 resting")]
#[case(of_summary(json!({"waiting": 3, "isolated": 1}), json!({"waiting_too_long": 2})), "waiting", "VMs have waited for more than 120 s: 2 of 4")]
#[case(of_summary(json!({"waiting": 3}), json!({})), "ok", "")]
#[case(of_summary(json!({"pinned": 2}), json!({})), "pinned", "VMs are pinned: 2 of 2")]
#[case(of_summary(json!({"isolated": 2}), json!({"problems": ["ledger-not-kept", "not-watched"]})), "degraded", "problems of the node: ledger-not-kept, not-watched")]
#[case(of_state(""), "unreadable", "its state cannot be read: ")]
#[case(of_state(" "), "unreadable", "its state cannot be read: ")]
#[case(vec![dead("w"), good()], "node-not-ready", "the Node is not Ready: Kubelet stopped posting node status.")]
#[case(vec![broken()], "unreadable", "its object cannot be read: ")]
#[case(vec![labelled(json!({})), broken()], "unreadable", "its object cannot be read: ")]
#[case(vec![labelled(json!({"stelia.io/ready": "true"})), broken()], "unreadable", "its object cannot be read: ")]
#[case(vec![labelled(json!({"x": 5})), good()], "unreadable", "its Node cannot be read: invalid type")]
#[case(vec![labelled(json!({"x": 5}))], "unreadable", "its Node cannot be read: invalid type")]
#[case(vec![node("other", json!({})), broken()], "left-behind", "its Node does not exist: kubectl delete noderesourcetopology w")]
// Two that differ: neither counts.
#[case(vec![good(), other()], "unreadable", "its object cannot be read: ")]
#[case(vec![other(), good()], "unreadable", "its object cannot be read: ")]
#[case(vec![good(), good()], "ok", "")]
#[case(vec![labelled(json!({})), labelled(json!({"a": "b"})), good()], "unreadable", "its Node cannot be read: ")]
fn what_is_wrong_with_a_node_is_its_health_and_a_reason(
    #[case] items: Vec<Value>,
    #[case] state: &str,
    #[case] reason: &str,
) {
    let health = of(&items);
    let node = health.nodes.iter().find(|node| node.name == "w").unwrap();
    assert_eq!(node.health.name(), state, "{node:?}");
    let reasons = node.reasons.iter();
    let reasons = reasons.map(|reason| format!("{}: {}", reason.what, reason.detail));
    let reasons: Vec<String> = reasons.collect();
    assert!(reasons.len() <= 1 && reasons.concat().starts_with(reason));
    assert_eq!(reasons.is_empty(), reason.is_empty(), "{reasons:?}");
    // A VM may be pinned by choice.
    assert_eq!(health.failure().is_some(), !["ok", "pinned"].contains(&state));
}

#[test]
fn what_is_of_no_node_is_no_health_and_what_a_deleted_node_left_is_in_no_sum() {
    // A selector with a typing error must not look like a healthy fleet.
    let nobody = of(&[node("c-1", json!({}))]);
    assert!(nobody.nodes.is_empty() && nobody.failure().unwrap().starts_with("no node publishes"));
    let nameless = json!({"kind": "NodeResourceTopology", "metadata": {}});
    let health = of(&[ready("w", json!({}), 0), nameless, json!(5)]);
    assert_eq!(health.failure().unwrap(), "2 objects could not be read");
    let gone = [
        node("w", json!({})),
        ready("w", json!({"isolated": 3}), 0),
        ready("gone", json!({"isolated": 3}), 0),
    ];
    let health = of(&gone);
    assert_eq!((health.vms.total(), health.versions[0].nodes), (3, 1));
    assert!(!health.text(pipe()).contains("not published by"));
}

#[test]
fn a_terminal_has_each_message_once() {
    let items = (0..30).map(|number| {
        let (reason, degraded) = match number {
            0..25 => ("KubeletStateUnusable", 0),
            _ => ("Ready", number % 2 + 1),
        };
        let summary = summary(reason, json!({"isolated": 2}), degraded, json!({}));
        object(&format!("w-{number:02}"), &[("summary", &summary)])
    });
    let health = of(&items.collect::<Vec<_>>());
    let text = health.text(terminal(80));
    assert_eq!(text.matches("wrong checksum").count(), 1, "{text}");
    assert!(text.contains("w-25 (2 of 2), w-27 (2 of 2), w-29 (2 of 2), …"));
    assert_eq!(health.text(pipe()).matches("wrong checksum").count(), 26);
}
