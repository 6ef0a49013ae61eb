use serde_json::{Value, json};

use super::*;
use crate::cluster::Chosen;
use crate::objects::{ObjectSelection, Objects};

fn node(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// The object of a node, with these attributes beside those that every object has.
fn object(name: &str, attributes: &[(&str, String)]) -> Value {
    let attributes = attributes.iter().map(|(name, value)| {
        let name = format!("isolation.stelia.io/{name}");
        json!({"name": name, "value": value})
    });
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name}, "zones": [],
        "attributes": attributes.collect::<Vec<_>>(),
    })
}

fn summary(version: &str, reason: &str, instances: Value, degraded: u64) -> (&'static str, String) {
    let message = if reason == "Ready" { "" } else { "wrong checksum" };
    let summary = json!({
        "version": version, "reason": reason, "message": message, "instances": instances, "degraded": degraded,
        "waiting_too_long": 0,
    });
    ("summary", summary.to_string())
}

fn cluster(items: &[Value]) -> Cluster {
    let cluster = damaged(items);
    assert!(cluster.problems.stored().is_empty(), "{:?}", cluster.problems);
    cluster
}

/// The same of objects that cannot all be read.
fn damaged(items: &[Value]) -> Cluster {
    let mut objects = Objects::new(ObjectSelection::default());
    objects.read("dump", &json!({"kind": "List", "items": items}).to_string());
    Cluster::of(objects, &Chosen::default()).unwrap()
}

fn fleet() -> Cluster {
    let away = ("state", "away".to_owned());
    let unusable = ("state", "unusable".to_owned());
    let good = |version, degraded| summary(version, "Ready", json!({"isolated": 10, "waiting": 1}), degraded);
    cluster(&[
        node("control-plane", json!({})),
        node("w-1", json!({"stelia.io/ready": "true"})),
        object("w-1", &[good("0.2.0", 0)]),
        node("w-2", json!({"stelia.io/ready": "true"})),
        object("w-2", &[good("0.1.0", 3)]),
        node("w-3", json!({"stelia.io/ready": "false"})),
        object("w-3", &[away, good("0.2.0", 0)]),
        node("w-4", json!({"stelia.io/ready": "false"})),
        object(
            "w-4",
            &[unusable, summary("0.2.0", "KubeletStateUnusable", json!({}), 0)],
        ),
        node("w-5", json!({"stelia.io/steliad": "true"})),
        node("w-6", json!({"stelia.io/ready": "false"})),
        object("w-6", &[]),
        node("w-7", json!({"stelia.io/ready": "true"})),
        object("w-7", &[summary("0.2.0", "Ready", json!({"pinned": 2}), 0)]),
    ])
}

fn states(health: &Health) -> Vec<(&str, &str)> {
    let nodes = health.nodes.iter();
    nodes.map(|node| (node.name.as_str(), node.health.name())).collect()
}

#[test]
fn every_node_that_is_meant_to_run_steliad_has_a_state_and_trouble_comes_first() {
    let health = Health::of(&fleet(), &NodeFilter::default());
    assert_eq!(
        states(&health),
        [
            ("w-3", "away"),
            ("w-5", "unpublished"),
            ("w-4", "not-ready"),
            ("w-6", "not-ready"),
            ("w-2", "degraded"),
            ("w-7", "pinned"),
            ("w-1", "ok")
        ]
    );
    assert_eq!(health.without_steliad, 1);
    assert_eq!(
        health.versions,
        [("0.2.0", 4), ("0.1.0", 1)].map(|(name, nodes)| Count {
            name: name.to_owned(),
            nodes
        })
    );
    assert_eq!(
        (health.vms.isolated, health.vms.pinned, health.vms.degraded),
        (30, 2, 3)
    );
    assert_eq!(health.failure().unwrap(), "5 of 7 nodes need attention");
    let reasons: Vec<&str> = health.reasons.iter().map(|group| group.reason.as_str()).collect();
    assert!(reasons.contains(&"KubeletStateUnusable"), "{reasons:?}");
    assert_eq!(reasons.last(), Some(&"VMs are pinned"));
}

#[test]
fn the_text_lists_the_nodes_with_trouble_and_with_wide_all() {
    let health = Health::of(&fleet(), &NodeFilter::default());
    let text = health.text(TextStyle::from(true));
    assert!(text.contains("0.2.0 on 4 nodes, 0.1.0 on 1 node"), "{text}");
    assert!(
        text.contains("35: 30 isolated, 2 pinned, 3 waiting; 3 degraded"),
        "{text}"
    );
    assert!(text.contains("1 node without steliad"), "{text}");
    assert!(text.contains("KubeletStateUnusable (wrong checksum)"), "{text}");
    assert!(!text.contains("\nw-1 "), "{text}");
    // A node whose VMs are pinned is counted, and has no line of its own.
    assert!(text.contains("VMs are pinned") && !text.contains("\nw-7 "), "{text}");
    assert!(text.contains("; not published by 2 nodes"), "{text}");
    let wide = TextStyle {
        wide: true,
        ..TextStyle::from(true)
    };
    assert!(health.text(wide).contains("\nw-1 "));
}

