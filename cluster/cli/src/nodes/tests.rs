use serde_json::{Value, json};

use super::*;
use crate::cluster::Chosen;
use crate::objects::{ObjectSelection, Objects};

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "4"},
        ]}],
    })
}

fn nodes(items: &[Value]) -> Nodes {
    let mut objects = Objects::new(ObjectSelection::default());
    objects.read("dump", &json!({"kind": "List", "items": items}).to_string());
    Nodes::of(&Cluster::of(objects, &Chosen::default()).unwrap(), 0)
}

#[test]
fn a_node_whose_node_is_not_ready_says_so() {
    let dead = |labels: Value| {
        json!({
            "kind": "Node", "metadata": {"name": "w-1", "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "no status"}]},
        })
    };
    for labels in [json!({}), json!({"stelia.io/ready": "true"})] {
        let nodes = nodes(&[dead(labels), object("w-1")]);
        assert_eq!(nodes.nodes[0].state, "node-not-ready");
        let text = nodes.text(TextStyle::from(true));
        let row = text.lines().nth(1).unwrap();
        let words: Vec<&str> = row.split_whitespace().take(3).collect();
        assert_eq!(words, ["w-1", "no", "node-not-ready"], "{text}");
        assert!(row.ends_with("the Node is not Ready: no status"), "{text}");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_not_called_unpublished() {
    let mut broken = object("w-1");
    broken["zones"] = json!("x");
    let node = json!({"kind": "Node", "metadata": {"name": "w-1"}});
    let nodes = nodes(&[node, broken]);
    assert_eq!(nodes.nodes[0].state, "unreadable");
    assert!(nodes.nodes[0].warnings[0].starts_with("its object cannot be read: "));
}

#[test]
fn a_node_without_cpus_in_any_zone_is_unusable_and_has_no_number_of_them() {
    let mut devices = object("w-1");
    devices["zones"][0]["resources"] =
        json!([{"name": "nvidia.com/gpu", "capacity": 4, "allocatable": 4, "available": 4}]);
    let nodes = nodes(&[devices]);
    let row = &nodes.nodes[0];
    assert_eq!((row.state.as_str(), row.cpus, row.free_cpus), ("unusable", None, None));
    assert_eq!(row.warnings, ["its object has no CPUs"]);
}

#[test]
fn of_koordlets_object_the_free_cpus_are_those_of_its_annotations() {
    let detail: Vec<Value> = (0..8)
        .map(|id| json!({"id": id, "core": id / 2, "socket": 0, "node": 0}))
        .collect();
    let mut koordlets = object("w-1");
    koordlets["zones"][0]["resources"][0]["available"] = json!("8");
    koordlets["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Koordinator"});
    koordlets["metadata"]["annotations"] = json!({
        "kubelet.koordinator.sh/cpu-manager-policy": r#"{"policy":"static","reservedCPUs":"0-1"}"#,
        "node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string(),
        "node.koordinator.sh/cpu-shared-pools": r#"[{"socket":0,"node":0,"cpuset":"0-3,6-7"}]"#,
        "node.koordinator.sh/pod-cpu-allocs": r#"[{"uid":"32b14702-2efe-4be9-a9da-f3b779175846","cpuset":"4-5"}]"#,
    });
    let read = |object: &Value| nodes(std::slice::from_ref(object)).nodes.remove(0);
    let row = read(&koordlets);
    assert_eq!(
        (row.state.as_str(), row.cpus, row.free_cpus),
        ("usable", Some(8), Some(4))
    );
    assert_eq!((row.largest_vm_cpus, row.vms), (Some(4), Some(1)));
    // Where it does not say which CPUs kubelet reserves, those of the pools are free; with a policy that is not known nobody can tell.
    for (policy, state, free) in [("static", "usable", Some(6)), ("dynamic", "unusable", None)] {
        let policy = json!({"policy": policy}).to_string();
        koordlets["metadata"]["annotations"]["kubelet.koordinator.sh/cpu-manager-policy"] = json!(policy);
        let row = read(&koordlets);
        assert_eq!((row.state.as_str(), row.cpus, row.free_cpus), (state, Some(8), free));
    }
    // Without them nothing is known: the amount says 8.
    koordlets["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"] = json!("[{\"cpuset\":\"x\"}]");
    let row = read(&koordlets);
    assert_eq!(
        (row.state.as_str(), row.free_cpus, row.largest_vm_cpus),
        ("unreadable", None, None)
    );
    assert!(
        row.warnings[0].contains("is \"x\": not a CPU list"),
        "{:?}",
        row.warnings
    );
}

#[test]
fn many_equal_nodes_share_a_row_on_a_terminal() {
    let many: Vec<Value> = (0..30)
        .map(|number| object(&format!("w-{number:02}.dc1.example")))
        .collect();
    let nodes = nodes(&many);
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let text = nodes.text(terminal);
    assert!(text.contains("\nw-00 +29  ") && !text.contains("dc1"), "{text}");
    assert!(text.contains("FREE CORES") && text.lines().count() < 10, "{text}");
    assert_eq!(nodes.text(TextStyle::from(true)).matches(".dc1.example").count(), 30);
}

/// A terminal of 80 columns.
fn narrow() -> TextStyle {
    TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    }
}

/// A node that has not been Ready since its kubelet stopped.
fn dead(name: &str) -> Value {
    json!({
        "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": "kubelet stopped posting its status"}]},
    })
}

