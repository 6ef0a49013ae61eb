use stelia_koordinator::allocator::AllocationRequest;
use stelia_kubelet::PodUid;
use stelia_settings::{CacheLimits, LatencyLevel, QuietSettings};

use super::*;
use rstest::rstest;

pub(super) const POD: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

pub(super) fn candidate() -> Candidate {
    let origin = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a1.scope";
    let origin = CgroupPath::parse(origin).unwrap();
    Candidate {
        limit_milli: None,
        container: ContainerCgroup::parse(origin.as_str()).unwrap(),
        cpus: "2-3".parse().unwrap(),
        left_behind: false,
        mems: [0].into(),
        devices: Default::default(),
        devices_unknown: None,
        processes: vec![(100, vec![100, 1]), (101, vec![101, 7])],
        elsewhere: vec![],
        housekeeping: false,
        conflicting_cgroup: None,
        writes_cgroups: None,
        annotated_name: None,
        pod_name: None,
        request: CpuRequest::default(),
        live_containers: vec![],
        anchor: Some((TaskId { id: 101, start: 5 }, origin.clone())),
        needs_anchor: true,
        caller: Some(100),
        origin,
    }
}

pub(super) fn kubelet(entries: &[(&str, &str)]) -> Result<CpuManagerState, String> {
    let containers = entries
        .iter()
        .map(|(name, cpus)| ((*name).to_owned(), cpus.parse().unwrap()))
        .collect();
    Ok(CpuManagerState {
        schema: stelia_kubelet::cpu_manager_state::Schema::V2,
        policy: "static".into(),
        default_cpus: "0-1,4-7".parse().unwrap(),
        entries: [(PodUid::parse(POD).unwrap(), containers)].into(),
        ..CpuManagerState::absent()
    })
}

fn kind(result: Result<Record, Error>) -> ErrorKind {
    result.unwrap_err().kind
}

#[test]
fn a_guaranteed_container_becomes_an_instance_with_kubelets_cpus() {
    let record = admit_assigned(
        &CheckedClaim::default(),
        &candidate(),
        &kubelet(&[("instance", "2-3")]),
        &[],
    )
    .unwrap();
    assert_eq!(
        (record.container.as_str(), record.exclusive.to_string().as_str()),
        ("instance", "2-3")
    );
    assert_eq!(record.anchor.unwrap().id, 101);
}

#[rstest]
#[case("a/../b", "", "a/../b")]
#[case("..", "", "..")]
#[case("", "2-", "2-")]
#[case("", "0-999999", "999999")]
fn words_that_do_not_parse_are_named(#[case] pod: &str, #[case] cpuset: &str, #[case] named: &str) {
    let refusal = Claim {
        request: AllocationRequest::default(),
        quiet: Default::default(),
        isolation: Default::default(),
        pod: pod.into(),
        cpuset: cpuset.into(),
    }
    .check()
    .unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    assert!(refusal.text.contains(named), "{refusal}");
}

#[test]
fn a_pod_uid_of_10_kb_is_refused_with_a_short_text() {
    let refusal = Claim {
        request: AllocationRequest::default(),
        quiet: Default::default(),
        isolation: Default::default(),
        pod: "a".repeat(10_000),
        cpuset: String::new(),
    }
    .check()
    .unwrap_err();
    assert!(refusal.text.len() < 300);
}

#[test]
fn the_record_keeps_the_entry_and_what_of_it_is_exclusive() {
    let candidate = Candidate {
        live_containers: vec![LiveContainer {
            id: "b2".into(),
            name: Some("sidecar".into()),
            cpus: "3".parse().unwrap(),
            request: CpuRequest::default(),
        }],
        ..candidate()
    };
    let state = kubelet(&[("sidecar", "3"), ("vm", "2-3")]);
    // A claim is on the entry: it is what the caller sees in its cgroup.
    let claim = CheckedClaim {
        request: AllocationRequest::default(),
        quiet: Default::default(),
        isolation: Default::default(),
        pod: None,
        cpuset: "2-3".parse().ok(),
    };
    let record = admit_assigned(&claim, &candidate, &state, &[]).unwrap();
    assert_eq!(
        (record.entry.to_string(), record.exclusive.to_string()),
        ("2-3".into(), "2".into())
    );
}

#[test]
fn claims_must_match_what_is_known() {
    let other = CheckedClaim {
        request: AllocationRequest::default(),
        quiet: Default::default(),
        isolation: Default::default(),
        pod: PodUid::parse(&POD.replace('b', "a")).ok(),
        cpuset: None,
    };
    assert_eq!(
        kind(admit_assigned(&other, &candidate(), &kubelet(&[("i", "2-3")]), &[])),
        ErrorKind::NoSuchPod
    );
    let cpus = CheckedClaim {
        request: AllocationRequest::default(),
        quiet: Default::default(),
        isolation: Default::default(),
        pod: None,
        cpuset: "4-5".parse().ok(),
    };
    assert_eq!(
        kind(admit_assigned(&cpus, &candidate(), &kubelet(&[("i", "2-3")]), &[])),
        ErrorKind::CpusetMismatch
    );
}

