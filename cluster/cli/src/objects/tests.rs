use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use stelia_cpus::quantity::Quantity;
use stelia_koordinator::report::profile::Profile;
use stelia_koordinator::report::testing::facts;

use super::*;

fn topology(name: &str) -> Value {
    crate::tests::topology(&facts(), name, Profile::Stelia)
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": { "allocatable": { "cpu": "4" } } })
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "a", "uid": name },
        "spec": { "nodeName": "w", "containers": [{ "name": "c", "resources": { "limits": { "cpu": cpu, "memory": "1Gi" } } }] },
    })
}

fn read(text: &str) -> Objects {
    let mut objects = Objects::new(true);
    objects.read("dump", text);
    objects
}

fn counts(objects: &Objects) -> [usize; 4] {
    let (nodes, reports) = (objects.nodes.len(), objects.reports.len());
    [nodes, reports, objects.pods.len(), objects.problems.lines().len()]
}

#[test]
fn lists_documents_and_both_forms_are_read() {
    let items = json!([node("w"), topology("w"), pod("web", "2"), { "kind": "Secret", "metadata": { "name": "x" } }]);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    for text in [
        list.to_string(),
        serde_json::to_string_pretty(&list).unwrap(),
        format!("\u{feff} {}\n{}\n{}", node("w"), topology("w"), pod("web", "2")),
        serde_saphyr::to_string(&list).unwrap(),
        format!(
            "{}---\n---\n{}",
            serde_saphyr::to_string(&node("w")).unwrap(),
            serde_saphyr::to_string(&json!({ "kind": "PodList", "items": [topology("w"), pod("web", "2")] })).unwrap(),
        ),
    ] {
        let objects = read(&text);
        assert_eq!(counts(&objects), [1, 1, 1, 0], "{:?}", objects.problems.lines());
        assert_eq!(objects.pods[&("a".to_owned(), "web".to_owned())].own_cpus, 2);
        assert_eq!(objects.nodes["w"].allocatable["cpu"], Quantity::units(4));
    }
}

#[test]
fn a_page_of_the_api_server_has_items_without_a_kind() {
    let bare = |mut object: Value| {
        let fields = object.as_object_mut().unwrap();
        fields.retain(|name, _| name != "kind" && name != "apiVersion");
        object
    };
    let mut objects = Objects::new(false);
    let page = json!({ "kind": "NodeList", "metadata": { "continue": "next" }, "items": [bare(node("w"))] });
    let next = objects.read_page("", &page.to_string(), "Node");
    assert_eq!(next.as_deref(), Some("next"));
    let page = json!({ "metadata": { "continue": "" }, "items": [bare(topology("w"))] });
    assert_eq!(objects.read_page("", &page.to_string(), "NodeResourceTopology"), None);
    let page = json!({ "kind": "NodeList", "metadata": {}, "items": null });
    assert_eq!(objects.read_page("", &page.to_string(), "Node"), None);
    assert_eq!(counts(&objects), [1, 1, 0, 0]);
}

