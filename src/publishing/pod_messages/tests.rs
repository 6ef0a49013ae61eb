use stelia_kubelet::PodName;
use stelia_model as model;

use super::*;

const SECOND: u64 = 1_000_000;
/// When the instances were registered.
const THEN: u64 = 1000 * SECOND;

fn uid(number: u32) -> PodUid {
    PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
}

fn floating(number: u32) -> model::Instance {
    model::Instance {
        pod_name: PodName::new("team-a", &format!("vm-{number}")),
        container: "vm".to_owned(),
        exclusive: "2-3".parse().unwrap(),
        registered_us: THEN,
        state_since_us: THEN,
        ..crate::engine::registered(uid(number))
    }
}

fn isolated(number: u32) -> model::Instance {
    model::Instance {
        state: State::Isolated,
        isolated_us: THEN + SECOND,
        ..floating(number)
    }
}

fn degraded(instance: model::Instance, reasons: impl IntoIterator<Item = Reason>) -> model::Instance {
    model::Instance {
        degraded: reasons.into_iter().collect(),
        ..instance
    }
}

fn instances(all: impl IntoIterator<Item = model::Instance>) -> Instances {
    all.into_iter().map(|one| (one.pod.clone(), Arc::new(one))).collect()
}

/// A pod's life, state by state, each at its own second after [`THEN`]: how it is told, and the events.
fn life(states: impl IntoIterator<Item = (u64, Option<model::Instance>)>) -> (Vec<PublishedPod>, Vec<Event>) {
    let (mut pods, mut all) = (Vec::new(), Vec::new());
    for (second, instance) in states {
        let (now, new_events) = update(&pods, &instances(instance), THEN + second * SECOND);
        pods = now;
        all.extend(new_events);
    }
    (pods, all)
}

fn reasons(new_events: &[Event]) -> Vec<String> {
    new_events.iter().map(|one| one.reason.clone()).collect()
}

fn told(instance: model::Instance) -> (bool, String, String) {
    let (pods, _) = life([(1, Some(instance))]);
    let pod = &pods[0];
    (pod.isolated, pod.reason.clone(), pod.message.clone())
}

#[test]
fn a_vm_is_told_isolated_and_released_once_each() {
    let (pods, new_events) = life([
        (1, Some(floating(1))),
        (2, Some(isolated(1))),
        (3, Some(isolated(1))),
        (4, None),
        (5, None),
    ]);
    assert_eq!(reasons(&new_events), ["Isolated", "Released"]);
    assert_eq!(pods, []);
    let (pods, _) = life([(1, Some(floating(1))), (2, Some(isolated(1))), (9, Some(isolated(1)))]);
    let pod = &pods[0];
    assert_eq!(
        (pod.namespace.as_str(), pod.name.as_str(), pod.state.as_str()),
        ("team-a", "vm-1", "isolated")
    );
    assert_eq!((pod.isolated, pod.since_us), (true, THEN + 2 * SECOND));
    assert_eq!(pod.message, "its vCPUs have the CPUs 2-3 to themselves");
}

#[test]
fn a_container_is_told_as_one_in_every_state() {
    let container = |instance: model::Instance| model::Instance {
        isolation: Isolation::Container,
        ..instance
    };
    for (instance, reason, says) in [
        (floating(1), "Waiting", "its container has no partition"),
        (isolated(1), "Isolated", "its container has the CPUs 2-3 to itself"),
    ] {
        let (_, found, message) = told(container(instance));
        assert_eq!(found, reason);
        assert!(message.starts_with(says) && !message.contains("vCPU"), "{message}");
    }
    // It waits for no vCPUs, however long it floats.
    let (pods, new_events) = life([
        (1, Some(container(isolated(1)))),
        (500, Some(container(floating(1)))),
        (501, None),
    ]);
    assert_eq!(
        (pods.len(), reasons(&new_events)),
        (0, vec!["Isolated".to_owned(), "Released".to_owned()])
    );
    assert_eq!(new_events[1].message, "it ended or was deregistered");
    let (pods, _) = life([(1, Some(container(isolated(1))))]);
    assert_eq!(pods[0].isolation, "container");
    let vm = model::Instance {
        isolation: Isolation::Vcpus,
        ..isolated(1)
    };
    let (pods, _) = life([(1, Some(vm))]);
    assert_eq!(pods[0].isolation, "vcpus");
}

#[test]
fn a_daemon_without_a_former_file_knows_since_when() {
    let (pods, _) = life([(500, Some(isolated(1)))]);
    assert_eq!(pods[0].since_us, THEN + SECOND);
    let (pods, _) = life([(5, Some(floating(1)))]);
    assert_eq!((pods[0].since_us, pods[0].reason.as_str()), (THEN, "Waiting"));
}

