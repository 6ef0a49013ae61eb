use serde_json::{Value, json};

use super::*;
use crate::cluster::Chosen;
use crate::objects::{ObjectSelection, Objects};

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

fn cluster(items: &[Value]) -> Cluster {
    let mut objects = Objects::new(ObjectSelection { pods: true, pod: None });
    objects.read("dump", &json!({"kind": "List", "items": items}).to_string());
    Cluster::of(objects, &Chosen::default()).unwrap()
}

fn some() -> Cluster {
    let mut plain = pod("plain", Some("w-1"), None);
    plain["spec"]["containers"][0]["resources"] = json!({});
    let mut ended = pod("ended", Some("w-1"), Some(("True", "Isolated")));
    ended["status"]["phase"] = json!("Succeeded");
    cluster(&[
        pod("web", Some("w-1"), Some(("True", "Isolated"))),
        pod("db", Some("w-2"), Some(("False", "Evicted"))),
        pod("cache", Some("w-2"), Some(("False", "WaitingTooLong"))),
        pod("quiet", Some("w-1"), None),
        pod("new", None, None),
        plain,
        ended,
    ])
}

fn shown(vms: &Vms) -> Vec<(&str, &'static str)> {
    vms.vms
        .iter()
        .map(|vm| (vm.pod_name.as_str(), vm.state.name()))
        .collect()
}

#[test]
fn every_vm_has_its_node_and_state_and_trouble_comes_first() {
    let vms = Vms::of(&some(), &VmFilter::default(), VmOrder::default(), true, NOW);
    assert_eq!(
        shown(&vms),
        [
            ("db", "degraded"),
            ("cache", "waiting"),
            ("quiet", "unknown"),
            ("new", "pending"),
            ("web", "isolated")
        ]
    );
    assert_eq!(
        (vms.vms[0].since_us, vms.vms[0].message.as_deref()),
        (Some(NOW - 600_000_000), Some("why Evicted"))
    );
    let text = vms.text(TextStyle::from(true));
    let first = text.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(first, ["team-a/db", "w-2", "degraded", "10m", "Evicted"]);
    assert!(
        text.starts_with("5 VMs on 2 nodes: 1 degraded, 1 waiting, 1 unknown, 1 pending, 1 isolated.\n\nVM "),
        "{text}"
    );
    assert_eq!(vms.names()[0], "team-a/db");
}

#[test]
fn a_filter_leaves_what_was_asked_for() {
    let of = |filter: VmFilter| {
        let vms = Vms::of(&some(), &filter, VmOrder::Name, true, NOW);
        vms.vms.into_iter().map(|vm| vm.pod_name).collect::<Vec<_>>()
    };
    let states = VmFilter {
        states: vec![VmState::Degraded, VmState::Waiting],
        ..VmFilter::default()
    };
    assert_eq!(of(states), ["cache", "db"]);
    let patterns = VmFilter {
        patterns: vec![Pattern::parse("w?b").unwrap(), Pattern::parse("uid-of-new").unwrap()],
        ..VmFilter::default()
    };
    assert_eq!(of(patterns), ["new", "web"]);
    let elsewhere = VmFilter {
        namespace: Some("team-b".to_owned()),
        ..VmFilter::default()
    };
    assert!(of(elsewhere).is_empty());
}

#[test]
fn of_a_node_whose_daemon_is_away_the_state_is_the_last_one() {
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "w-1"}, "zones": [],
        "attributes": [{"name": "isolation.stelia.io/state", "value": "away"}],
    });
    let cluster = cluster(&[pod("web", Some("w-1"), Some(("True", "Isolated"))), object]);
    let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::default(), true, NOW);
    assert!(vms.vms[0].is_old);
    let text = vms.text(TextStyle::from(true));
    assert!(text.contains("Isolated; steliad does not run there"), "{text}");
}

#[test]
fn rows_are_ordered_as_asked() {
    let of = |order| {
        let vms = Vms::of(&some(), &VmFilter::default(), order, true, NOW);
        vms.vms.into_iter().map(|vm| vm.pod_name).collect::<Vec<_>>()
    };
    assert_eq!(of(VmOrder::Name), ["cache", "db", "new", "quiet", "web"]);
    assert_eq!(of(VmOrder::Node), ["new", "quiet", "web", "cache", "db"]);
    // Those whose time is not known come last.
    assert_eq!(of(VmOrder::Since), ["cache", "db", "web", "new", "quiet"]);
}

