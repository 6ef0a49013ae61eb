use serde_json::{Value, json};

use super::*;
use crate::cluster::Chosen;
use crate::objects::Objects;
use crate::tests::{cluster, dead, node, pipe, terminal, wide};

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

fn of(items: &[Value], filter: &VmFilter, order: VmOrder) -> Vms {
    Vms::of(&cluster(items), filter, order, true, NOW)
}

fn all(items: &[Value]) -> Vms {
    of(items, &VmFilter::default(), VmOrder::default())
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
    vms.vms
        .iter()
        .map(|vm| (vm.pod_name.as_str(), vm.state.name()))
        .collect()
}

#[test]
fn every_vm_has_its_node_and_state_and_trouble_comes_first() {
    let vms = all(&some());
    let expected = [
        ("db", "degraded"),
        ("cache", "waiting"),
        ("quiet", "unknown"),
        ("new", "pending"),
        ("web", "isolated"),
    ];
    assert_eq!(shown(&vms), expected);
    assert_eq!(
        (vms.vms[0].since_us, vms.vms[0].message.as_deref()),
        (Some(NOW - 600_000_000), Some("why Evicted"))
    );
    let text = vms.text(pipe());
    let first = text.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(first, ["team-a/db", "w-2", "degraded", "10m", "Evicted"]);
    assert!(
        text.starts_with("5 VMs on 2 nodes: 1 degraded, 1 waiting, 1 unknown, 1 pending, 1 isolated.\n\nVM "),
        "{text}"
    );
    assert_eq!(vms.names()[0], "team-a/db");
}

#[test]
fn vms_are_chosen_and_ordered_as_asked() {
    let states = vec![VmState::Degraded, VmState::Waiting];
    let patterns = vec![Pattern::parse("w?b").unwrap(), Pattern::parse("uid-of-new").unwrap()];
    let filter = |patterns, namespace: Option<&str>, states| VmFilter {
        patterns,
        namespace: namespace.map(str::to_owned),
        states,
    };
    for (filter, order, expected) in [
        (filter(vec![], None, states), VmOrder::Name, "cache db"),
        (filter(patterns, None, vec![]), VmOrder::Name, "new web"),
        (filter(vec![], Some("team-b"), vec![]), VmOrder::Name, ""),
        (VmFilter::default(), VmOrder::Name, "cache db new quiet web"),
        (VmFilter::default(), VmOrder::Node, "new quiet web cache db"),
        // Those whose time is not known come last.
        (VmFilter::default(), VmOrder::Since, "cache db web new quiet"),
    ] {
        let vms = of(&some(), &filter, order);
        let names: Vec<&str> = vms.vms.iter().map(|vm| vm.pod_name.as_str()).collect();
        assert_eq!(names.join(" "), expected, "{filter:?} {order}");
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
        assert!(
            vms.vms[0].is_old && text.contains(&format!("Isolated; {why}")),
            "{text}"
        );
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
            let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::Name, false, NOW).vms;
            vms.into_iter().map(|vm| vm.pod_name).collect::<Vec<_>>()
        })
    };
    assert_eq!(on("w-1"), Ok(vec!["web".to_owned()]));
    assert_eq!(on("w-1.example"), Ok(vec!["web".to_owned()]));
    assert_eq!(on("10.0.0.1"), Ok(vec!["db".to_owned()]));
    assert_eq!((on("10"), on("w")), (Err(()), Err(())));
}

#[test]
fn what_all_names_have_in_common_is_left_out_of_a_narrow_table_and_a_short_name_fits() {
    let vm = |name: &str, node: &str| pod(name, Some(node), Some(("False", "WaitingTooLong")));
    let items = [
        vm("virt-launcher-vm-001-x7k2p", "worker-001.eu-west-1.compute.internal"),
        vm("virt-launcher-vm-002-b9d4q", "worker-002.eu-west-1.compute.internal"),
    ];
    let narrow = all(&items).text(terminal(80));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(narrow.contains("team-a/vm-001-x7k2p  worker-001  waiting"), "{narrow}");
    assert!(narrow.contains("without virt-launcher- and"), "{narrow}");
    assert!(narrow.contains(".eu-west-1.compute.internal"), "{narrow}");
    for whole in [all(&items).text(terminal(200)), all(&items).text(pipe())] {
        assert!(
            whole.contains("virt-launcher-vm-001-x7k2p") && !whole.contains("Names are shown"),
            "{whole}"
        );
    }
    // Two domains tell nodes apart.
    let other = [items[0].clone(), vm("web", "worker-001.us-east-1.compute.internal")];
    let text = all(&other).text(terminal(80));
    assert!(
        text.contains("worker-001.eu-w") && text.contains("worker-001.us-e"),
        "{text}"
    );
    let short = VmFilter {
        patterns: vec![Pattern::parse("vm-001-x7k2p").unwrap()],
        ..VmFilter::default()
    };
    let vms = of(&items, &short, VmOrder::Name);
    assert_eq!(vms.names(), ["team-a/virt-launcher-vm-001-x7k2p"]);
}