#[test]
fn without_an_entry_the_pod_is_not_guaranteed_and_waiting_may_help() {
    let mut state = kubelet(&[]);
    state.as_mut().unwrap().entries.clear();
    let refusal = admit_assigned(&CheckedClaim::default(), &candidate(), &state, &[]).unwrap_err();
    assert_eq!((refusal.kind, refusal.may_pass), (ErrorKind::NotGuaranteed, true));
}

#[test]
fn two_entries_alike_are_told_apart_by_the_annotation_only() {
    let state = kubelet(&[("init", "2-3"), ("vm", "2-3")]);
    assert_eq!(
        kind(admit_assigned(&CheckedClaim::default(), &candidate(), &state, &[])),
        ErrorKind::AmbiguousContainer
    );
    let named = Candidate {
        annotated_name: Some("vm".into()),
        ..candidate()
    };
    assert_eq!(
        admit_assigned(&CheckedClaim::default(), &named, &state, &[])
            .unwrap()
            .container,
        "vm"
    );
}

#[test]
fn the_anchor_must_be_there_in_the_origin_and_not_the_caller() {
    let state = kubelet(&[("i", "2-3")]);
    let elsewhere = (TaskId { id: 9, start: 1 }, CgroupPath::parse("/system.slice").unwrap());
    let caller = (TaskId { id: 100, start: 1 }, candidate().origin);
    for anchor in [None, Some(elsewhere), Some(caller)] {
        let candidate = Candidate { anchor, ..candidate() };
        assert_eq!(
            kind(admit_assigned(&CheckedClaim::default(), &candidate, &state, &[])),
            ErrorKind::NoAnchor
        );
    }
    let without = Candidate {
        anchor: None,
        needs_anchor: false,
        ..candidate()
    };
    let record = admit_assigned(&CheckedClaim::default(), &without, &state, &[]).unwrap();
    assert_eq!(record.anchor, None);
}

#[rstest]
#[case(vec![(100, vec![100]), (101, vec![101])])] // hostPID
#[case(vec![(100, vec![100, 7]), (101, vec![101, 8])])] // shareProcessNamespace: the pause container is the first
#[case(vec![(100, vec![100]), (101, vec![101, 1])])] // hostPID, and a namespace within
#[case(vec![(100, vec![100, 7]), (101, vec![101, 8, 1])])] // the same of a shared one
#[case(vec![(100, vec![100, 1]), (101, vec![101, 1])])] // of two containers
fn a_container_without_a_pid_namespace_of_its_own_is_refused(#[case] processes: Vec<(i32, Vec<i32>)>) {
    let candidate = Candidate {
        processes,
        ..candidate()
    };
    assert_eq!(
        kind(admit_assigned(
            &CheckedClaim::default(),
            &candidate,
            &kubelet(&[("i", "2-3")]),
            &[]
        )),
        ErrorKind::SharedPidNamespace
    );
}

#[test]
fn namespaces_within_the_containers_own_are_its_own_business() {
    let candidate = Candidate {
        processes: vec![
            (100, vec![100, 1]),
            (101, vec![101, 7, 1]),
            (102, vec![102, 9, 1]),
            (103, vec![103, 9, 2]),
        ],
        ..candidate()
    };
    let admitted = admit_assigned(&CheckedClaim::default(), &candidate, &kubelet(&[("i", "2-3")]), &[]);
    assert_eq!(admitted.map(|record| record.pod), Ok(candidate.container.pod));
}

#[test]
fn cpus_of_another_instance_are_a_conflict() {
    let other = Record {
        pod: PodUid::parse(&POD.replace('b', "a")).unwrap(),
        exclusive: "3".parse().unwrap(),
        ..stelia_model::record::testing::record()
    };
    let result = admit_assigned(
        &CheckedClaim::default(),
        &candidate(),
        &kubelet(&[("i", "2-3")]),
        &[&other],
    );
    assert_eq!(kind(result), ErrorKind::CpusetConflict);
}

#[test]
fn a_second_container_of_the_pod_waits() {
    let other = stelia_model::record::testing::record();
    let result = admit_assigned(
        &CheckedClaim::default(),
        &candidate(),
        &kubelet(&[("i", "2-3")]),
        &[&other],
    );
    assert_eq!(kind(result), ErrorKind::InstanceExists);
}

#[test]
fn a_pod_orders_what_the_administrator_allows_and_no_more() {
    let settings = QuietSettings {
        latency_allowed: LatencyLevel::Low,
        cache_classes: [("gold".to_owned(), CacheLimits::default())].into(),
        ..QuietSettings::default()
    };
    let order = |latency, class: Option<&str>| QuietRequest {
        latency,
        cache_class: class.map(str::to_owned),
    };
    for good in [
        order(LatencyLevel::Default, None),
        order(LatencyLevel::Low, Some("gold")),
    ] {
        allow(&good, &settings).unwrap();
    }
    for (wrong, named) in [
        (order(LatencyLevel::Polling, None), "latency-allowed = \"low\""),
        (order(LatencyLevel::Default, Some("silver")), "\"silver\""),
    ] {
        let refusal = allow(&wrong, &settings).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
        assert!(refusal.text.contains(named), "{refusal}");
    }
}
