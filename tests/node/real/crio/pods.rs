//! Static pods of kubelet's, in CRI-O.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::node::{CRUN, IMAGE};
use crate::real::kubelet::frame::{CRIO, kubelet_journal, pods, remove_manifests};
use crate::real::kubelet::manifest::{
    self, INSTANCE, NODE, ask_for_device, pod, running_again, sleeper, with_mounts, with_volumes,
};
use crate::support::*;

/// A manifest of a guaranteed pod with one container of two CPUs.
pub struct Manifest(Value);

impl Manifest {
    pub fn new(name: &str, command: &[&str]) -> Self {
        let mut container = with_mounts(sleeper(INSTANCE, "2", "400Mi"), command);
        container["image"] = IMAGE.into();
        container["imagePullPolicy"] = "IfNotPresent".into();
        let mut text = with_volumes(pod(name, &[container]));
        text["spec"]["terminationGracePeriodSeconds"] = 5.into();
        Self(text)
    }

    pub fn of_runner(name: &str) -> Self {
        let runner = words("/usr/bin/stelia-runner run --qmp /vm/qmp --grace 1 --");
        Self::new(name, &[runner, qemu()].concat()).with_device()
    }

    pub fn with_device(mut self) -> Self {
        ask_for_device(self.container());
        self
    }

    /// An ordinary user without privileges, as `vm.yaml` has it.
    pub fn restricted(mut self) -> Self {
        self.0["spec"]["securityContext"] = json!({
            "runAsNonRoot": true,
            "runAsUser": 107,
            "runAsGroup": 107,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        self.container()["securityContext"] =
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        self
    }

    /// kubelet has CRI-O run a program in the container until it succeeds, and once more when kubelet was restarted.
    pub fn with_startup_probe(mut self, command: &[&str]) -> Self {
        self.container()["startupProbe"] = json!({
            "exec": {"command": command},
            "periodSeconds": 2,
            "timeoutSeconds": 30,
            "failureThreshold": 60,
        });
        self
    }

    /// `namespace` or `annotations`.
    pub fn with_metadata(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.0["metadata"][member] = value.into();
        self
    }

    pub fn container(&mut self) -> &mut Value {
        &mut self.0["spec"]["containers"][0]
    }

    /// Have kubelet run it, and wait until its container runs.
    pub fn apply(&self) -> Pod {
        manifest::apply(&self.0);
        running_again(manifest::name_of(&self.0), 0)
    }
}

/// QEMU with a guest of two vCPUs that never ends.
pub fn qemu() -> Vec<&'static str> {
    [&Accel::of_node().qemu()[..], &["-smp", "2"]].concat()
}

/// The name in the pod's manifest.
pub fn short_name(pod: &Pod) -> &str {
    pod.name.trim_end_matches(NODE).trim_end_matches('-')
}

/// The container's folder of CRI-O.
pub fn userdata(pod: &Pod) -> PathBuf {
    Path::new(CRIO).join(container_id(pod)).join("userdata")
}

/// Run a script in the container as CRI-O does: with crun, in the container's own cgroup.
pub fn exec(pod: &Pod, script: &str) -> String {
    let id = container_id(pod);
    said(&output(&[&CRUN[..], &["exec", &id, "sh", "-c", script]].concat()))
}

/// Take the pod's manifest away, and wait until nothing of it is left.
pub fn delete(pod: &Pod) {
    manifest::delete(short_name(pod));
    let slice = pod.origin().ancestors().nth(2).expect("the pod's slice").to_owned();
    wait_until_or(&format!("{} is gone", pod.name), kubelet_journal, || {
        !slice.exists() && !userdata(pod).exists()
    });
}

/// However a test ended: no pod is left.
pub fn delete_all() {
    remove_manifests();
    wait_until("kubelet has no pod", || pods().is_empty());
    wait_until("crun has no container", || {
        let list = run(&[&CRUN[..], &["list", "-q"]].concat());
        list.is_empty()
    });
}
