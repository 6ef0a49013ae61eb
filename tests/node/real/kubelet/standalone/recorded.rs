//! What kubelet, containerd and runc make of pods, recorded for the stand-in.

use serde_json::json;

use crate::real::kubelet::frame::{beside_kubelet, kubelet_journal};
use crate::real::kubelet::manifest::{INSTANCE, apply, delete, pod, running, sleeper};
use crate::support::pod_recording::{KUBELET_WITH_CONTAINERD, assert_recorded, record_pods};
use crate::support::*;

fn started(class: &str) -> Pod {
    let amounts = json!({"cpu": "2", "memory": "64Mi"});
    let mut container = sleeper(INSTANCE, "1", "1Mi");
    container["resources"] = match class {
        "guaranteed" => json!({"requests": amounts, "limits": amounts}),
        "burstable" => json!({"requests": {"cpu": "100m"}}),
        _ => json!({}),
    };
    let name = format!("record-{class}");
    apply(&pod(&name, &[container]));
    running(&name, INSTANCE)
}

#[test]
fn pods_and_the_writes_of_the_state_file_are_as_recorded() {
    beside_kubelet(&json!({}), || {
        let before = pool();
        let settle = |guaranteed: &Pod, shared: &[Pod; 2]| {
            for one in shared {
                let what = format!("kubelet's pool in {}", one.name);
                let own = || cpus(&one.file("cpuset.cpus"));
                wait_until_or(&what, kubelet_journal, || own().is_disjoint(&guaranteed.exclusive()));
            }
        };
        let end = |_: &Pod| {
            delete("record-guaranteed");
            wait_until_or("the pool has its CPUs again", kubelet_journal, || pool() == before);
        };
        assert_recorded(KUBELET_WITH_CONTAINERD, &record_pods(started, settle, end));
    });
}