#[test]
fn vms_of_unknown_state_share_a_row_on_a_terminal_unless_each_is_asked_for() {
    let items = [
        pod("a", Some("w-1"), None),
        pod("b", Some("w-2"), None),
        pod("c", Some("w-1"), None),
        pod("d", Some("w-1"), Some(("True", "Isolated"))),
        pod("e", Some("w-3"), None),
        pod("f", Some("w-3"), None),
        dead("w-3"),
    ];
    let vms = all(&items);
    let text = vms.text(terminal(120));
    assert_eq!(
        rows(&text),
        [
            "2 VMs w-3 unknown - its Node is not Ready",
            "3 VMs 2 nodes unknown - no condition is published: --pod-conditions=all",
            "team-a/d w-1 isolated 10m"
        ]
    );
    assert!(
        text.starts_with("6 VMs on 3 nodes: 5 unknown, 1 isolated.\n") && text.contains("-o wide lists each"),
        "{text}"
    );
    assert_eq!(vms.names().len(), 6);
    // What reads a pipe gets each.
    for style in [wide(), pipe()] {
        assert_eq!(rows(&vms.text(style)).len(), 6);
    }
    let named = VmFilter {
        patterns: vec![Pattern::parse("*").unwrap()],
        ..VmFilter::default()
    };
    let vms = of(&items, &named, VmOrder::default());
    assert_eq!(rows(&vms.text(terminal(120))).len(), 6);
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
    assert_eq!(
        ["team-a/Waiting ", "team-a/WaitingT", "team-a/Pinned"].map(ends),
        ["why Waiting", "WaitingTooLong", "Pinned"]
    );
    let json = serde_json::to_value(&vms).unwrap();
    assert_eq!(json["vms"][0]["reason"], "Waiting");
}

/// The rows of the table, without the blanks between their columns.
fn rows(text: &str) -> Vec<String> {
    let lines = text.lines().skip(3).take_while(|line| !line.is_empty());
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(words).collect()
}

/// Many VMs that are well, and 12 of each kind of trouble.
fn many() -> Vec<Value> {
    let mut items = Vec::new();
    for number in 0..12 {
        let node = format!("w-{number:02}");
        let mut new = pod(&format!("a-{number:02}"), Some(&node), Some(("False", "Waiting")));
        new["status"]["conditions"][1]["lastTransitionTime"] = json!("2026-10-01T09:59:00Z");
        let mut pinned = pod(&format!("c-{number:02}"), Some(&node), Some(("False", "Pinned")));
        pinned["status"]["conditions"][1]["message"] = json!(format!(
            "pinned to the CPUs {number}, without a partition: the kernel refused"
        ));
        items.extend([new, pinned]);
        items.push(pod(
            &format!("f-{number:02}"),
            Some(&node),
            Some(("False", "WaitingTooLong")),
        ));
        items.push(pod(&format!("i-{number:02}"), Some(&node), Some(("True", "Isolated"))));
        items.push(pod(&format!("j-{number:02}"), Some(&node), Some(("True", "Isolated"))));
    }
    items
}

