//! The daemon does not run: each of the ways in starts it, and what was asked for happens.

use crate::support::*;

#[test]
fn the_bus_name_the_runner_socket_and_the_path_unit_each_start_the_daemon() {
    on_node_undoing(start_all, || {
        let pod = Pod::vm("cold", 2);
        let before = assert_isolated(&pod, 2);
        stopped_but_for(None);
        assert_says(&call(&["ListInstances"]).to_string(), &[&pod.uid]);
        assert_eq!(activity("steliad.service"), "active");
        assert_eq!(assert_isolated(&pod, 2), before);

        // A pod that comes while nobody is there: it is registered all the same.
        stopped_but_for(Some("steliad-runner.socket"));
        let late = Pod::vm("late", 2);
        assert_isolated(&late, 2);
        assert_eq!(activity("steliad.service"), "active");
        late.delete(0);
        wait_until("the other one is gone", || !late.scope().exists());

        stopped_but_for(Some("steliad-kubelet.path"));
        run(&["kubelet-standin", "entry", "add", OTHER_POD, "other", "3-4"]);
        wait_until("float follows kubelet's file", || {
            read_if_there(pod.float().join("cpuset.cpus")) == "2,5-7"
        });
        // It follows the file before it tells systemd that it is ready.
        wait_until("the daemon is ready", || activity("steliad.service") == "active");
        run(&["kubelet-standin", "entry", "remove", OTHER_POD]);
        wait_until("and again", || read(pod.float().join("cpuset.cpus")) == "2-3");
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}
