//! Orders are checked against the records, carried out, and answered.

use super::*;

#[test]
fn an_order_is_carried_out_answered_and_undone_by_one_without_vms() {
    let node = Node::new();
    let sleeps = || [2, 3, 4].map(|cpu| node.value(&latency(cpu)));
    let (before, mask) = (sleeps(), node.value(DISK));
    let report = node.done(&order());
    assert_eq!((report.interrupts, report.problems.len()), (1, 0), "{report:?}");
    assert_eq!(sleeps(), ["20", "20", "0"]);
    assert!(set(&node.value(DISK)).is_disjoint(&set("2-3")));
    // The same again changes nothing.
    let writes = node.writes();
    let report = node.done(&order());
    assert_eq!((report.writes, node.writes()), (0, writes));
    let report = node.done(&Order::default());
    assert_eq!(report.problems, []);
    assert_eq!((sleeps(), node.value(DISK)), (before, mask));
}

#[test]
fn what_is_no_order_is_refused_by_name_and_nothing_is_written() {
    let node = Node::new();
    let long = vec![b' '; MAX_LINE + 1];
    let no_json = "it is not JSON that is understood";
    let cases: [(&[u8], &str); 6] = [
        (&long, "no order was received: the line is longer than"),
        (b"\n", no_json),
        (b"{\"order\":{\"steer\":tru\n", no_json),
        (b"{\"order\":{\"steer\":true,\"more\":true}}\n", "unknown field `more`"),
        (b"{\"order\":{\"vms\":{\"x\":{\"cpus\":\"9999999\"}}}}\n", no_json),
        (b"\xff\xfe\n", "no order was received: the line is not UTF-8"),
    ];
    for (bytes, expected) in cases {
        let reason = node.refused(bytes);
        assert!(reason.contains(expected), "{reason}");
    }
    let impatient = Node {
        peer_timeout: SHORT,
        ..node
    };
    let reason = impatient.refused(&line(&order())[..20]);
    assert_eq!(reason, "no order was received: it took longer than 0 s");
}

#[test]
fn a_pod_that_has_no_or_only_a_dead_instance_is_left_out() {
    let mut node = Node::new();
    let none = Some("it has no live instance".to_owned());
    node.records = Records::default();
    assert_eq!(node.left_out(&order()), none);
    node.has_only(&record(), false);
    assert_eq!(node.left_out(&order()), none);
    // Another pod's record where this one's would be.
    let scope = Tree::of(&record()).scope().clone();
    let mut other = record();
    other.pod = stelia_kubelet::PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
    let attributes = other.attributes().into_iter();
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value));
    node.records.0.insert(scope, (attributes.collect(), true));
    assert_eq!(node.left_out(&order()), none);
    node.unchanged();
}

#[test]
fn a_vm_whose_record_is_ahead_of_the_order_keeps_what_it_has() {
    let mut node = Node::new();
    assert_eq!(node.left_out(&order()), None);
    let before = node.writes();
    assert!(before > 0);
    // CPU 3 is taken from it: the record says so first. The program ends and begins in between, as it does for each order here.
    let mut smaller = record();
    smaller.exclusive = set("2");
    node.has_only(&smaller, true);
    let reason = node.left_out(&order()).unwrap();
    assert!(reason.ends_with("on CPUs 2 stays"), "{reason}");
    assert_eq!(
        (node.value(&latency(2)), node.value(&latency(3))),
        ("20".to_owned(), "0".to_owned())
    );
    // A record that cannot be read is no reason either.
    let before = node.writes();
    for (attributes, _) in node.records.0.values_mut() {
        attributes.insert("schema".into(), "9".into());
    }
    let reason = node.left_out(&order()).unwrap();
    assert!(reason.contains("schema \"9\"") && reason.contains("stays"), "{reason}");
    assert_eq!(node.writes(), before);
    // It ended.
    node.records = Records::default();
    assert_eq!(node.left_out(&order()), Some("it has no live instance".to_owned()));
    assert_eq!(node.value(&latency(2)), "0");
}