#[test]
fn a_filter_chooses_rows_and_changes_no_sum() {
    let ok = NodeFilter {
        states: vec![NodeState::Ok, NodeState::Degraded],
        order: NodeOrder::Version,
    };
    let health = Health::of(&fleet(), &ok);
    assert_eq!(states(&health), [("w-2", "degraded"), ("w-1", "ok")]);
    assert!(health.text(TextStyle::from(true)).contains("\nw-1 "));
    assert_eq!(health.failure().unwrap(), "5 of 7 nodes need attention");
}

#[test]
fn a_fleet_in_which_vms_are_contained_by_choice_is_no_failure() {
    let pinned = (
        "summary",
        r#"{"version":"0.1.0","reason":"Ready","instances":{"pinned":2},"degraded":0,"waiting_too_long":0}"#.to_owned(),
    );
    let health = Health::of(&cluster(&[object("w-1", &[pinned])]), &NodeFilter::default());
    assert_eq!((states(&health), health.failure()), (vec![("w-1", "pinned")], None));
    let nobody = Health::of(&cluster(&[node("c-1", json!({}))]), &NodeFilter::default());
    // A selector with a typing error must not look like a healthy fleet.
    assert!(nobody.nodes.is_empty() && nobody.failure().unwrap().starts_with("no node publishes"));
}