#[test]
fn many_vms_that_are_alike_share_a_row_on_a_terminal_and_those_in_trouble_are_named_first() {
    let vms = all(&many());
    let text = vms.text(terminal(120));
    let rows_of_all = rows(&text);
    assert_eq!(rows_of_all.len(), 10 + 1 + 1 + 10 + 1 + 1, "{text}");
    assert_eq!(rows_of_all[0], "team-a/f-00 w-00 waiting 10m WaitingTooLong");
    assert_eq!(rows_of_all[10], "2 more VMs 2 nodes waiting 10m WaitingTooLong");
    assert_eq!(rows_of_all[11], "12 VMs 12 nodes waiting 60s starting");
    assert_eq!(rows_of_all[12], "team-a/c-00 w-00 pinned 10m the kernel refused");
    assert_eq!(rows_of_all[22], "2 more VMs 2 nodes pinned 10m the kernel refused");
    assert_eq!(rows_of_all[23], "24 VMs 12 nodes isolated 10m");
    assert!(text.contains("\n-o wide lists each VM.\n"), "{text}");
    assert!(text.contains("\nWaitingTooLong: no CPUs of its own"), "{text}");
    // Each has a row in a pipe, with -o wide, and where states or an order are asked for.
    assert_eq!(rows(&vms.text(pipe())).len(), 60);
    // A long message continues on the next line.
    let rows_of_all = rows(&vms.text(wide()));
    assert_eq!(rows_of_all.iter().filter(|row| row.starts_with("team-a/")).count(), 60);
    let isolated = VmFilter {
        states: vec![VmState::Isolated],
        ..VmFilter::default()
    };
    assert_eq!(
        rows(&of(&many(), &isolated, VmOrder::default()).text(terminal(120))).len(),
        24
    );
    assert_eq!(
        rows(&of(&many(), &VmFilter::default(), VmOrder::Name).text(terminal(120))).len(),
        60
    );
}

#[test]
fn a_few_vms_have_a_row_each_and_no_reason_repeats_the_state() {
    assert_eq!(
        rows(&all(&many()[..10]).text(terminal(120))),
        [
            "team-a/f-00 w-00 waiting 10m WaitingTooLong",
            "team-a/f-01 w-01 waiting 10m WaitingTooLong",
            "team-a/a-00 w-00 waiting 60s starting",
            "team-a/a-01 w-01 waiting 60s starting",
            "team-a/c-00 w-00 pinned 10m the kernel refused",
            "team-a/c-01 w-01 pinned 10m the kernel refused",
            "team-a/i-00 w-00 isolated 10m",
            "team-a/i-01 w-01 isolated 10m",
            "team-a/j-00 w-00 isolated 10m",
            "team-a/j-01 w-01 isolated 10m"
        ]
    );
    // A reason "Waiting" that is older than a start takes has its message.
    let vms = all(&[pod("a", Some("w-1"), Some(("False", "Waiting")))]);
    assert_eq!(rows(&vms.text(terminal(120))), ["team-a/a w-1 waiting 10m why Waiting"]);
}

#[test]
fn vms_that_health_calls_degraded_and_whose_isolation_holds_are_told() {
    let summary = json!({"version": "0.2.0", "reason": "KubeletStateUnusable", "message": "wrong checksum",
        "instances": {"isolated": 2}, "degraded": 2, "waiting_too_long": 0});
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "w-1"}, "zones": [],
        "attributes": [{"name": "isolation.stelia.io/summary", "value": summary.to_string()}],
    });
    let isolated = |name| pod(name, Some("w-1"), Some(("True", "Isolated")));
    let text = |items: &[Value], state| {
        let filter = VmFilter {
            states: Vec::from_iter(state),
            ..VmFilter::default()
        };
        of(items, &filter, VmOrder::default()).text(pipe())
    };
    let items = [isolated("a"), isolated("b"), object.clone()];
    let note = "The nodes report 2 more VMs with a reason of degradation";
    assert!(text(&items, None).contains(note));
    let none = text(&items, Some(VmState::Degraded));
    assert!(
        none.starts_with("No VMs.\nThe nodes report 2 VMs with a reason"),
        "{none}"
    );
    assert!(!text(&items, Some(VmState::Isolated)).contains(note));
    let evicted = pod("a", Some("w-1"), Some(("False", "Evicted")));
    let both = [evicted.clone(), isolated("b"), object.clone()];
    assert!(text(&both, None).contains("1 more VM with a reason"));
    let all = [evicted, pod("b", Some("w-1"), Some(("False", "CpusOffline"))), object];
    assert!(!text(&all, None).contains("more VM"));
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
    assert!(
        text.starts_with("2 VMs on 2 nodes: 1 degraded, 1 isolated, 1 of them on nodes that do not"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 72), "{text}");
    assert!(text.contains("0-x7k2p  ") && text.contains("Evicted"), "{text}");
}
