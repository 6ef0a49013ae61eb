//! What a newer or an incomplete daemon sends.

use serde_json::{Value, json};
use stelia_api::{Reason, ReasonKind, State};
use stelia_kubelet::PodUid;

use super::*;

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

/// A description in words and members that this program does not know.
fn of_tomorrow() -> Value {
    json!({
        "version": "9.0.0", "weather": "rain", "locality": {"instances": {}, "devices_unknown": null, "moons": 2},
        "node": {
            "cpu_source": "cluster", "tide": "high",
            "pools": {
                "shared": "0-1", "shared_by_node": {"1": {"socket": 0, "cpus": "1", "die": 2}}, "policies": {"source": "cluster", "spread": true},
                "held": {"pcpu_level": "2", "socket_level": "3"},
            },
            "jobs": [{"id": 1, "phase": "Paused", "moves": [{"pod": "p", "from": "1", "to": "2", "gain": "g", "cost": 3}]}],
            "instances": {POD: {
                "pod": POD, "pod_namespace": "team-a", "pod_name": "vm", "adopted_by": "", "state": "sealed",
                "reasons": [{"kind": "too-warm", "text": "CPU 2 is hot", "of_node": false, "celsius": 90}],
                "allocation": {"qos": "LSX", "bind": "HalfPCPUs", "cpus": 2, "exclusivity": "lent"},
                "float_reason": "moonlight", "contained_reason": "weather", "placement": "random",
                "vcpus": [{"index": 1, "task": {"id": 70, "start": 9, "cgroup": "x"}, "cpu": 2, "guest_node": 0, "speed": 5}],
            }},
        },
    })
}

/// What is missing in `small`, or differs, at any depth.
fn lacks(large: &Value, small: &Value, path: &str, found: &mut Vec<String>) {
    match (large, small) {
        (Value::Object(large), Value::Object(small)) => {
            for (name, value) in small {
                let path = format!("{path}/{name}");
                match large.get(name) {
                    Some(has) => lacks(has, value, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Value::Array(large), Value::Array(small)) if large.len() == small.len() => {
            for (at, (large, small)) in large.iter().zip(small).enumerate() {
                lacks(large, small, &format!("{path}/{at}"), found);
            }
        }
        (large, small) if large == small => {}
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn words_of_a_newer_daemon_are_shown_as_they_are_and_its_members_are_left_out() {
    let sent = of_tomorrow();
    let read: Description = serde_json::from_value(sent.clone()).unwrap();
    let instance = &read.node.instances[POD];
    assert_eq!((instance.state.known(), instance.state.name()), (None, "sealed"));
    assert_eq!(instance.degraded[0].kind.known(), None);
    assert_eq!((instance.class(), instance.vcpus[0].thread.cpu), ("LSX", Some(2)));
    let shown = serde_json::to_value(&read).unwrap();
    let mut found = Vec::new();
    lacks(&shown, &sent, "", &mut found);
    let of_instance = |member: &str| format!("/node/instances/{POD}/{member}");
    let mut unknown = vec![
        "/weather".to_owned(),
        "/locality/moons".to_owned(),
        "/node/tide".to_owned(),
        "/node/pools/held/socket_level".to_owned(),
        "/node/pools/shared_by_node/1/die".to_owned(),
        "/node/jobs/0/moves/0/cost".to_owned(),
        of_instance("reasons/0/celsius"),
        of_instance("vcpus/0/task/cgroup"),
        of_instance("vcpus/0/speed"),
    ];
    found.sort();
    unknown.sort();
    assert_eq!(found, unknown);
}

#[test]
fn what_is_missing_is_empty() {
    assert_eq!(
        serde_json::from_str::<Description>("{}").unwrap(),
        Description::default()
    );
    let sparse = json!({"instances": {POD: {}}, "pools": {}, "last_pass": {}, "jobs": [{}], "unadopted": [{}]});
    let node: Node = serde_json::from_value(sparse).unwrap();
    assert_eq!(*node.instances[POD], Instance::default());
    assert_eq!(node.jobs, [Job::default()]);
}

#[test]
fn an_instance_is_read_as_it_was_written_but_for_what_json_does_not_have() {
    let pod = PodUid::parse(POD).unwrap();
    let written = Instance {
        pod: pod.clone(),
        state: State::Isolated.into(),
        degraded: vec![
            Reason::of(&pod, ReasonKind::CpusOffline, "CPUs 3 are offline"),
            Reason::of_node(ReasonKind::Unwatched, "no inotify"),
        ],
        vcpus: vec![PinnedThread::default()],
        ..Instance::default()
    };
    let json = serde_json::to_string(&written).unwrap();
    let mut read: Instance = serde_json::from_str(&json).unwrap();
    assert_eq!(read.degraded[0].pod, None, "JSON does not name it");
    read.degraded[0].pod = Some(pod);
    assert_eq!(read, written);
}
