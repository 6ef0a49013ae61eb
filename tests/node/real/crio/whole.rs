//! A container whose own cgroup, crun's scope, is the partition.

use super::pods::{Manifest, delete, is_ready, running};
use super::{on_crio, restart};
use crate::adopted::refused;
use crate::contained::configure;
use crate::container::is_partition;
use crate::support::host::{container_of, run, wait_until, wait_until_or};
use crate::support::pods::Pod;
use crate::support::promise::state;

const RULE: &str = "[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"database-*\"]\n";
const SERVICE: &str = "trap exit TERM; for n in 1 2 3; do { while :; do :; done; } & done; wait";

/// What `is_partition` has, and nothing of the container was moved.
fn is_whole(pod: &Pod) -> bool {
    let scope = pod.origin().parent().expect("a scope").to_owned();
    let threads = container_of(pod.pid).into_values().flatten();
    is_partition(pod)
        && threads
            .into_iter()
            .all(|thread| thread.cgroup.starts_with(&scope) && thread.allowed.is_subset(&pod.exclusive()))
}

fn until_whole(pod: &Pod) {
    let seen = || format!(": {:?}, {:?}", state(pod), refused(pod));
    wait_until_or("a partition", seen, || is_whole(pod).then_some(()));
    run(&["steliactl", "verify", &pod.uid]);
}

#[test]
fn a_whole_container_is_a_partition_through_restarts_and_killed_leaves_nothing() {
    on_crio(|| {
        configure(RULE);
        let manifest = Manifest::new("database-one", &["sh", "-c", SERVICE]).with_startup_probe(&["true"]);
        let pod = manifest.apply();
        until_whole(&pod);
        for unit in ["crio", "kubelet", "steliad"] {
            restart(unit, &pod, || is_whole(&pod));
            wait_until("kubelet says ready", || is_ready(&pod).then_some(()));
        }
        run(&["kill", "-KILL", &pod.pid.to_string()]);
        let again = running("database-one", 1);
        until_whole(&again);
        delete(&again);
    });
}
