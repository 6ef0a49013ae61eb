//! The daemon does not run: each of the ways in starts it, and what was asked for happens.

use std::fs;

use crate::host::{output, read, run, wait_until};
use crate::pods::{Pod, on_node};
use crate::promise::assert_isolated;

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

/// The daemon ends, as after a crash that systemd gave up on; its socket, bus name and path unit stay.
fn stop() {
    run(&["systemctl", "stop", "steliad.service"]);
    assert_eq!(active(), "inactive");
}

fn active() -> String {
    let out = output(&["systemctl", "is-active", "steliad.service"]);
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

#[test]
fn the_bus_name_the_runner_socket_and_the_path_unit_each_start_the_daemon() {
    on_node(|| {
        let pod = Pod::vm("cold", 2);
        let before = assert_isolated(&pod, 2);
        let manager = ["/io/stelia/Isolation1", "io.stelia.Isolation1.Manager", "ListInstances"];

        stop();
        let listed = run(&[&["busctl", "call", "io.stelia.Isolation1"], &manager[..]].concat());
        assert!(listed.contains(&pod.uid), "{listed}");
        assert_eq!(active(), "active");
        assert_eq!(assert_isolated(&pod, 2), before);

        // A pod that comes while nobody is there: its runner's first call is what starts the daemon, not kubelet's new entry.
        run(&["systemctl", "stop", "steliad-kubelet.path"]);
        stop();
        let late = Pod::vm("late", 2);
        run(&["systemctl", "start", "steliad-kubelet.path"]);
        assert_isolated(&late, 2);
        assert_eq!(active(), "active");
        run(&["kubelet-standin", "pod", "delete", "late", "--grace", "0"]);
        wait_until("the other one is gone", || (!late.scope().exists()).then_some(()));

        stop();
        run(&["kubelet-standin", "entry", "add", OTHER, "other", "3-4"]);
        wait_until("float follows kubelet's file", || {
            let text = fs::read_to_string(pod.float().join("cpuset.cpus")).unwrap_or_default();
            (text.trim() == "2,5-7").then_some(())
        });
        assert_eq!(active(), "active");
        run(&["kubelet-standin", "entry", "remove", OTHER]);
        wait_until("and again", || {
            (read(pod.float().join("cpuset.cpus")) == "2-3").then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}
