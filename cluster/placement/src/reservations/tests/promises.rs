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

fn claim(attempt: AttemptId, version: Version) -> Claim {
    Claim {
        pod: uid(1),
        name: Arc::from("ns/pod-1"),
        attempt,
        version,
        cpus: Some("0-3".parse().unwrap()),
    }
}

#[test]
fn a_claim_counts_whether_it_is_read_before_its_pod_or_after_it() {
    for (attempt, version) in [(77, 5), (0, 6)] {
        for is_first in [true, false] {
            let mut all = one_node("0-7");
            let read_claims = |all: &mut Reservations<Lowest>| {
                all.claims_changed(&node("a"), 30, &[claim(attempt, version)], seconds(1))
            };
            if is_first {
                read_claims(&mut all);
            }
            all.pod_changed(rewritten(6), seconds(1));
            if !is_first {
                all.changed.clear();
                assert!(read_claims(&mut all));
                assert!(all.changed.contains("a"), "the rules are told");
            }
            for version in [7, 8] {
                let promised = all.held("a")[0];
                assert_eq!(promised.cpus.unwrap().to_string(), "0-3");
                assert!(promised.is_ours);
                all.pod_changed(rewritten(version), seconds(2));
            }
            all.object_changed(&node("a"), 40, plain("0-7", &[9]), seconds(3));
            assert_eq!(held(&all, "a").len(), 1, "it passes for no other pod");
        }
    }
}

#[test]
fn what_another_scheduler_bound_is_not_ours() {
    let mut all = one_node("0-7");
    all.pod_changed(rewritten(6), seconds(1));
    let held = all.held("a")[0];
    assert_eq!((held.cpus.unwrap().to_string().as_str(), held.is_ours), ("5", false));
}

#[test]
fn a_vm_is_late_after_its_container_runs() {
    let mut all = late_node();
    let begun = all.start_bind(asked(1, 5, 4), &node("a"), seconds(1)).unwrap();
    all.bind_succeeded(&begun.ticket, seconds(1));
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
        all.bind_succeeded(&begun.ticket, seconds(1));
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
