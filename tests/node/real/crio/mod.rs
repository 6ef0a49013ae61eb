//! steliad beside CRI-O with crun and conmon, and a kubelet with static pods.

mod adopted;
mod names;
mod node;
mod pods;
mod recorded;
mod registered;
mod whole;

use crate::real::common::on_node_of;
use crate::real::kubelet::manifest::seen;
use crate::support::*;

/// Run a test body on the node of CRI-O, and hold the node to being as clean as before when its pods are deleted.
fn on_crio(body: impl FnOnce()) {
    on_node_of(node::start, pods::delete_all, body);
}

/// Restart a unit. `holds` is what is so again afterwards, of the same container.
fn restart_unit(unit: &str, pod: &Pod, holds: impl Fn() -> bool) {
    restart(unit);
    wait_until_or(&format!("isolated after a restart of {unit}"), node::last_logs, || {
        let is_known = unit != "kubelet" || seen(pods::short_name(pod)).is_some();
        is_known && holds()
    });
    let now = pods::running(pods::short_name(pod), 0);
    assert_eq!(
        (now.pid, &now.cgroup),
        (pod.pid, &pod.cgroup),
        "the same container after a restart of {unit}"
    );
}