#[test]
fn a_vm_whose_vcpus_are_not_handed_over_floats_too_long_and_that_is_an_event_once() {
    let states = [1, 60, 119, 121, 300, 3000].map(|second| (second, Some(floating(1))));
    let (pods, new_events) = life(states);
    assert_eq!(reasons(&new_events), ["WaitingTooLong"]);
    assert_eq!((pods[0].isolated, pods[0].since_us), (false, THEN + 121 * SECOND));
}

#[test]
fn the_instances_that_float_too_long_are_counted_whether_their_names_are_known_or_not() {
    let nameless = model::Instance {
        pod_name: None,
        ..floating(3)
    };
    let young = model::Instance {
        state_since_us: THEN + 100 * SECOND,
        ..floating(4)
    };
    let all = instances([isolated(1), floating(2), nameless, young]);
    assert_eq!(waiting_too_long(&all, THEN + 119 * SECOND), 0);
    assert_eq!(waiting_too_long(&all, THEN + 121 * SECOND), 2);
}

#[test]
fn a_class_without_cpus_of_its_own_never_waits_too_long() {
    let shared = model::Instance {
        state: State::Shared,
        ..floating(1)
    };
    let (pods, new_events) = life([(1, Some(shared.clone())), (500, Some(shared))]);
    assert_eq!(reasons(&new_events), Vec::<String>::new());
    assert_eq!((pods[0].isolated, pods[0].reason.as_str()), (false, "Shared"));
}

#[test]
fn what_breaks_the_promise_is_told_and_what_does_not_is_not() {
    let own = |kind, text: &str| Reason::of(&uid(1), kind, text);
    let offline = degraded(isolated(1), [own(ReasonCode::CpusOffline, "CPUs 3 are offline")]);
    assert_eq!(
        told(offline.clone()),
        (false, "CpusOffline".to_owned(), "CPUs 3 are offline".to_owned())
    );
    let (_, new_events) = life([(1, Some(isolated(1))), (2, Some(offline)), (3, Some(isolated(1)))]);
    assert_eq!(reasons(&new_events), ["Isolated", "CpusOffline", "Isolated"]);
    let steady = [
        own(ReasonCode::PlaceholderEnded, "the anchor (process 7) ended"),
        Reason::of_node(ReasonCode::NotSteered, "steliad-quiet"),
        Reason::of_node(ReasonCode::KubeletUnusable, "no file"),
        Reason::of_node(ReasonCode::StepFailed, "write \"2-5\""),
    ];
    assert!(told(degraded(isolated(1), steady)).0);
    let failed = degraded(
        isolated(1),
        [own(ReasonCode::StepFailed, "write \"2-3\" to vcpu/cpuset.cpus")],
    );
    assert_eq!(told(failed).1, "StepFailed");
}

#[test]
fn a_pod_is_told_nothing_of_another() {
    let evicted = Reason::of(
        &uid(2),
        ReasonCode::Evicted,
        format!("kubelet gave the CPUs 2-3 to pod {}", uid(2)),
    );
    let now = degraded(floating(1), [evicted]);
    let (isolated, reason, message) = told(now);
    assert_eq!((isolated, reason.as_str()), (false, "Evicted"));
    assert_eq!(message, ReasonCode::Evicted.in_general().unwrap());
}

#[test]
fn a_pinned_vm_is_told_why_and_warned_of_where_nobody_wanted_it() {
    for why in model::PinnedReason::ALL {
        let pinned = model::Instance {
            state: State::Pinned,
            pinned_reason: Some(why),
            not_isolated: Some(Reason::of(&uid(1), ReasonCode::PartitionRefused, "why")),
            ..floating(1)
        };
        let (pods, new_events) = life([(1, Some(pinned))]);
        assert!(pods[0].message.ends_with("why") && !pods[0].isolated, "{pods:?}");
        assert_eq!(new_events[0].kind == EventKind::Warning, !why.is_wanted());
    }
}

#[test]
fn a_name_that_is_not_known_yet_makes_no_pod_and_one_that_was_is_kept() {
    let unnamed = model::Instance {
        pod_name: None,
        ..isolated(1)
    };
    let (pods, new_events) = life([(1, Some(unnamed.clone()))]);
    assert_eq!((pods.len(), new_events.len()), (0, 0));
    let (pods, new_events) = life([(1, Some(isolated(1))), (2, Some(unnamed))]);
    assert_eq!(
        (pods[0].name.as_str(), reasons(&new_events)),
        ("vm-1", vec!["Isolated".to_owned()])
    );
}

#[test]
fn other_cpus_are_an_event_and_no_other_condition() {
    let resized = model::Instance {
        exclusive: "2-5".parse().unwrap(),
        ..isolated(1)
    };
    let (pods, new_events) = life([(2, Some(isolated(1))), (9, Some(resized))]);
    assert_eq!(reasons(&new_events), ["Isolated", "Isolated"]);
    assert_eq!(pods[0].since_us, THEN + SECOND);
}
