//! The daemon does not run: each of the ways in starts it, and what was asked for happens.

use std::fs;

use crate::support::host::{output, read, run, wait_until};
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::promise::assert_isolated;

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

/// What starts the daemon besides its bus name.
const WAYS: [&str; 2] = ["steliad-runner.socket", "steliad-kubelet.path"];

/// The daemon has ended, and of the units that start it only this one is there: a runner that misses the daemon, or a late
/// event of kubelet's file, is not to be what starts it.
pub fn stopped_but_for(way: Option<&str>) {
    run(&[&["systemctl", "stop"], &WAYS[..], &["steliad.service"]].concat());
    assert_eq!(active(), "inactive");
    way.into_iter().for_each(|way| drop(run(&["systemctl", "start", way])));
}

fn active() -> String {
    let out = output(&["systemctl", "is-active", "steliad.service"]);
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

pub fn start_all() {
    run(&[&["systemctl", "start"], &WAYS[..], &["steliad.service"]].concat());
}

#[test]
fn the_bus_name_the_runner_socket_and_the_path_unit_each_start_the_daemon() {
    on_node_undoing(start_all, || {
        let pod = Pod::vm("cold", 2);
        let before = assert_isolated(&pod, 2);
        let manager = ["/io/stelia/Isolation1", "io.stelia.Isolation1.Manager", "ListInstances"];

        stopped_but_for(None);
        let listed = run(&[&["busctl", "call", "io.stelia.Isolation1"], &manager[..]].concat());
        assert!(listed.contains(&pod.uid), "{listed}");
        assert_eq!(active(), "active");
        assert_eq!(assert_isolated(&pod, 2), before);

        // A pod that comes while nobody is there: it is registered all the same.
        stopped_but_for(Some("steliad-runner.socket"));
        let late = Pod::vm("late", 2);
        assert_isolated(&late, 2);
        assert_eq!(active(), "active");
        run(&["kubelet-standin", "pod", "delete", "late", "--grace", "0"]);
        wait_until("the other one is gone", || (!late.scope().exists()).then_some(()));

        stopped_but_for(Some("steliad-kubelet.path"));
        run(&["kubelet-standin", "entry", "add", OTHER, "other", "3-4"]);
        wait_until("float follows kubelet's file", || {
            let text = fs::read_to_string(pod.float().join("cpuset.cpus")).unwrap_or_default();
            (text.trim() == "2,5-7").then_some(())
        });
        // It follows the file before it tells systemd that it is ready.
        wait_until("the daemon is ready", || (active() == "active").then_some(()));
        run(&["kubelet-standin", "entry", "remove", OTHER]);
        wait_until("and again", || {
            (read(pod.float().join("cpuset.cpus")) == "2-3").then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}