#[test]
fn of_a_node_that_is_not_ready_the_state_is_the_last_one() {
    let dead = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "w-1"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "no status"}]},
    });
    let cluster = cluster(&[pod("web", Some("w-1"), Some(("True", "Isolated"))), dead]);
    let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::default(), true, NOW);
    let text = vms.text(TextStyle::from(true));
    assert!(
        vms.vms[0].is_old && text.contains("Isolated; its Node is not Ready"),
        "{text}"
    );
}

#[test]
fn sentences_are_wrapped_and_names_keep_both_ends() {
    let narrow = TextStyle {
        width: Some(72),
        ..TextStyle::from(true)
    };
    let name = "virt-launcher-a-database-with-a-long-name-x7k2p";
    let cluster = cluster(&[pod(
        name,
        Some("node-17.eu-west-1.example"),
        Some(("False", "WaitingTooLong")),
    )]);
    let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::default(), true, NOW);
    let text = vms.text(narrow);
    assert!(text.lines().all(|line| line.chars().count() <= 72), "{text}");
    assert!(text.contains("x7k2p  "), "{text}");
    assert!(text.contains("WaitingTooLong"), "{text}");
}

#[test]
fn a_node_is_chosen_by_its_name_with_or_without_the_domain() {
    let vm = |name, node: &str| pod(name, Some(node), Some(("True", "Isolated")));
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let items = [
        vm("web", "w-1.example"),
        vm("db", "10.0.0.1"),
        node("w-1.example"),
        node("10.0.0.1"),
    ];
    let on = |name: &str| {
        let mut objects = Objects::new(ObjectSelection { pods: true, pod: None });
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
    let of = |items: &[Value], width| {
        let vms = Vms::of(&cluster(items), &VmFilter::default(), VmOrder::default(), true, NOW);
        vms.text(TextStyle {
            width,
            ..TextStyle::from(true)
        })
    };
    let narrow = of(&items, Some(80));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(narrow.contains("team-a/vm-001-x7k2p  worker-001  waiting"), "{narrow}");
    assert!(narrow.contains("without virt-launcher- and"), "{narrow}");
    assert!(narrow.contains(".eu-west-1.compute.internal"), "{narrow}");
    for whole in [of(&items, Some(200)), of(&items, None)] {
        assert!(
            whole.contains("virt-launcher-vm-001-x7k2p") && !whole.contains("Names are shown"),
            "{whole}"
        );
    }
    // Two domains tell nodes apart.
    let other = [items[0].clone(), vm("web", "worker-001.us-east-1.compute.internal")];
    let text = of(&other, Some(80));
    assert!(
        text.contains("worker-001.eu-w") && text.contains("worker-001.us-e"),
        "{text}"
    );
    let short = VmFilter {
        patterns: vec![Pattern::parse("vm-001-x7k2p").unwrap()],
        ..VmFilter::default()
    };
    let vms = Vms::of(&cluster(&items), &short, VmOrder::Name, true, NOW);
    assert_eq!(vms.names(), ["team-a/virt-launcher-vm-001-x7k2p"]);
}

#[test]
fn vms_of_unknown_state_share_a_row_on_a_terminal_unless_each_is_asked_for() {
    let dead = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "w-3"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "no status"}]},
    });
    let items = [
        pod("a", Some("w-1"), None),
        pod("b", Some("w-2"), None),
        pod("c", Some("w-1"), None),
        pod("d", Some("w-1"), Some(("True", "Isolated"))),
        pod("e", Some("w-3"), None),
        pod("f", Some("w-3"), None),
        dead,
    ];
    let cluster = cluster(&items);
    let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::default(), true, NOW);
    let rows = |text: &str| {
        let lines = text.lines().skip(3).take_while(|line| !line.is_empty());
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let terminal = TextStyle {
        width: Some(120),
        ..TextStyle::from(true)
    };
    let text = vms.text(terminal);
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
    let wide = TextStyle { wide: true, ..terminal };
    assert_eq!(rows(&vms.text(wide)).len(), 6);
    // What reads a pipe gets each.
    assert_eq!(rows(&vms.text(TextStyle::from(true))).len(), 6);
    let named = VmFilter {
        patterns: vec![Pattern::parse("*").unwrap()],
        ..VmFilter::default()
    };
    let vms = Vms::of(&cluster, &named, VmOrder::default(), true, NOW);
    assert_eq!(rows(&vms.text(terminal)).len(), 6);
}

