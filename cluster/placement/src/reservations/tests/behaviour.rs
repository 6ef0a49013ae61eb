use rstest::rstest;

use super::*;

#[test]
fn a_lost_answer_holds_until_the_pod_is_bound_or_another() {
    let started = || {
        let mut all = one_node("0-7");
        all.object_changed(&node("b"), 2, plain("0-7", &[]), seconds(0));
        let begun = all.start_bind(asked(1, 5, 4), &node("a"), seconds(1)).unwrap();
        all.pod_changed(pod(1, 5, None, 4), seconds(2));
        assert_eq!(held(&all, "a"), [(1, "0-3".to_owned())]);
        for on in ["a", "b"] {
            let again = all.start_bind(asked(1, 5, 4), &node(on), seconds(2));
            assert!(matches!(again, Err(BindNotStarted::UnderWay(on)) if &*on == "a"));
        }
        assert!(all.is_open(&begun));
        (all, begun)
    };
    let (mut all, begun) = started();
    all.pod_changed(pod(1, 6, Some("a"), 4), seconds(3));
    assert_eq!((held(&all, "a").len(), all.is_open(&begun)), (1, false));
    assert!(all.held("a")[0].1.is_ours);
    // Another process bound it elsewhere.
    let (mut all, begun) = started();
    all.pod_changed(pod(1, 6, Some("b"), 4), seconds(3));
    assert_eq!((held(&all, "a").len(), held(&all, "b").len()), (0, 1));
    all.bind_failed(&begun);
    assert_eq!(held(&all, "b").len(), 1);
    let (mut all, begun) = started();
    all.pod_changed(pod(1, 9, None, 4), seconds(3));
    assert_eq!((held(&all, "a"), all.is_open(&begun)), (vec![], false));
    // The scheduler has read a newer version than the watch.
    let (mut all, begun) = started();
    let next = all.start_bind(asked(1, 9, 4), &node("b"), seconds(3)).unwrap();
    all.bind_failed(&begun);
    assert_eq!((held(&all, "a").len(), held(&all, "b").len()), (0, 1));
    all.bind_succeeded(&next, seconds(4));
    assert_eq!(all.bound_to(uid(1)).as_deref(), Some("b"));
}

#[test]
fn a_node_whose_object_does_not_show_its_pods_is_silent_until_it_changes() {
    let mut all = one_node("0-7");
    bind(&mut all, 1, 4);
    assert!(all.available("a", seconds(31)).is_ok());
    assert_eq!(all.available("a", seconds(32)), Err(Unavailable::Silent));
    let next = all.start_bind(asked(2, 6, 1), &node("a"), seconds(32));
    assert!(matches!(next, Err(BindNotStarted::Unavailable(Unavailable::Silent))));
    assert_eq!(held(&all, "a").len(), 1, "its claims are kept");
    assert_eq!(all.counts(seconds(32)).silent_nodes, 1);
    all.object_changed(&node("a"), 9, plain("0-7", &[]), seconds(40));
    assert!(all.available("a", seconds(70)).is_ok());
    assert_eq!(all.available("a", seconds(71)), Err(Unavailable::Silent));
}

#[test]
fn a_vm_that_never_registers_keeps_its_cpus_and_silences_no_node() {
    let mut all = late_node();
    bind(&mut all, 1, 4);
    all.pod_changed(running(1, 6), seconds(1));
    all.advance(seconds(30));
    assert!(!all.held("a")[0].1.is_late);
    all.changed.clear();
    all.advance(seconds(31));
    assert!(all.held("a")[0].1.is_late && all.changed.contains("a"));
    assert!(all.available("a", seconds(4000)).is_ok());
    assert_eq!(held(&all, "a"), [(1, "0-3".to_owned())]);
    // A container that restarts may take its time again.
    let shown = Plain {
        cpus_at_container_start: true,
        ..plain("4-7", &[1])
    };
    all.object_changed(&node("a"), 8, shown.clone(), seconds(50));
    let gone = Plain {
        pods: BTreeSet::new(),
        ..shown
    };
    all.object_changed(&node("a"), 9, gone, seconds(60));
    assert!(!all.held("a")[0].1.is_late);
    all.advance(seconds(90));
    assert!(all.held("a")[0].1.is_late);
}

