//! What kubelet, containerd and runc make of pods, recorded for the stand-in.

use serde_json::{Value, json};

use crate::real::kubelet::frame::{beside_kubelet, kubelet_journal};
use crate::real::kubelet::manifest::{INSTANCE, apply, delete, pod, running, sleeper};
use crate::support::pod_recording::{
    KUBELET_WITH_CONTAINERD, Seen, assert_recorded, record_classes, record_state_writes,
};
use crate::support::*;

/// A pod with these requests and limits.
fn started(name: &str, resources: Value) -> Pod {
    let mut container = sleeper(INSTANCE, "1", "1Mi");
    container["resources"] = resources;
    apply(&pod(name, &[container]));
    running(name, INSTANCE)
}

#[test]
fn pods_and_the_writes_of_the_state_file_are_as_recorded() {
    beside_kubelet(&json!({}), || {
        let burstable = started("record-burstable", json!({"requests": {"cpu": "100m"}}));
        let best_effort = started("record-besteffort", json!({}));
        let (mut seen, before) = (Seen::new(), pool());
        let mut guaranteed = None;
        seen.extend(record_state_writes("admission", || {
            let amounts = json!({"cpu": "2", "memory": "64Mi"});
            let pod = started("record-guaranteed", json!({"requests": amounts, "limits": amounts}));
            guaranteed = Some(pod.clone());
            pod.uid
        }));
        let guaranteed = guaranteed.expect("a pod");
        for shared in [&burstable, &best_effort] {
            let what = format!("kubelet's pool in {}", shared.name);
            let own = || cpus(&shared.file("cpuset.cpus"));
            wait_until_or(&what, kubelet_journal, || own().is_disjoint(&guaranteed.exclusive()));
        }
        seen.extend(record_classes(&guaranteed, &burstable, &best_effort));
        seen.extend(record_state_writes("removal", || {
            delete("record-guaranteed");
            wait_until_or("the pool has its CPUs again", kubelet_journal, || pool() == before);
            guaranteed.uid.clone()
        }));
        assert_recorded(KUBELET_WITH_CONTAINERD, &seen);
    });
}