fn changed(pointer: &str, value: Value) -> Value {
    let mut object = topology("bad");
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

#[rstest]
#[case(json!({"kind": "Node", "metadata": {"name": "Not A Name"}}), "Node Not A Name: ")]
#[case(json!({"kind": "Node", "metadata": {"name": 7}}), "")]
#[case(json!({"kind": "Node"}), "Node without a name: ")]
#[case(json!({"kind": "Node", "metadata": {"name": "x", "labels": []}}), "Node x: ")]
#[case(changed("/zones", json!("all")), "NodeResourceTopology bad: ")]
#[case(changed("/zones/0/resources/0/available", json!("-1")), "NodeResourceTopology bad: ")]
#[case(pod("odd", "a few"), "Pod a/odd: ")]
#[case(json!({"kind": "Pod", "metadata": {"name": "empty"}, "spec": {}}), "Pod default/empty: ")]
#[case(json!({"kind": "Pod", "metadata": {"name": "none", "namespace": "a"}, "spec": 3}), "Pod a/none: ")]
#[case(json!(7), "")]
#[case(json!(null), "")]
fn one_that_cannot_be_read_costs_a_line_with_its_name_and_the_others_are_read(
    #[case] item: Value,
    #[case] named: &str,
) {
    let objects = read(&json!({"kind": "List", "items": [node("w"), item, topology("w")]}).to_string());
    let [problem] = objects.problems.stored() else {
        panic!("{:?}", objects.problems)
    };
    let line = format!("{}: {}", problem.object, problem.what);
    assert!(line.starts_with(named), "{line}");
    assert!(objects.nodes.contains_key("w") && objects.reports.contains_key("w"));
}

/// These are read, and say less.
#[test]
fn what_is_absurd_in_an_object_is_told_of_its_node() {
    let mut bad = topology("bad");
    let mut attributes = bad["attributes"].as_array_mut().unwrap().iter_mut();
    let own = attributes.find(|one| one["name"] == "isolation.stelia.io/node");
    let own = own.unwrap();
    own["value"] = json!(r#"{"v":1,"topology":"0x1000000000:0:0:0","policy":"static"}"#);
    let objects = read(&json!({"items": [bad, pod("lots", "1000000000000")]}).to_string());
    let lots = &objects.pods[&("a".to_owned(), "lots".to_owned())];
    assert_eq!((lots.own_cpus, objects.problems.stored().len()), (1_000_000_000_000, 0));
    let problem = objects.reports["bad"].stored.problem.as_deref().unwrap();
    assert!(problem.contains("not a run of CPUs"), "{problem}");
}

#[test]
fn a_broken_text_is_told_and_what_was_before_it_is_kept() {
    for (text, nodes) in [
        (format!("{}{{\"kind\": ", node("w")), 1),
        ("{".to_owned(), 0),
        ("[1, 2".to_owned(), 0),
        ("\u{0}\u{1}: [".to_owned(), 0),
        (format!("{{\"items\":{}1}}", "[{\"items\":".repeat(300)), 0),
    ] {
        let objects = read(&text);
        assert_eq!(objects.nodes.len(), nodes, "{text}");
        assert_eq!(objects.problems.lines().len(), 1, "{text}");
    }
    let nested = json!({ "items": [{ "items": [{ "items": [{ "items": [{ "items": [node("w")] }] }] }] }] });
    assert_eq!(read(&nested.to_string()).problems.lines().len(), 1);
}

#[test]
fn of_very_many_problems_the_number_is_told() {
    let items = vec![json!({ "kind": "Node" }); 1000];
    let objects = read(&json!({ "items": items }).to_string());
    let lines = objects.problems.lines();
    assert_eq!((lines.len(), objects.problems.stored().len()), (11, 200));
    assert_eq!(lines.last().unwrap(), "990 more objects could not be read");
}

#[test]
fn when_an_object_was_written_is_what_its_managers_say() {
    let mut object = topology("w");
    object["metadata"]["managedFields"] = json!([
        { "manager": "steliad", "time": "2026-10-01T10:00:00Z" }, { "manager": "x", "time": "2026-09-01T10:00:00Z" }, { "manager": "y" },
        { "time": "yesterday" },
    ]);
    assert_eq!(kinds::written_us(&object.to_string()), Some(1_790_848_800_000_000));
    object["metadata"]["managedFields"] = json!(null);
    assert_eq!(kinds::written_us(&object.to_string()), None);
}

#[test]
fn what_a_pod_uses_ends_with_it_and_overhead_counts() {
    let mut running = pod("web", "2");
    running["spec"]["overhead"] = json!({ "cpu": "250m", "memory": "64Mi" });
    let (_, kept, _) = PodObject::read(&running.to_string()).unwrap();
    assert_eq!(kept.requests.milli_cpus, Some(2250));
    assert_eq!(kept.requests.memory, Some((1 << 30) + (64 << 20)));
    assert!(!kept.has_ended);
    running["status"] = json!({ "phase": "Failed" });
    assert!(PodObject::read(&running.to_string()).unwrap().1.has_ended);
}

#[test]
fn a_member_that_is_not_used_makes_no_object_unreadable() {
    let node = json!({
        "kind": "Node",
        "metadata": { "name": "w", "annotations": 1, "labels": { "a": "b" }, "creationTimestamp": "" },
        "spec": { "taints": [{ "key": "k", "effect": "NoSchedule", "timeAdded": "" }], "podCIDRs": 1 },
        "status": {
            "allocatable": { "cpu": null, "memory": true, "pods": 110, "hugepages-2Mi": "4Mi" },
            "conditions": [{ "type": "MemoryPressure", "lastHeartbeatTime": "" }, { "type": "Ready", "status": "Unknown", "message": "gone" }],
            "images": [{ "sizeBytes": "many" }], "nodeInfo": [],
        },
    });
    let mut odd = pod("web", "2");
    odd["metadata"]["labels"] = json!({ "a": 1 });
    odd["metadata"]["annotations"] = json!([]);
    odd["spec"]["tolerations"] = json!("all");
    odd["spec"]["affinity"] = json!(7);
    odd["status"] = json!({ "phase": "Running", "containerStatuses": [{ "restartCount": "never" }], "conditions": [
        { "type": "Ready", "lastProbeTime": 1 },
        { "type": "stelia.io/isolated", "status": "True", "lastTransitionTime": "never", "reason": null },
    ] });
    let objects = read(&json!({ "items": [node, odd] }).to_string());
    assert_eq!(counts(&objects), [1, 0, 1, 0], "{:?}", objects.problems.lines());
    let node = &objects.nodes["w"];
    assert_eq!((node.not_ready.as_deref(), node.taints.len()), (Some("gone"), 1));
    assert_eq!(node.allocatable["pods"], Quantity::units(110));
    assert!(!node.allocatable.contains_key("cpu") && !node.allocatable.contains_key("memory"));
    let pod = &objects.pods[&("a".to_owned(), "web".to_owned())];
    assert_eq!((pod.own_cpus, pod.node.as_deref()), (2, Some("w")));
    let isolation = pod.isolation.as_ref().unwrap();
    assert_eq!((isolation.status.as_str(), isolation.since_us()), ("True", None));
}

#[test]
fn only_the_pods_that_are_asked_about_are_kept_whole() {
    let mut objects = Objects::new(true).asking_about(Some("web"));
    let items = json!({ "items": [pod("web", "2"), pod("db", "2")] });
    objects.read("dump", &items.to_string());
    let asked: Vec<&str> = objects.asked.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!((asked, objects.pods.len()), (vec!["web"], 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is in a dump, reading it ends, and never in a panic.
    #[test]
    fn a_dump_with_any_bytes_anywhere_is_read_or_refused(
        places in proptest::collection::vec((any::<u32>(), ".{0,6}"), 1..4)
    ) {
        let list = json!({ "kind": "List", "items": [node("w"), topology("w"), pod("web", "2"), topology("v")] });
        let mut text = list.to_string();
        for (at, with) in places {
            let at = at as usize % text.len();
            let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            text.insert_str(at, &with);
        }
        let objects = read(&text);
        prop_assert!(objects.nodes.len() <= 2 && objects.reports.len() <= 3);
        let cluster = crate::cluster::Cluster::of(objects, &crate::cluster::Chosen::default()).unwrap();
        let nodes = crate::nodes::Nodes::of(&cluster, 0);
        prop_assert_eq!(nodes.nodes.len(), cluster.members.len());
    }
}
