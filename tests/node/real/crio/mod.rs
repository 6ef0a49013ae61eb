//! steliad beside CRI-O with crun and conmon, and a kubelet with static pods.

mod adopted;
mod node;
mod pods;
mod registered;

use crate::real::kubelet::frame::kubelet_journal;
use crate::real::kubelet::manifest::{running_again, seen};
use crate::support::pod_recording::{KUBELET_WITH_CRIO, assert_recorded, record_pod};
use crate::support::*;
use pods::{Manifest, delete, delete_all, short_name, userdata};

/// Run a test body on the node of CRI-O, and hold the node to being as clean as before when its pods are deleted.
fn on_crio(body: impl FnOnce()) {
    needs_kvm();
    on_node_undoing(delete_all, || {
        node::start();
        body();
    });
}

fn until_ready(pod: &Pod) {
    wait_until_or("kubelet says ready", kubelet_journal, || {
        seen(short_name(pod)).is_some_and(|found| found["status"]["containerStatuses"][0]["ready"] == true)
    });
}

/// Restart the node's programs, one after the other. `holds` is what is so again afterwards, of the same container.
fn restart_programs(pod: &Pod, holds: impl Fn() -> bool) {
    for unit in ["crio", "kubelet", "steliad"] {
        restart(unit);
        wait_until_or(&format!("isolated after a restart of {unit}"), kubelet_journal, || {
            let is_known = unit != "kubelet" || seen(short_name(pod)).is_some();
            is_known && holds()
        });
        let now = running_again(short_name(pod), 0);
        assert_eq!((now.pid, &now.cgroup), (pod.pid, &pod.cgroup), "restart of {unit}");
        until_ready(pod);
    }
}

/// What kubelet, CRI-O and crun make of a pod, recorded for the stand-in's pods of crun.
#[test]
fn a_pod_is_as_recorded() {
    on_crio(|| {
        let pod = Manifest::new("record-guaranteed", &["sleep", "1000000"]).apply();
        let seen = record_pod("guaranteed", &pod, &userdata(&pod).join("config.json"));
        delete(&pod);
        assert_recorded(KUBELET_WITH_CRIO, &seen);
    });
}
