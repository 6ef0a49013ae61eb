//! Static pods: no API server.

mod devices;
mod faults;
mod plan;
mod recorded;

use serde_json::{Value, json};

use super::frame::{UNIT, beside_kubelet, beside_kubelet_undoing, wait_ready};
use super::manifest::{INSTANCE, apply, delete, emulated_vm, pod, push, running, sleeper, verdict};
use crate::allocator::moved;
use crate::support::*;
use plan::predicted;

/// A VM's pod once its guest runs.
fn started(name: &str) -> Pod {
    running(name, INSTANCE).running()
}

/// One with an emulated guest.
fn started_vm(name: &str, vcpus: u32) -> Pod {
    apply(&emulated_vm(name, vcpus));
    started(name)
}

/// The file that kubelet wrote, as steliad reads it.
fn understood() -> Value {
    json(&run(&format!("steliactl --json doctor --kubelet-state {STATE}")))
}

#[test]
fn a_vm_is_isolated_beside_kubelet_and_its_end_gives_everything_back() {
    beside_kubelet(&json!({}), || {
        assert_eq!(pool(), cpus("0-7"));
        let first = started_vm("first", 2);
        assert_eq!(first.exclusive(), cpus("2-3"));
        assert_isolated(&first, 2);
        let read = understood();
        assert_eq!((&read["schema"], &read["reason"]), (&json!("V2"), &json!("")), "{read}");
        let mut assignments = read["assignments"].as_array().expect("assignments").iter();
        let own = assignments.find(|entry| entry["pod_uid"] == *first.uid);
        assert_eq!(own.expect("the pod's entry")["cpus"].as_str(), first.cpus.as_deref());

        // A second one takes CPUs on which the first one floats.
        let second = started_vm("second", 3);
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
    });
}

/// A pod with CPUs of its own (the gate PodLevelResourceManagers), of which the VM's container has some and a sidecar the rest.
#[test]
fn a_vm_floats_on_what_its_pod_shares() {
    let settings = json!({
        "topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod",
        "featureGates": {"PodLevelResourceManagers": true},
    });
    beside_kubelet(&settings, || {
        let mut manifest = emulated_vm("level", 2);
        let mut side = sleeper("side", "1", "32Mi");
        side["resources"] = json!({});
        push(&mut manifest["spec"]["containers"], side);
        let amounts = json!({"cpu": "3", "memory": "1Gi"});
        manifest["spec"]["resources"] = json!({"requests": amounts, "limits": amounts});
        let (predicted, _) = predicted(&manifest);
        apply(&manifest);
        let vm = started("level");
        let side = running("level", "side");
        assert_eq!(predicted, verdict("level"));
        let shared = side.exclusive();
        assert_eq!((vm.exclusive().len(), shared.len()), (2, 1));
        let of_pod = kubelet_state()["podEntries"][&vm.uid]["cpuSet"].clone();
        let of_pod = cpus(of_pod.as_str().expect("the pod's CPUs"));
        assert_eq!(vm.exclusive().union(&shared), of_pod);
        reconcile();
        assert_isolated_beside(&vm, 2, &shared);
        assert_eq!(cpus(&side.file("cpuset.cpus.effective")), shared);
        let understood = understood();
        assert_eq!(understood["schema"], "V3", "{understood}");
        delete("level");
        vm.wait_released();
    });
}

/// With the CPUs that steliad chose: kubelet's file has none.
fn chosen(name: &str) -> Pod {
    let pod = started_vm(name, 2);
    assert_eq!(pod.cpus, None);
    moved(pod)
}

/// kubelet's CPU manager does nothing, and steliad chooses the CPUs.
#[test]
fn steliad_chooses_the_cpus_where_kubelet_does_not() {
    let settings = json!({
        "cpuManagerPolicy": "none", "reservedSystemCPUs": "", "systemReserved": {"cpu": "1"},
    });
    beside_kubelet_undoing(&settings, unconfigure, || {
        configure("cpu-source = \"steliad\"\nreserved-cpus = \"0-1\"\n");
        assert_eq!(kubelet_state()["policyName"], "none");
        let vm = chosen("own");
        let before = assert_isolated(&vm, 2);
        // kubelet sets no cpuset, neither now nor when it starts anew: what steliad keeps others off, they stay off.
        apply(&pod("other", &[sleeper("s", "500m", "32Mi")]));
        let other = running("other", "s");
        let allowed = cpus(&other.file("cpuset.cpus.effective"));
        assert!(allowed.is_disjoint(&vm.exclusive()));
        restart(UNIT);
        wait_ready();
        reconcile();
        assert_eq!(assert_isolated(&vm, 2).vcpus, before.vcpus);
        let second = chosen("second");
        assert_isolated(&second, 2);
        assert!(second.exclusive().is_disjoint(&vm.exclusive()));
        for name in ["second", "other", "own"] {
            delete(name);
        }
        vm.wait_released();
    });
}
