//! What the tests of several jobs use.

pub mod image;

use std::fs;

use crate::support::*;

/// The stand-in's state is of another configuration: kubelet would not start with it.
pub(super) fn remove_stand_in_state() {
    for name in ["cpu_manager_state", "memory_manager_state"] {
        let _ = fs::remove_file(format!("/var/lib/kubelet/{name}"));
    }
}

/// Run a test body on a node that `start` starts, and hold the node to being as clean as before when `delete_pods` has deleted its pods.
pub fn on_node_of(start: fn(), delete_pods: fn(), body: impl FnOnce()) {
    needs_kvm();
    let undo = || {
        delete_pods();
        unconfigure();
    };
    on_node_undoing(undo, || {
        start();
        body();
    });
}

pub fn is_adopted(pod: &Pod) -> bool {
    wrong_if_adopted(pod, is_qemus_vcpu).is_none() && pod.threads().others.len() >= 3
}

pub fn until_given_back(pod: &Pod) {
    until_adoption_ended(pod);
    let lists = lists_above(&pod.origin());
    assert!(lists.iter().all(String::is_empty), "{lists:?}");
}
