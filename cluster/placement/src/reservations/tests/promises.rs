//! What was promised, whatever is read first and however long its VM takes.

use super::*;

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
    let held = all.held("a")[0];
    assert_eq!((held.cpus.unwrap().to_string().as_str(), held.is_ours), ("5", false));
}

#[test]
fn a_vm_is_late_after_its_container_runs() {
    let mut all = late_node();
    let begun = all.start_bind(asked(1, 5, 4), &node("a"), seconds(1)).unwrap();
    all.bind_succeeded(&begun, seconds(1));
    // Its image is pulled.
    all.advance(seconds(100));
    assert!(!all.held("a")[0].is_late);
    all.pod_changed(running(1, 6), seconds(100));
    all.pod_changed(running(1, 7), seconds(120));
    all.advance(seconds(129));
    assert!(!all.held("a")[0].is_late);
    all.advance(seconds(130));
    assert!(all.held("a")[0].is_late);
}

#[test]
fn only_a_few_vms_may_take_long_to_start_and_none_for_ever() {
    let mut all = late_node();
    for number in 1..=6 {
        let begun = all.start_bind(asked(number, 5, 1), &node("a"), seconds(1)).unwrap();
        all.bind_succeeded(&begun, seconds(1));
    }
    // The node chooses the CPUs of a pod that another scheduler bound: it depends on the order.
    all.pod_changed(pod(9, 6, Some("a"), 1), seconds(1));
    let late = |all: &Reservations<Lowest>| all.held("a").iter().filter(|held| held.is_late).count();
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
