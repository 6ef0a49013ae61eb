use serde_json::{Value, json};

use super::*;
use crate::cluster::Chosen;
use crate::objects::Objects;
use crate::tests::{cluster, dead, node, pipe, terminal};

const NOW: u64 = 1_790_848_800_000_000;

/// A pod with the condition of a publisher.
fn pod(name: &str, node: Option<&str>, told: Option<(&str, &str)>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "team-a", "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"containers": [{"name": "vm", "resources": {"limits": {"stelia.io/vm": "1"}}}]},
        "status": {"phase": "Running"},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    if let Some((status, reason)) = told {
        pod["status"]["conditions"] = json!([
            {"type": "Ready", "status": "True"},
            {"type": "stelia.io/isolated", "status": status, "reason": reason, "message": format!("why {reason}"),
             "lastTransitionTime": "2026-10-01T09:50:00Z"},
        ]);
    }
    pod
}

fn of(items: &[Value], filter: &VmFilter) -> Vms {
    Vms::of(&cluster(items), filter, true, NOW)
}

fn all(items: &[Value]) -> Vms {
    of(items, &VmFilter::default())
}

fn some() -> Vec<Value> {
    let mut plain = pod("plain", Some("w-1"), None);
    plain["spec"]["containers"][0]["resources"] = json!({});
    let mut ended = pod("ended", Some("w-1"), Some(("True", "Isolated")));
    ended["status"]["phase"] = json!("Succeeded");
    vec![
        pod("web", Some("w-1"), Some(("True", "Isolated"))),
        pod("db", Some("w-2"), Some(("False", "Evicted"))),
        pod("cache", Some("w-2"), Some(("False", "WaitingTooLong"))),
        pod("quiet", Some("w-1"), None),
        pod("new", None, None),
        plain,
        ended,
    ]
}

fn shown(vms: &Vms) -> Vec<(&str, &'static str)> {
    let vms = vms.vms.iter();
    vms.map(|vm| (vm.pod_name.as_str(), vm.state.name())).collect()
}

#[test]
fn every_vm_has_its_node_and_state_and_trouble_comes_first() {
    let vms = all(&some());
    let expected = "db degraded,cache waiting,quiet unknown,new pending,web isolated";
    let expected: Vec<(&str, &str)> = expected.split(',').filter_map(|vm| vm.split_once(' ')).collect();
    assert_eq!(shown(&vms), expected);
    assert_eq!(vms.vms[0].since_us, Some(NOW - 600_000_000));
    assert_eq!(vms.vms[0].message.as_deref(), Some("why Evicted"));
    let text = vms.text(pipe());
    let first = text.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(first, ["team-a/db", "w-2", "degraded", "10m", "Evicted"]);
    assert!(text.starts_with("5 VMs on 2 nodes: 1 degraded, 1 waiting, 1 unknown,"));
    assert_eq!(vms.vms[0].name(), "team-a/db");
}

#[test]
fn vms_are_chosen_as_asked() {
    let states = vec![VmState::Degraded, VmState::Waiting];
    let patterns = vec![Pattern::parse("w?b").unwrap(), Pattern::parse("uid-of-new").unwrap()];
    let filter = |patterns, namespace: Option<&str>, states| VmFilter {
        patterns,
        namespace: namespace.map(str::to_owned),
        states,
    };
    for (filter, expected) in [
        (filter(vec![], None, states), "db cache"),
        (filter(patterns, None, vec![]), "new web"),
        (filter(vec![], Some("team-b"), vec![]), ""),
    ] {
        let vms = of(&some(), &filter);
        let names: Vec<&str> = vms.vms.iter().map(|vm| vm.pod_name.as_str()).collect();
        assert_eq!(names.join(" "), expected, "{filter:?}");
    }
}

#[test]
fn where_the_daemon_is_away_or_the_node_not_ready_the_state_is_the_last_one() {
    let away = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "w-1"}, "zones": [],
        "attributes": [{"name": "isolation.stelia.io/state", "value": "away"}],
    });
    for (object, why) in [
        (away, "steliad does not run there"),
        (dead("w-1"), "its Node is not Ready"),
    ] {
        let vms = all(&[pod("web", Some("w-1"), Some(("True", "Isolated"))), object]);
        let text = vms.text(pipe());
        assert!(vms.vms[0].is_old && text.contains(&format!("10m  {why}")), "{text}");
    }
}

#[test]
fn a_node_is_chosen_by_its_name_with_or_without_the_domain() {
    let vm = |name, node: &str| pod(name, Some(node), Some(("True", "Isolated")));
    let items = [
        vm("web", "w-1.example"),
        vm("db", "10.0.0.1"),
        node("w-1.example", json!({})),
        node("10.0.0.1", json!({})),
    ];
    let on = |name: &str| {
        let mut objects = Objects::new(true);
        objects.read("dump", &json!({"kind": "List", "items": items}).to_string());
        let names = [name.to_owned()];
        let chosen = Chosen {
            names: &names,
            ..Chosen::default()
        };
        let cluster = Cluster::of(objects, &chosen).map_err(|_| ());
        cluster.map(|cluster| {
            let vms = Vms::of(&cluster, &VmFilter::default(), false, NOW).vms;
            vms.into_iter().map(|vm| vm.pod_name).collect::<Vec<_>>()
        })
    };
    assert_eq!(on("w-1"), Ok(vec!["web".to_owned()]));
    assert_eq!(on("w-1.example"), Ok(vec!["web".to_owned()]));
    assert_eq!(on("10.0.0.1"), Ok(vec!["db".to_owned()]));
    assert_eq!((on("10"), on("w")), (Err(()), Err(())));
}

#[test]
fn the_reason_of_a_vm_that_floats_does_not_repeat_the_state() {
    let items = ["Waiting", "WaitingTooLong", "Pinned"].map(|reason| (reason, Some(("False", reason))));
    let vms = all(&items.map(|(name, told)| pod(name, Some("w-1"), told)));
    let text = vms.text(pipe());
    let ends = |name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        line.rsplit("10m  ").next().unwrap().to_owned()
    };
    let ends = ["team-a/Waiting ", "team-a/WaitingT", "team-a/Pinned"].map(ends);
    assert_eq!(ends, ["why Waiting", "WaitingTooLong", "why Pinned"]);
    let json = serde_json::to_value(&vms).unwrap();
    assert_eq!(json["vms"][0]["reason"], "Waiting");
}

#[test]
fn long_names_keep_both_ends_and_vms_on_nodes_that_do_not_answer_are_counted() {
    let name = |at: usize| format!("virt-launcher-a-database-with-a-long-name-{at}-x7k2p");
    let items = [
        pod(&name(0), Some("w-1"), Some(("False", "Evicted"))),
        pod(&name(1), Some("w-2"), Some(("True", "Isolated"))),
        dead("w-2"),
        node("w-1", json!({})),
    ];
    let text = all(&items).text(terminal(72));
    assert!(text.starts_with("2 VMs on 2 nodes: 1 degraded, 1 isolated, 1 of them on nodes"));
    assert!(text.lines().all(|line| line.chars().count() <= 72), "{text}");
    assert!(text.contains("0-x7k2p  ") && text.contains("Evicted"), "{text}");
}