#[test]
fn the_reason_of_a_vm_that_floats_does_not_repeat_the_state() {
    let cluster = cluster(&[
        pod("a", Some("w-1"), Some(("False", "Waiting"))),
        pod("b", Some("w-1"), Some(("False", "WaitingTooLong"))),
        pod("c", Some("w-1"), Some(("False", "Pinned"))),
    ]);
    let vms = Vms::of(&cluster, &VmFilter::default(), VmOrder::default(), true, NOW);
    let text = vms.text(TextStyle::from(true));
    let ends = |name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        line.rsplit("10m  ").next().unwrap().to_owned()
    };
    assert_eq!(
        ["team-a/a", "team-a/b", "team-a/c"].map(ends),
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

fn terminal() -> TextStyle {
    TextStyle {
        width: Some(120),
        ..TextStyle::from(true)
    }
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
    let cluster = cluster(&many());
    let of = |filter: &VmFilter, order| Vms::of(&cluster, filter, order, true, NOW);
    let vms = of(&VmFilter::default(), VmOrder::default());
    let text = vms.text(terminal());
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
    assert_eq!(rows(&vms.text(TextStyle::from(true))).len(), 60);
    let wide = TextStyle {
        wide: true,
        ..terminal()
    };
    // A long message continues on the next line.
    let rows_of_all = rows(&vms.text(wide));
    assert_eq!(rows_of_all.iter().filter(|row| row.starts_with("team-a/")).count(), 60);
    let isolated = VmFilter {
        states: vec![VmState::Isolated],
        ..VmFilter::default()
    };
    assert_eq!(rows(&of(&isolated, VmOrder::default()).text(terminal())).len(), 24);
    assert_eq!(
        rows(&of(&VmFilter::default(), VmOrder::Name).text(terminal())).len(),
        60
    );
}

#[test]
fn a_few_vms_have_a_row_each_and_no_reason_repeats_the_state() {
    let few = cluster(&many()[..10]);
    let vms = Vms::of(&few, &VmFilter::default(), VmOrder::default(), true, NOW);
    assert_eq!(
        rows(&vms.text(terminal())),
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
    let old = cluster(&[pod("a", Some("w-1"), Some(("False", "Waiting")))]);
    let vms = Vms::of(&old, &VmFilter::default(), VmOrder::default(), true, NOW);
    assert_eq!(rows(&vms.text(terminal())), ["team-a/a w-1 waiting 10m why Waiting"]);
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
        Vms::of(&cluster(items), &filter, VmOrder::default(), true, NOW).text(TextStyle::from(true))
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
fn where_names_need_the_room_reasons_are_footnotes_with_the_message() {
    let name = |at: usize| format!("virt-launcher-a-database-with-a-long-name-{at}-x7k2p");
    let told = [
        ("Evicted", "w-1"),
        ("StepFailed", "w-1"),
        ("Evicted", "w-2"),
        ("Isolated", "w-2"),
    ];
    let mut items: Vec<Value> = told
        .iter()
        .enumerate()
        .map(|(at, (reason, node))| {
            let status = if *reason == "Isolated" { "True" } else { "False" };
            pod(&name(at), Some(node), Some((status, reason)))
        })
        .collect();
    items.push(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "w-2"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "no status"}]},
    }));
    items.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w-1"}}));
    let vms = Vms::of(&cluster(&items), &VmFilter::default(), VmOrder::default(), true, NOW);
    let text = vms.text(TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    });
    assert!(
        text.starts_with("4 VMs on 2 nodes: 3 degraded, 1 isolated, 1 of them on nodes that do not answer.\n"),
        "{text}"
    );
    for whole in [
        "team-a/a-database-with-a-long-name-2-x7k2p  w-2   degraded    10m  [1] [2]\n",
        "team-a/a-database-with-a-long-name-0-x7k2p  w-1   degraded    10m  [1]\n",
        "\n[1] Evicted: why Evicted\n[2] its Node is not Ready\n[3] StepFailed: why StepFailed\n",
    ] {
        assert!(text.contains(whole), "{whole}: {text}");
    }
}
