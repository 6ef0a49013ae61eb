//! A pod with CPUs of its own (the gate PodLevelResourceManagers), of which the VM's container has some and a sidecar the rest.

use serde_json::json;

use super::plan::predicted;
use super::started;
use crate::real::kubelet::frame::{beside_kubelet, state};
use crate::real::kubelet::manifest::{apply, delete, emulated_vm, push, running, sleeper, verdict};
use crate::support::*;

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
        let of_pod = state()["podEntries"][&vm.uid]["cpuSet"].clone();
        assert_eq!(
            vm.exclusive().union(&shared),
            cpus(of_pod.as_str().expect("the pod's CPUs"))
        );
        reconcile();
        assert_isolated_beside(&vm, 2, &shared);
        assert_eq!(cpus(&side.file("cpuset.cpus.effective")), shared);
        let understood = json(&run(
            "steliactl --json doctor --kubelet-state /var/lib/kubelet/cpu_manager_state",
        ));
        assert_eq!(understood["schema"], "V3", "{understood}");
        delete("level");
        vm.wait_released();
    });
}