#[test]
fn a_pod_that_is_deleted_before_its_node_admits_it_silences_no_node() {
    let mut all = one_node("0-7");
    let ending = ObservedPod {
        ending: true,
        ..pod(1, 6, Some("a"), 4)
    };
    all.pod_changed(ending, seconds(1));
    assert!(all.available("a", seconds(500)).is_ok());
    assert_eq!(held(&all, "a").len(), 1, "the node may have admitted it");
}

#[test]
fn a_static_pod_is_shown_by_kubelets_uid() {
    let mut all = one_node("0-7");
    let mirror = ObservedPod {
        shown_as: Some(uid(9)),
        ..pod(1, 6, Some("a"), 4)
    };
    all.pod_changed(mirror, seconds(1));
    assert_eq!(held(&all, "a"), [(1, "-".to_owned())]);
    all.object_changed(&node("a"), 7, plain("4-7", &[9]), seconds(2));
    assert_eq!(held(&all, "a"), []);
}

/// Whom a refusal is blamed on: a pod that this process did not bind.
#[rstest]
#[case::nobody(1, &[], None)]
#[case::one_that_came_since(1, &[9], Some(9))]
#[case::itself(9, &[9], Some(9))]
fn refusals_are_blamed_on_pods_that_others_bound(
    #[case] refused: u128,
    #[case] others: &[u128],
    #[case] blamed: Option<u128>,
) {
    let mut all = one_node("0-7");
    bind(&mut all, 1, 4);
    for other in others {
        all.pod_changed(pod(*other, 6, Some("a"), 2), seconds(2));
    }
    assert_eq!(held(&all, "a").len(), 1 + others.len());
    all.pod_gone(uid(refused), Some("TopologyAffinityError"), seconds(3));
    let told = all.take_refused();
    assert_eq!((told.len(), told[0].foreign), (1, blamed.map(uid)));
    assert_eq!(told[0].reason, "TopologyAffinityError");
    assert_eq!(all.take_refused(), []);
}

#[test]
fn what_ends_unseen_is_counted_a_while_and_what_was_seen_is_not() {
    let mut all = one_node("0-7");
    for uid in [1, 2] {
        bind(&mut all, uid, 2);
    }
    all.object_changed(&node("a"), 8, plain("2-7", &[1]), seconds(2));
    all.pod_gone(uid(1), None, seconds(3));
    all.pod_gone(uid(2), None, seconds(3));
    assert_eq!(held(&all, "a"), [(2, "2-3".to_owned())]);
    all.advance(seconds(8));
    assert_eq!(held(&all, "a"), []);
    // A watch that is late does not bring it back.
    all.pod_changed(pod(2, 7, Some("a"), 2), seconds(9));
    assert_eq!(held(&all, "a"), []);
    all.advance(seconds(700));
    assert!(all.pods.is_empty());
}

#[test]
fn a_container_that_restarts_keeps_its_cpus() {
    let mut all = one_node("0-7");
    bind(&mut all, 1, 4);
    all.object_changed(&node("a"), 8, plain("4-7", &[1]), seconds(2));
    all.object_changed(&node("a"), 9, plain("0-7", &[]), seconds(3));
    assert_eq!(held(&all, "a"), [(1, "0-3".to_owned())]);
    assert!(all.available("a", seconds(500)).is_ok(), "it says nothing of the node");
    all.pod_gone(uid(1), None, seconds(4));
    assert_eq!(held(&all, "a"), []);
}

