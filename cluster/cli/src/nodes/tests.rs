use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::tests::{cluster, dead, node, pipe, terminal, wide};

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "4"},
        ]}],
    })
}

fn nodes(items: &[Value]) -> Nodes {
    Nodes::of(&cluster(items), 0)
}

fn well(name: &str) -> Value {
    node(name, json!({"stelia.io/ready": "true"}))
}

fn cordoned(name: &str) -> Value {
    let mut cordoned = well(name);
    cordoned["spec"] = json!({"unschedulable": true});
    cordoned
}

/// A node that admits no VM because kubelet's file cannot be used.
fn unusable(name: &str, message: &str) -> [Value; 2] {
    let summary = json!({
        "version": "0.2.0", "reason": "KubeletStateUnusable", "message": message, "instances": {}, "degraded": 0,
        "waiting_too_long": 0,
    });
    let mut object = object(name);
    object["attributes"] = json!([
        {"name": "isolation.stelia.io/state", "value": "unusable"},
        {"name": "isolation.stelia.io/summary", "value": summary.to_string()},
    ]);
    [node(name, json!({"stelia.io/ready": "false"})), object]
}

fn changed(pointer: &str, value: Value) -> Value {
    let mut object = object("w");
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

#[rstest]
#[case(vec![well("w"), object("w")], "ok", Some(4), "")]
// Without any Node nothing is known of them.
#[case(vec![object("w")], "ok", Some(4), "")]
#[case(vec![dead("w"), object("w")], "node-not-ready", Some(0), "the Node is not Ready (Kubelet stopped")]
#[case(vec![dead("w")], "unpublished", None, "the Node is not Ready (Kubelet stopped")]
#[case(vec![well("w"), changed("/zones", json!("x"))], "unreadable", None, "its object cannot be read (")]
#[case(vec![changed("/zones/0/resources/0/name", json!("nvidia.com/gpu"))], "ok", None, "its object has no CPUs")]
#[case(unusable("w", "wrong checksum").to_vec(), "not-ready", Some(0), "KubeletStateUnusable (wrong checksum)")]
#[case(vec![cordoned("w"), object("w")], "ok", Some(0), "cordoned")]
#[case(vec![well("other"), object("w")], "left-behind", Some(0), "its Node does not exist")]
fn a_node_has_a_state_the_largest_vm_and_what_is_wrong(
    #[case] items: Vec<Value>,
    #[case] state: &str,
    #[case] largest: Option<u64>,
    #[case] warning: &str,
) {
    let nodes = nodes(&items);
    let row = nodes.nodes.iter().find(|row| row.name == "w").unwrap();
    assert_eq!((row.state_in_words(), row.largest_vm_cpus), (state, largest), "{row:?}");
    assert!(in_words(&row.warnings).starts_with(warning), "{row:?}");
    assert_eq!(row.warnings.is_empty(), warning.is_empty(), "{row:?}");
}

#[test]
fn what_a_label_says_that_was_set_before_is_not_shown() {
    let text = nodes(&[dead("w"), object("w")]).text(pipe());
    let row = text.lines().nth(1).unwrap();
    let words: Vec<&str> = row.split_whitespace().take(3).collect();
    assert_eq!(words, ["w", "no", "node-not-ready"], "{text}");
}

#[test]
fn of_koordlets_object_the_free_cpus_are_those_of_its_annotations() {
    let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": 0, "node": 0});
    let detail: Vec<Value> = (0..8).map(cpu).collect();
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
    assert_eq!((row.largest_vm_cpus, row.vms), (Some(4), Some(1)));
    let with = |of: &str, text: &str| {
        let mut object = koordlets.clone();
        object["metadata"]["annotations"][of] = json!(text);
        let row = read(&object);
        (row.state_in_words(), row.free_cpus)
    };
    let policy = "kubelet.koordinator.sh/cpu-manager-policy";
    let pools = "node.koordinator.sh/cpu-shared-pools";
    for (annotation, text, state, free) in [
        (policy, r#"{"policy":"static","reservedCPUs":"0-1"}"#, "ok", Some(4)),
        // Where it does not say which CPUs kubelet reserves, those of the pools are free; with an unknown policy nobody can tell.
        (policy, r#"{"policy":"static"}"#, "ok", Some(6)),
        (policy, r#"{"policy":"dynamic"}"#, "ok", None),
        // The amount says 8.
        (pools, r#"[{"cpuset":"x"}]"#, "unreadable", None),
    ] {
        assert_eq!(with(annotation, text), (state, free), "{text}");
    }
}

#[test]
fn the_warnings_of_all_are_a_table_below_and_of_each_in_a_wide_one() {
    let mut items = vec![dead("worker-0"), object("worker-0"), node("worker-1", json!({}))];
    items.extend(unusable("worker-2", "the checksum is 1"));
    items.extend(unusable("worker-3", "the checksum is 2"));
    let nodes = nodes(&items);
    for style in [terminal(80), pipe()] {
        let text = nodes.text(style);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "worker-0 no node-not-ready",
            "worker-1 - without steliad",
            "KubeletStateUnusable 2 worker-2 (the checksum is 1), worker-3 (the checksum is 2)",
            "the Node is not Ready 1 worker-0: Kubelet stopped",
        ] {
            assert!(words.contains(part), "{text}");
        }
        let fits = |line: &str| style.width.is_none_or(|width| line.chars().count() <= width);
        assert!(text.lines().all(fits), "{text}");
    }
    let text = nodes.text(wide());
    let row = text.lines().find(|line| line.contains("worker-2")).unwrap();
    assert!(row.contains("KubeletStateUnusable (the"), "{text}");
}

#[test]
fn trouble_comes_first() {
    let mut items = vec![well("a"), object("a"), node("b", json!({}))];
    items.extend(unusable("c", ""));
    // The Node of e was deleted, f is meant to run steliad and does not publish, g is cordoned.
    items.extend([dead("d"), object("d"), object("e"), well("f")]);
    items.extend([cordoned("g"), object("g")]);
    let names: String = nodes(&items).nodes.into_iter().map(|row| row.name).collect();
    assert_eq!(names, "fdcegab");
    let text = nodes(&items).text(terminal(80));
    let sums = text.split("\n\n").next().unwrap().replace('\n', " ");
    for state in [
        "7 nodes: ",
        "2 ok",
        "1 without steliad",
        "1 unpublished",
        "; 4 free CPUs",
        "LARGEST 4.",
    ] {
        assert!(sums.contains(state), "{sums}");
    }
}
