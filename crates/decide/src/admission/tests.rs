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

#[rstest]
#[case("a/../b", "", "a/../b")]
#[case("..", "", "..")]
#[case(&"a".repeat(10_000), "", "aaa")]
#[case("", "2-", "2-")]
#[case("", "0-999999", "999999")]
fn words_that_do_not_parse_are_named(#[case] pod: &str, #[case] cpuset: &str, #[case] named: &str) {
    let claim = Claim {
        pod: pod.into(),
        cpuset: cpuset.into(),
        ..Claim::default()
    };
    let refusal = claim.check().unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    assert!(refusal.text.contains(named) && refusal.text.len() < 300, "{refusal}");
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
        cpuset: "2-3".parse().ok(),
        ..CheckedClaim::default()
    };
    let record = admit_assigned(&claim, &candidate, &state, &[]).unwrap();
    assert_eq!(
        (record.entry.to_string(), record.exclusive.to_string()),
        ("2-3".into(), "2".into())
    );
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
    let record = admit_assigned(&CheckedClaim::default(), &named, &state, &[]).unwrap();
    assert_eq!(record.container, "vm");
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
    let result = admit_assigned(&CheckedClaim::default(), &candidate, &kubelet(&[("i", "2-3")]), &[]);
    assert_eq!(kind(result), ErrorKind::SharedPidNamespace);
}

#[test]
fn cpus_of_another_instance_are_a_conflict_and_a_second_container_of_the_pod_waits() {
    let same = stelia_model::record::testing::record();
    let other = Record {
        pod: PodUid::parse(&POD.replace('b', "a")).unwrap(),
        exclusive: "3".parse().unwrap(),
        ..same.clone()
    };
    let state = kubelet(&[("i", "2-3")]);
    for (known, refusal) in [(other, ErrorKind::CpusetConflict), (same, ErrorKind::InstanceExists)] {
        let result = admit_assigned(&CheckedClaim::default(), &candidate(), &state, &[&known]);
        assert_eq!(kind(result), refusal);
    }
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