#[test]
fn a_pod_that_goes_while_it_is_bound_may_have_been_admitted_and_does_not_come_back() {
    let mut all = one_node("0-7");
    let begun = all.start_bind(asked(1, 5, 4), &node("a"), seconds(1)).unwrap();
    all.pod_gone(uid(1), None, seconds(2));
    assert!(!all.is_open(&begun));
    // Neither its own bind nor an event that is late changes that, and one that is made again is another pod.
    all.bind_succeeded(&begun, seconds(3));
    all.bind_failed(&begun);
    all.pod_changed(pod(1, 6, Some("a"), 4), seconds(3));
    let again = all.start_bind(asked(1, 5, 4), &node("a"), seconds(3));
    assert!(matches!(again, Err(BindNotStarted::Gone)));
    let next = all.start_bind(asked(2, 9, 4), &node("a"), seconds(3)).unwrap();
    assert_eq!(next.cpus, Some("4-7".parse().unwrap()));
    assert_eq!(all.counts(seconds(3)).leaving, 1);
    all.advance(seconds(7));
    assert_eq!(held(&all, "a"), [(2, "4-7".to_owned())]);
}

#[test]
fn a_node_that_is_deleted_and_made_again() {
    let mut all = one_node("0-7");
    bind(&mut all, 1, 4);
    all.object_changed(&node("a"), 8, plain("4-7", &[1]), seconds(2));
    all.object_deleted(&node("a"), 10, seconds(3));
    assert_eq!(all.available("a", seconds(3)), Err(Unavailable::NoObject));
    all.object_changed(&node("a"), 9, plain("4-7", &[1]), seconds(3));
    assert_eq!(all.available("a", seconds(3)), Err(Unavailable::NoObject));
    all.object_changed(&node("a"), 12, plain("0-7", &[]), seconds(4));
    assert_eq!(held(&all, "a"), [(1, "0-3".to_owned())]);
    all.pod_gone(uid(1), None, seconds(5));
    assert_eq!(held(&all, "a"), []);
}

#[test]
fn an_older_object_is_passed_over() {
    let mut all = one_node("0-7");
    all.object_changed(&node("a"), 20, plain("4-7", &[1]), seconds(2));
    all.object_changed(&node("a"), 19, plain("0-7", &[]), seconds(3));
    let begun = all.start_bind(asked(2, 30, 2), &node("a"), seconds(3)).unwrap();
    assert_eq!(begun.cpus.unwrap().to_string(), "4-5");
}

#[test]
fn a_list_of_all_ends_what_is_not_in_it() {
    let mut all = one_node("0-7");
    all.pod_changed(pod(1, 5, Some("a"), 2), seconds(1));
    let young = all.start_bind(asked(2, 50, 2), &node("a"), seconds(1)).unwrap();
    all.pods_listed(&Default::default(), 40, seconds(2));
    all.objects_listed(&Default::default(), 40, seconds(2));
    assert!(all.is_open(&young), "it is younger than the list");
    all.advance(seconds(10));
    assert_eq!(held(&all, "a"), [(2, "2-3".to_owned())]);
    assert_eq!(all.available("a", seconds(2)), Err(Unavailable::NoObject));
}

#[test]
fn pods_without_cpus_of_their_own_end_with_the_binding() {
    let mut all = one_node("0-7");
    let begun = all.start_bind(asked(1, 5, 0), &node("a"), seconds(1)).unwrap();
    assert_eq!(begun.cpus, None);
    all.bind_succeeded(&begun, seconds(1));
    assert_eq!(held(&all, "a"), []);
    assert!(all.available("a", seconds(100)).is_ok());
}

