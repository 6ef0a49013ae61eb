//! Static pods of k3s's kubelet.

use std::fs;

use serde_json::{Value, json};

use super::node::last_logs;
use crate::real::kubelet::frame::{MANIFESTS, state};
use crate::real::kubelet::manifest::{INSTANCE, apply, of_kubelet, seen, text, vm};
use crate::real::kubelet::runtime::containers;
use crate::support::guest::Accel;
use crate::support::host::wait_until_or;
use crate::support::pods::Pod;

/// A VM that registers itself, ready once its guest runs on CPUs of its own, as `vm.yaml` has it.
pub fn registered(name: &str) -> Value {
    let mut pod = vm(name, 2);
    let command = ["/usr/bin/stelia-runner", "probe", "readiness", "--qmp", "/vm/qmp"];
    probed(&mut pod, &command);
    pod
}

/// A shell that starts QEMU and stays, for a rule that adopts it.
pub fn unregistered(name: &str) -> Value {
    let script = format!(
        "trap exit TERM; {} -smp 2 & wait; sleep 100000 & wait",
        Accel::Kvm.qemu().join(" ")
    );
    shell(name, &script)
}

/// A container with two CPUs and a VM's device that runs a script.
pub fn shell(name: &str, script: &str) -> Value {
    let mut pod = vm(name, 2);
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    probed(&mut pod, &["true"]);
    pod
}

/// kubelet has containerd run a program in the container until it succeeds, and once more when kubelet was restarted.
fn probed(pod: &mut Value, command: &[&str]) {
    pod["spec"]["containers"][0]["startupProbe"] =
        json!({"exec": {"command": command}, "periodSeconds": 2, "timeoutSeconds": 30, "failureThreshold": 60});
}

/// The pod's container once it runs.
pub fn started(pod: &Value) -> Pod {
    apply(pod);
    another(&text(&pod["metadata"]["name"]), 0)
}

/// The same, of a container that was not this process before.
pub fn another(name: &str, before: u32) -> Pod {
    let seen_now = || {
        format!(
            "; kubelet says: {}{}",
            seen(name).unwrap_or_default()["status"],
            last_logs()
        )
    };
    wait_until_or(&format!("the container of {name} runs"), seen_now, || {
        of_kubelet(&seen(name)?, INSTANCE).filter(|pod| pod.pid != before)
    })
}

pub fn until_ready(name: &str) {
    wait_until_or(&format!("kubelet says that {name} is ready"), last_logs, || {
        (seen(name)?["status"]["containerStatuses"][0]["ready"] == true).then_some(())
    });
}

/// However a test ended: no pod is left.
pub fn delete_all() {
    for entry in fs::read_dir(MANIFESTS).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    wait_until_or("no container runs and none has CPUs", last_logs, || {
        (containers().is_empty() && state()["entries"].is_null()).then_some(())
    });
}
