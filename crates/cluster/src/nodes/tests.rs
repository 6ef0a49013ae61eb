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
        assert_eq!(nodes.nodes[0].state, "not-ready");
        let text = nodes.text(TextStyle::from(true));
        let row = text.lines().nth(1).unwrap();
        let words: Vec<&str> = row.split_whitespace().take(3).collect();
        assert_eq!(words, ["w-1", "no", "not-ready"], "{text}");
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
    assert!(text.contains("FREE CORES") && text.lines().count() < 8, "{text}");
    assert_eq!(nodes.text(TextStyle::from(true)).matches(".dc1.example").count(), 30);
}

#[test]
fn beside_warnings_a_terminal_of_80_columns_shows_states_whole_and_free_once() {
    let dead = json!({
        "kind": "Node", "metadata": {"name": "worker-000.dc1.example"},
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": "kubelet stopped posting its status"}]},
    });
    let unpublished = json!({"kind": "Node", "metadata": {"name": "worker-001.dc1.example"}});
    let nodes = nodes(&[dead, object("worker-000.dc1.example"), unpublished]);
    let text = nodes.text(TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    });
    assert_eq!(text.matches("FREE").count(), 1, "{text}");
    for whole in ["worker-000  no     not-ready", "worker-001  -      unpublished"] {
        assert!(text.contains(whole), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}