#[test]
fn a_pod_that_is_gone_counts_as_departed_until_its_cpus_no_longer_count() {
    let mut all = one_node("0-7");
    let departed = |all: &Reservations<Lowest>, now| -> Vec<u128> {
        let pods = all.departed("a", seconds(now));
        assert!(pods.values().all(|request| *request == Some(2)), "{pods:?}");
        let mut pods: Vec<u128> = pods.keys().map(|uid| number(*uid)).collect();
        pods.sort_unstable();
        pods
    };
    for (number, version) in [(1, 5), (2, 6), (3, 7)] {
        all.pod_changed(pod(number, version, Some("a"), 2), seconds(1));
    }
    all.object_changed(&node("a"), 8, plain("4-7", &[1, 3]), seconds(2));
    assert_eq!(departed(&all, 2), []);
    all.pod_gone(uid(1), None, seconds(3));
    // The object has not shown it yet: it holds CPUs, and the object may show it late.
    all.pod_gone(uid(2), None, seconds(4));
    assert_eq!(departed(&all, 4), [1, 2]);
    all.object_changed(&node("a"), 9, plain("2-7", &[2, 3]), seconds(5));
    assert_eq!(departed(&all, 5), [2]);
    // An object that cannot be used for a while changes nothing.
    all.object_deleted(&node("a"), 10, seconds(6));
    assert_eq!(departed(&all, 6), []);
    all.object_changed(&node("a"), 11, plain("2-7", &[2, 3]), seconds(7));
    assert_eq!(departed(&all, 7), [2]);
    // A pod that the object shows for ever hides no other.
    all.pod_gone(uid(3), None, seconds(30));
    assert_eq!(departed(&all, 34), [2, 3]);
    assert_eq!(departed(&all, 35), [3]);
    all.object_changed(&node("a"), 12, plain("0-7", &[]), seconds(36));
    assert_eq!(departed(&all, 36), []);
    all.advance(seconds(700));
    assert!(all.departed.is_empty());
}

#[test]
fn a_node_that_is_gone_is_forgotten() {
    let mut all = one_node("0-7");
    all.object_deleted(&node("a"), 5, seconds(1));
    all.object_changed(&node("a"), 4, plain("0-7", &[]), seconds(2));
    assert_eq!(all.available("a", seconds(2)), Err(Unavailable::NoObject));
    all.advance(seconds(601));
    assert!(all.nodes.is_empty() && all.deleted_objects.is_empty());
}

/// The moment when it should have been shown is between its end and the end of its claim.
#[test]
fn a_pod_that_ends_when_it_should_be_shown_is_counted_as_long_as_others() {
    let mut all = one_node("0-7");
    bind(&mut all, 1, 4);
    all.pod_gone(uid(1), None, seconds(29));
    all.advance(seconds(33));
    assert_eq!(held(&all, "a"), [(1, "0-3".to_owned())]);
    all.advance(seconds(34));
    assert_eq!(held(&all, "a"), []);
}

/// A pod of this program that is bound, as its author has rewritten it.
fn rewritten(version: Version) -> ObservedPod<usize> {
    ObservedPod {
        cpus: Some("5".parse().unwrap()),
        shown_as: Some(uid(9)),
        ..pod(1, version, Some("a"), 4)
    }
}

/// A leader that is new knows of a bound pod what its author left of it.
#[test]
fn what_another_process_bound_is_not_ours() {
    let mut all = one_node("0-7");
    all.pod_changed(rewritten(6), seconds(1));
    assert!(!all.held("a")[0].1.is_ours);
    assert_eq!(held(&all, "a")[0].1, "5");
}

#[test]
fn a_vm_is_late_after_its_container_runs() {
    let mut all = late_node();
    bind(&mut all, 1, 4);
    // Its image is pulled.
    all.advance(seconds(100));
    assert!(!all.held("a")[0].1.is_late);
    all.pod_changed(running(1, 6), seconds(100));
    all.pod_changed(running(1, 7), seconds(120));
    all.advance(seconds(129));
    assert!(!all.held("a")[0].1.is_late);
    all.advance(seconds(130));
    assert!(all.held("a")[0].1.is_late);
}

#[test]
fn only_a_few_vms_may_take_long_to_start_and_none_for_ever() {
    let mut all = late_node();
    for number in 1..=6 {
        bind(&mut all, number, 1);
    }
    // The node chooses the CPUs of a pod that another scheduler bound: it depends on the order.
    all.pod_changed(pod(9, 6, Some("a"), 1), seconds(1));
    let late = |all: &Reservations<Lowest>| all.held("a").iter().filter(|(_, one)| one.is_late).count();
    all.advance(seconds(30));
    assert_eq!(late(&all), 0);
    all.advance(seconds(31));
    assert_eq!(late(&all), 3);
    all.advance(seconds(600));
    assert_eq!(late(&all), 3);
    all.advance(seconds(601));
    assert_eq!(late(&all), 7);
    assert!(all.timers.is_empty());
}