#[test]
fn a_machine_without_power_is_not_ok_although_its_last_object_says_so() {
    let mut dead = node("w-1", json!({"stelia.io/ready": "true"}));
    dead["status"]["conditions"] = json!([
        {"type": "MemoryPressure", "status": "Unknown"},
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."},
    ]);
    let mut alive = node("w-2", json!({"stelia.io/ready": "true"}));
    alive["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let good = || summary("0.1.0", "Ready", json!({"isolated": 1}), 0);
    let fleet = cluster(&[dead, object("w-1", &[good()]), alive, object("w-2", &[good()])]);
    let health = Health::of(&fleet, &NodeFilter::default());
    assert_eq!(states(&health), [("w-1", "node-not-ready"), ("w-2", "ok")]);
    let text = health.text(TextStyle::from(true));
    assert!(
        text.contains("the Node is not Ready (Kubelet stopped posting node status.)"),
        "{text}"
    );
}

#[test]
fn a_summary_that_is_not_understood_is_no_health() {
    let summary = |text: &str| [("summary", text.to_owned())];
    let health = Health::of(
        &cluster(&[
            object("w-1", &summary("not json")),
            object("w-2", &summary("[]")),
            object(
                "w-3",
                &summary(
                    r#"{"version":"0.1.0","reason":"","instances":{"isolated":2},"degraded":0,"waiting_too_long":0}"#,
                ),
            ),
            object(
                "w-4",
                &summary(
                    r#"{"version":"0.3.0","reason":"Ready","instances":{"isolated":2,"resting":7},"degraded":0,"waiting_too_long":0}"#,
                ),
            ),
        ]),
        &NodeFilter::default(),
    );
    assert_eq!(
        states(&health),
        [
            ("w-1", "unreadable"),
            ("w-2", "unreadable"),
            ("w-3", "unreadable"),
            // Whether VMs in a state of a newer version are isolated is not known.
            ("w-4", "unreadable")
        ]
    );
    assert_eq!((health.vms.total(), health.vms.other), (11, 7));
    let text = health.text(TextStyle::from(true));
    assert!(text.contains("11: 4 isolated, 7 in other states"), "{text}");
    assert!(
        text.contains("its summary cannot be read (it is not a JSON object)"),
        "{text}"
    );
    assert!(text.contains("VMs in states that are not known (7 resting)"), "{text}");
    assert_eq!(health.failure().unwrap(), "4 of 4 nodes need attention");
}

#[test]
fn vms_that_float_for_too_long_need_attention_and_those_that_start_do_not() {
    let summary = |text: &str| [("summary", text.to_owned())];
    let health = Health::of(
        &cluster(&[
            object(
                "w-1",
                &summary(
                    r#"{"version":"0.2.0","reason":"Ready","instances":{"waiting":3,"pinned":1},"degraded":0,"waiting_too_long":2}"#,
                ),
            ),
            object(
                "w-2",
                &summary(
                    r#"{"version":"0.2.0","reason":"Ready","instances":{"waiting":3},"degraded":0,"waiting_too_long":0}"#,
                ),
            ),
        ]),
        &NodeFilter::default(),
    );
    assert_eq!(states(&health), [("w-1", "waiting"), ("w-2", "ok")]);
    assert_eq!(health.vms.waiting_too_long, 2);
    assert_eq!(health.failure().unwrap(), "1 of 2 nodes needs attention");
    let text = health.text(TextStyle::from(true));
    assert!(text.contains("VMs float for more than 120 s (2 of 4)"), "{text}");
}

#[test]
fn the_domain_of_all_nodes_is_left_out_on_a_terminal_alone() {
    let none = |name| object(name, &[("summary", "broken".to_owned())]);
    let same = [none("w-1.dc1.example"), none("w-2.dc1.example")];
    let text = |objects: &[Value], width| {
        let health = Health::of(&cluster(objects), &NodeFilter::default());
        let style = TextStyle {
            width,
            ..TextStyle::from(true)
        };
        health.text(style)
    };
    assert!(!text(&same, Some(200)).contains("dc1"));
    assert!(text(&same, None).contains("w-2.dc1.example"));
    let different = [none("w-1.dc1.example"), none("w-2.dc2.example")];
    assert!(text(&different, Some(200)).contains("w-2.dc2.example"));
}

fn reasons(health: &Health, name: &str) -> Vec<String> {
    let node = health.nodes.iter().find(|node| node.name == name).unwrap();
    let reasons = node.reasons.iter();
    reasons
        .map(|reason| format!("{}: {}", reason.what, reason.detail))
        .collect()
}

#[test]
fn an_object_that_cannot_be_read_is_no_health_with_or_without_its_node() {
    let good = || [summary("0.1.0", "Ready", json!({"isolated": 1}), 0)];
    let broken = |name| {
        let mut object = object(name, &good());
        object["zones"] = json!("x");
        object
    };
    let mut unreadable = node("n-1", json!({"x": 5}));
    unreadable["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    let health = Health::of(
        &damaged(&[
            broken("w-1"),
            node("w-2", json!({"stelia.io/ready": "true"})),
            broken("w-2"),
            node("w-3", json!({})),
            broken("w-3"),
            unreadable,
            object("n-1", &good()),
            node("n-2", json!({"x": 5})),
            node("w-4", json!({})),
            object("w-4", &good()),
        ]),
        &NodeFilter::default(),
    );
    assert_eq!(
        states(&health),
        [
            ("n-1", "unreadable"),
            ("n-2", "unreadable"),
            ("w-2", "unreadable"),
            ("w-3", "unreadable"),
            ("w-1", "left-behind"),
            ("w-4", "ok")
        ]
    );
    let why = reasons(&health, "w-2");
    assert!(
        why.len() == 1 && why[0].starts_with("its object cannot be read: not a Node"),
        "{why:?}"
    );
    let why = reasons(&health, "n-1");
    assert!(
        why.len() == 1 && why[0].starts_with("its Node cannot be read: invalid type"),
        "{why:?}"
    );
    assert_eq!(health.failure().unwrap(), "5 of 6 nodes need attention");
    // Without any Node the object is not left behind.
    let alone = Health::of(&damaged(&[broken("w-1")]), &NodeFilter::default());
    assert_eq!(states(&alone), [("w-1", "unreadable")]);
    assert_eq!(alone.failure().unwrap(), "1 of 1 node needs attention");
    // Whose it is, is not known.
    let nameless = json!({"kind": "NodeResourceTopology", "metadata": {}});
    let health = Health::of(
        &damaged(&[object("w-4", &good()), nameless, json!(5)]),
        &NodeFilter::default(),
    );
    assert_eq!(
        (states(&health), health.failure().unwrap()),
        (vec![("w-4", "ok")], "2 objects could not be read".to_owned())
    );
}

#[test]
fn an_object_whose_node_does_not_exist_is_left_behind_and_in_no_sum() {
    let good = || [summary("0.1.0", "Ready", json!({"isolated": 3}), 0)];
    let items = [node("w-1", json!({})), object("w-1", &good()), object("gone", &good())];
    let health = Health::of(&cluster(&items), &NodeFilter::default());
    assert_eq!(states(&health), [("gone", "left-behind"), ("w-1", "ok")]);
    assert_eq!(
        reasons(&health, "gone"),
        ["its Node does not exist: kubectl delete noderesourcetopology gone"]
    );
    assert_eq!((health.vms.total(), health.versions[0].nodes), (3, 1));
    assert_eq!(health.failure().unwrap(), "1 of 2 nodes needs attention");
    assert!(!health.text(TextStyle::from(true)).contains("not published by"));
}

#[test]
fn two_different_objects_of_one_name_are_no_health_and_one_that_is_there_twice_is() {
    let of = |degraded| object("w-1", &[summary("0.1.0", "Ready", json!({"isolated": 9}), degraded)]);
    let health = |items: &[Value]| {
        let health = Health::of(&damaged(items), &NodeFilter::default());
        let vms = health.vms.total();
        (health.nodes[0].health.name(), vms, health.failure().is_some())
    };
    assert_eq!(health(&[of(5), of(0)]), ("unreadable", 0, true));
    assert_eq!(health(&[of(0), of(5)]), ("unreadable", 0, true));
    assert_eq!(health(&[of(0), of(0)]), ("ok", 9, false));
    let nodes = |ready| {
        [
            node("w-1", json!({})),
            node("w-1", json!({"stelia.io/ready": ready})),
            of(0),
        ]
    };
    assert_eq!(health(&nodes("true")), ("unreadable", 9, true));
}

#[test]
fn an_empty_state_is_a_reason_with_words() {
    for state in ["", " "] {
        let attributes = [
            ("state", state.to_owned()),
            summary("0.1.0", "Ready", json!({"isolated": 1}), 0),
        ];
        let health = Health::of(&cluster(&[object("w-1", &attributes)]), &NodeFilter::default());
        assert_eq!(states(&health), [("w-1", "unreadable")]);
        assert_eq!(
            reasons(&health, "w-1"),
            ["its state cannot be read: isolation.stelia.io/state is empty"]
        );
    }
}

#[test]
fn on_a_terminal_a_message_is_in_the_table_of_reasons_alone_and_equal_nodes_share_a_row() {
    let items: Vec<Value> = (0..30)
        .map(|number| {
            let name = format!("w-{number:02}");
            let reason = if number < 25 { "KubeletStateUnusable" } else { "Ready" };
            let degraded = if number < 25 { 0 } else { number % 2 + 1 };
            object(&name, &[summary("0.2.0", reason, json!({"isolated": 2}), degraded)])
        })
        .collect();
    let health = Health::of(&cluster(&items), &NodeFilter::default());
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let text = health.text(terminal);
    assert_eq!(text.matches("wrong checksum").count(), 1, "{text}");
    assert!(text.contains("\nw-00 +24  not-ready"), "{text}");
    assert!(text.contains("\nw-25 +4   degraded"), "{text}");
    assert!(
        text.contains("w-25 (2 of 2), w-26 (1 of 2), w-27 (2 of 2), …"),
        "{text}"
    );
    assert!(text.contains("-o wide lists each"), "{text}");
    let piped = health.text(TextStyle::from(true));
    assert_eq!(piped.matches("wrong checksum").count(), 26, "{piped}");
}

#[test]
fn nodes_without_steliad_are_named_where_people_read() {
    let mut items: Vec<Value> = (1..=4)
        .map(|number| node(&format!("c-{number}.dc1.example"), json!({})))
        .collect();
    items.push(object("w-1", &[summary("0.2.0", "Ready", json!({"isolated": 1}), 0)]));
    items.push(node("w-1", json!({})));
    let health = Health::of(&cluster(&items), &NodeFilter::default());
    let text = |width, wide| {
        health.text(TextStyle {
            width,
            wide,
            ..TextStyle::from(true)
        })
    };
    let terminal = text(Some(200), false);
    assert!(
        terminal.contains("; 4 nodes without steliad (c-1, c-2, c-3, c-4)\n"),
        "{terminal}"
    );
    assert!(text(Some(200), true).contains("(c-1, c-2, c-3, c-4)\n"));
    assert!(text(None, true).contains("c-3.dc1.example, c-4.dc1.example)\n"));
    assert!(text(None, false).contains("; 4 nodes without steliad\n"));
}

#[test]
fn a_problem_of_the_node_is_a_reason_of_its_own_and_no_vm_is_degraded_by_it() {
    let (name, text) = summary("0.2.0", "Ready", json!({"isolated": 2}), 0);
    let mut text: Value = serde_json::from_str(&text).unwrap();
    text["problems"] = json!(["ledger-not-kept", "not-watched"]);
    let health = Health::of(
        &cluster(&[object("w-1", &[(name, text.to_string())])]),
        &NodeFilter::default(),
    );
    assert_eq!(states(&health), [("w-1", "degraded")]);
    assert_eq!(health.vms.degraded, 0);
    let json = serde_json::to_value(&health).unwrap();
    assert_eq!(json["reasons"][0]["reason"], "problems of the node");
}