fn well(name: &str) -> Value {
    json!({"kind": "Node", "metadata": {"name": name, "labels": {"stelia.io/ready": "true"}}})
}

/// A node that admits no VM because kubelet's file cannot be used.
fn unusable(name: &str) -> [Value; 2] {
    let summary = json!({
        "version": "0.2.0",
        "reason": "KubeletStateUnusable",
        "message": "wrong checksum",
        "instances": {},
        "degraded": 0,
        "waiting_too_long": 0,
    });
    let mut object = object(name);
    object["attributes"] = json!([
        {"name": "isolation.stelia.io/state", "value": "unusable"},
        {"name": "isolation.stelia.io/summary", "value": summary.to_string()},
    ]);
    let node = json!({"kind": "Node", "metadata": {"name": name, "labels": {"stelia.io/ready": "false"}}});
    [node, object]
}

#[test]
fn warnings_that_have_no_room_are_footnotes_and_every_column_stays() {
    let unpublished = json!({"kind": "Node", "metadata": {"name": "worker-001.dc1.example"}});
    let [node, unusable] = unusable("worker-003.dc1.example");
    let nodes = nodes(&[
        dead("worker-000.dc1.example"),
        object("worker-000.dc1.example"),
        unpublished,
        dead("worker-002.dc1.example"),
        object("worker-002.dc1.example"),
        node,
        unusable,
    ]);
    let text = nodes.text(narrow());
    assert!(text.contains("CORES"), "{text}");
    for whole in ["worker-000  no     node-not-ready", "worker-001  -      unpublished"] {
        assert!(text.contains(whole), "{text}");
    }
    assert!(
        text.contains("\n\n[1] the Node is not Ready: kubelet stopped posting its status\n[2] KubeletStateUnusable"),
        "{text}"
    );
    let ends = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(ends("worker-002"), "[1]", "{text}");
    assert!(ends("worker-003").starts_with('['), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // A pipe, a wide terminal, and a table without a legend have each warning where it belongs.
    let wide = TextStyle {
        width: Some(160),
        ..narrow()
    };
    let bare = TextStyle {
        legend: false,
        ..narrow()
    };
    for style in [TextStyle::from(true), wide, bare] {
        let text = nodes.text(style);
        assert!(text.contains("kubelet") && !text.contains("[1]"), "{text}");
    }
}

#[test]
fn a_node_that_admits_none_has_no_largest_vm_and_says_why() {
    let mut items = vec![dead("w-1"), object("w-1"), well("w-3"), object("w-3")];
    items.extend(unusable("w-2"));
    let nodes = nodes(&items);
    let of = |at: usize| (nodes.nodes[at].state.as_str(), nodes.nodes[at].largest_vm_cpus);
    assert_eq!(
        [of(0), of(1), of(2)],
        [("node-not-ready", Some(0)), ("unusable", Some(0)), ("usable", Some(4))]
    );
    assert_eq!(nodes.nodes[1].warnings[0], "KubeletStateUnusable: wrong checksum");
}

#[test]
fn nodes_are_chosen_by_state_and_ordered_as_asked() {
    let mut items = vec![
        well("a"),
        object("a"),
        json!({"kind": "Node", "metadata": {"name": "b"}}),
    ];
    items.extend(unusable("c"));
    // The Node of e was deleted, f is meant to run steliad and does not publish, g is cordoned.
    items.extend([dead("d"), object("d"), object("e"), well("f"), well("g"), object("g")]);
    items[9]["spec"] = json!({"unschedulable": true});
    let names = |states: &[&str], order| {
        let nodes = nodes(&items).listed(states, order);
        nodes.nodes.into_iter().map(|row| row.name).collect::<String>()
    };
    assert_eq!(names(&[], NodeOrder::Trouble), "dcfegab");
    assert_eq!(names(&[], NodeOrder::Name), "abcdefg");
    assert_eq!(names(&[], NodeOrder::Largest), "acdegbf");
    assert_eq!(names(&[], NodeOrder::Free), "abfcdeg");
    assert_eq!(names(&["usable"], NodeOrder::Name), "a");
    assert_eq!(names(&["cordoned", "node-not-ready"], NodeOrder::Name), "dg");
    let text = nodes(&items).text(narrow());
    let sums = text.split("\n\n").next().unwrap().replace('\n', " ");
    let each = [
        "1 usable",
        "1 without steliad",
        "1 unusable",
        "1 node-not-ready",
        "1 left-behind",
        "1 unpublished",
        "1 cordoned",
    ];
    assert!(each.iter().all(|sum| sums.contains(sum)), "{sums}");
    assert!(
        sums.starts_with("7 nodes: ") && sums.ends_with("; 4 free CPUs where VMs are admitted, LARGEST 4."),
        "{sums}"
    );
}

#[test]
fn a_node_that_was_deleted_or_is_cordoned_has_no_largest_vm_and_says_why() {
    let mut cordoned = well("w-1");
    cordoned["spec"] = json!({"unschedulable": true});
    let rows = nodes(&[cordoned, object("w-1"), object("w-2")]).nodes;
    let of = |at: usize| {
        let row: &Row = &rows[at];
        (row.state.as_str(), row.largest_vm_cpus, row.warnings.concat())
    };
    assert_eq!(of(0), ("cordoned", Some(0), "cordoned".to_owned()));
    assert_eq!(of(1), ("left-behind", Some(0), "its Node does not exist".to_owned()));
    // Without any Node nothing is known of them.
    assert_eq!(nodes(&[object("w-2")]).nodes[0].state, "usable");
}

#[test]
fn a_reason_with_different_messages_is_one_footnote() {
    let messages = ["the checksum is 1", "the checksum is 2", "the checksum is 2"];
    let items = (0..).zip(messages).flat_map(|(number, message)| {
        let [node, mut object] = unusable(&format!("worker-00{number}.dc1.example"));
        let summary = object["attributes"][1]["value"].as_str().unwrap();
        object["attributes"][1]["value"] = summary.replace("wrong checksum", message).into();
        [node, object]
    });
    let text = nodes(&items.collect::<Vec<_>>()).text(narrow());
    assert!(
        text.contains("\n\n[1] KubeletStateUnusable on 3 nodes, such as worker-001: the checksum is 2\n"),
        "{text}"
    );
}
