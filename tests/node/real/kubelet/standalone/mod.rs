//! Static pods: no API server.

mod devices;
mod faults;
mod level;
mod own_cpus;
mod plan;
mod recorded;

use serde_json::json;

use super::frame::beside_kubelet;
use super::manifest::{INSTANCE, apply, delete, emulated_vm, running};
use crate::support::*;

/// A VM's pod once its guest runs.
fn started(name: &str) -> Pod {
    running(name, INSTANCE).running()
}

/// The file that kubelet wrote, as steliad reads it.
fn assert_understood(pod: &Pod) {
    let read = json(&run(
        "steliactl --json doctor --kubelet-state /var/lib/kubelet/cpu_manager_state",
    ));
    assert_eq!(read["schema"], "V2", "{read}");
    assert_eq!(read["reason"], "", "{read}");
    let assignments = read["assignments"].as_array().expect("assignments");
    let own = assignments
        .iter()
        .find(|entry| entry["pod_uid"] == *pod.uid)
        .expect("the pod's entry");
    assert_eq!(own["set"].as_str(), pod.cpus.as_deref(), "{own}");
}

#[test]
fn a_vm_is_isolated_beside_kubelet_and_its_end_gives_everything_back() {
    beside_kubelet(&json!({}), || {
        assert_eq!(pool(), cpus("0-7"));
        apply(&emulated_vm("first", 2));
        let first = started("first");
        assert_eq!(first.exclusive(), cpus("2-3"));
        assert_isolated(&first, 2);
        assert_understood(&first);

        // A second one takes CPUs on which the first one floats.
        apply(&emulated_vm("second", 3));
        let second = started("second");
        assert_isolated(&second, 3);
        wait_until("the first floats on what is left", || is_isolated(&first, 2));
        // What kubelet and the runtime say of a pod's container is what steliad left there.
        let listed = cpus(&first.file("cpuset.cpus"));
        assert_eq!(listed, first.exclusive());

        delete("second");
        wait_until("the first floats on all again", || is_isolated(&first, 2));
        delete("first");
        first.wait_released();
        assert_eq!(pool(), cpus("0-7"));
        wait_until("nothing is left", || leftovers().is_empty());
    });
}
