//! steliad beside CRI-O with crun and conmon, and a kubelet with static pods.

mod adopted;
mod names;
mod node;
mod pods;
mod recorded;
mod registered;
mod whole;

use crate::real::kubelet::frame::kubelet_journal;
use crate::real::kubelet::manifest::{running_again, seen};
use crate::support::*;

/// Run a test body on the node of CRI-O, and hold the node to being as clean as before when its pods are deleted.
fn on_crio(body: impl FnOnce()) {
    needs_kvm();
    let undo = || {
        pods::delete_all();
        unconfigure();
    };
    on_node_undoing(undo, || {
        node::start();
        body();
    });
}

/// Restart a unit. `holds` is what is so again afterwards, of the same container.
fn restart_unit(unit: &str, pod: &Pod, holds: impl Fn() -> bool) {
    restart(unit);
    wait_until_or(&format!("isolated after a restart of {unit}"), kubelet_journal, || {
        let is_known = unit != "kubelet" || seen(pods::short_name(pod)).is_some();
        is_known && holds()
    });
    let now = running_again(pods::short_name(pod), 0);
    assert_eq!(
        (now.pid, &now.cgroup),
        (pod.pid, &pod.cgroup),
        "the same container after a restart of {unit}"
    );
}
