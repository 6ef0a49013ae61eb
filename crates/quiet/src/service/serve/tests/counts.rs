//! Counts of what runs on VMs' CPUs.

use super::*;

/// The answer to this line.
fn asked(node: &Node, line: &str) -> OrderAnswer {
    serde_json::from_str(&node.said(format!("{line}\n").as_bytes())).unwrap()
}

#[test]
fn who_runs_on_a_vms_cpus_is_counted_between_two_lines() {
    let node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let instances = || node.kernel.tree().tracefs.as_mut().unwrap().instances().len();
    let finish = r#"{"finish":{}}"#;
    let OrderAnswer::Refused(reason) = asked(&node, finish) else {
        panic!("answered")
    };
    assert!(reason.starts_with("nothing is counted"), "{reason}");
    let begun = asked(&node, r#"{"begin":{"cpus":"3","own":[7]}}"#);
    assert_eq!((begun, instances()), (OrderAnswer::Begun, 1));
    let (keys, values) = ("next_comm,common_cpu", ["intruder", "3"]);
    let mut tree = node.kernel.tree();
    let tracefs = tree.tracefs.as_mut().unwrap();
    tracefs.count("steliad-quiet", "sched/sched_switch", keys, &values, 4, None);
    drop(tree);
    let OrderAnswer::Attributed(attribution) = asked(&node, finish) else {
        panic!("refused")
    };
    assert_eq!((attribution.cpus.as_str(), attribution.tasks[0].count), ("3", 4));
    assert_eq!(instances(), 0);
}

#[test]
fn a_count_that_nobody_waits_for_any_more_is_not_left_behind() {
    let node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let instances = || node.kernel.tree().tracefs.as_mut().unwrap().instances().len();
    let begin = "{\"begin\":{\"cpus\":\"3\",\"own\":[7]}}\n";
    node.said(begin.as_bytes());
    assert_eq!(instances(), 1);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(begin.as_bytes()).unwrap();
    drop(client);
    node.with(|serving| serving.serve_connection(server));
    assert_eq!(instances(), 0);
}

#[test]
fn only_cpus_of_live_instances_are_looked_at() {
    let mut node = Node::new();
    node.kernel.tree().tracefs = Some(Tracefs::with(&["sched/sched_switch"]));
    let line = |cpus: &str| format!(r#"{{"begin":{{"cpus":"{cpus}","own":[7]}}}}"#);
    let reason = |node: &Node, cpus: &str| match asked(node, &line(cpus)) {
        OrderAnswer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&node, "2-4"), "the CPUs 4 are no VM's");
    assert_eq!(reason(&node, ""), "no CPUs are named");
    let own = r#"{"begin":{"cpus":"2","own":[0]}}"#;
    assert_eq!(
        asked(&node, own),
        OrderAnswer::Refused("0 is no thread's number".into())
    );
    // It ended.
    node.has_only(&record(), false);
    assert_eq!(reason(&node, "2"), "the CPUs 2 are no VM's");
    // In its container.
    let container = format!(
        "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope",
        POD.replace('-', "_"),
        "a".repeat(64)
    );
    let mut record = in_place();
    record.origin = CgroupPath::parse(&container).unwrap();
    (record.exclusive, record.spare) = (set("5"), CpuSet::new());
    node.records.add(&record, true);
    assert_eq!(reason(&node, "4-5"), "the CPUs 4 are no VM's");
    assert_eq!(asked(&node, &line("5")), OrderAnswer::Begun);
}
