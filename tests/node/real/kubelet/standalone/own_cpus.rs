//! kubelet's CPU manager does nothing, and steliad chooses the CPUs.

use serde_json::json;

use super::started;
use crate::real::kubelet::frame::{UNIT, beside_kubelet_undoing, state, wait_ready};
use crate::real::kubelet::manifest::{apply, delete, emulated_vm, pod, running, sleeper};
use crate::support::*;

/// With the CPUs that steliad chose: kubelet's file has none.
fn chosen(name: &str) -> Pod {
    let pod = started(name);
    assert_eq!(pod.cpus, None);
    let list = json(&run("steliactl --json list"));
    let mut all = list.as_array().into_iter().flatten();
    let own = all.find(|one| one["pod"] == *pod.uid);
    let own = own.unwrap_or_else(|| panic!("{name} is not in {list}"));
    let cpus = own["exclusive"].as_str().map(str::to_owned);
    Pod { cpus, ..pod }
}

#[test]
fn steliad_chooses_the_cpus_where_kubelet_does_not() {
    let settings = json!({
        "cpuManagerPolicy": "none", "reservedSystemCPUs": "", "systemReserved": {"cpu": "1"},
    });
    beside_kubelet_undoing(&settings, "", unconfigure, || {
        configure("cpu-source = \"steliad\"\nreserved-cpus = \"0-1\"\n");
        assert_eq!(state()["policyName"], "none");
        apply(&emulated_vm("own", 2));
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
        apply(&emulated_vm("second", 2));
        let second = chosen("second");
        assert_isolated(&second, 2);
        assert!(second.exclusive().is_disjoint(&vm.exclusive()));
        for name in ["second", "other", "own"] {
            delete(name);
        }
        vm.wait_released();
    });
}
