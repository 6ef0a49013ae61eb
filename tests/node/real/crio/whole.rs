//! A container whose own cgroup, crun's scope, is the partition.

use super::pods::{Manifest, delete, is_ready};
use super::{on_crio, restart_unit};
use crate::real::kubelet::manifest::running_again;
use crate::support::*;

const SERVICE: &str = "trap exit TERM; for n in 1 2 3; do { while :; do :; done; } & done; wait";

/// What `is_partition` has, and nothing of the container was moved.
fn is_whole(pod: &Pod) -> bool {
    let scope = pod.origin().parent().expect("a scope").to_owned();
    let is_own = |thread: &Thread| thread.cgroup.starts_with(&scope) && thread.allowed.is_subset(&pod.exclusive());
    is_partition(pod) && all_threads(container_of(pod.pid)).iter().all(is_own)
}

fn until_whole(pod: &Pod) {
    let seen = || format!(": {:?}, {:?}", pod.state(), refused(pod));
    wait_until_or("a partition", seen, || is_whole(pod));
    run(&["steliactl", "verify", &pod.uid]);
}

#[test]
fn a_whole_container_is_a_partition_through_restarts_and_killed_leaves_nothing() {
    on_crio(|| {
        configure(DATABASES);
        let manifest = Manifest::new("database-one", &["sh", "-c", SERVICE]).with_startup_probe(&["true"]);
        let pod = manifest.apply();
        until_whole(&pod);
        for unit in ["crio", "kubelet", "steliad"] {
            restart_unit(unit, &pod, || is_whole(&pod));
            wait_until("kubelet says ready", || is_ready(&pod));
        }
        kill("-KILL", pod.pid);
        let again = running_again("database-one", 1);
        until_whole(&again);
        delete(&again);
    });
}
