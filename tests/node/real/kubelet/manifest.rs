//! Pods as kubelet reads them, and how it answers.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::frame::{MANIFESTS, first_process, kubelet_journal, pods};
use crate::real::image::{BUSYBOX, IMAGE};
use crate::support::*;

/// The only container that has a VM, and the only one of most pods.
pub const INSTANCE: &str = "instance";
/// kubelet adds the node's name to that of a static pod.
pub const NODE: &str = "node";

/// A container that sleeps, with requests that are its limits.
pub fn sleeper(name: &str, cpus: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpus, "memory": memory});
    json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never",
        "command": [BUSYBOX, "sleep", "1000000"],
        "resources": {"requests": amounts, "limits": amounts},
    })
}

/// A pod in the node's network: there is no other.
pub fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 2, "containers": containers},
    })
}

/// A VM with all that its container has of the node by the device plugin.
pub fn vm(name: &str, vcpus: u32) -> Value {
    let mut instance = machine(Accel::Kvm, vcpus);
    ask_for_device(&mut instance);
    with_volumes(pod(name, &[instance]))
}

/// A VM with an emulated guest, and the runner's socket by a host path: no plugin is needed.
pub fn emulated_vm(name: &str, vcpus: u32) -> Value {
    let mut pod = with_volumes(pod(name, &[machine(Accel::Tcg, vcpus)]));
    let socket = "/run/stelia/runner";
    push(
        &mut pod["spec"]["volumes"],
        json!({"name": "stelia", "hostPath": {"path": socket}}),
    );
    let mounts = &mut pod["spec"]["containers"][0]["volumeMounts"];
    push(mounts, json!({"name": "stelia", "mountPath": socket, "readOnly": true}));
    pod
}

fn machine(accel: Accel, vcpus: u32) -> Value {
    let count = vcpus.to_string();
    let runner = words("/usr/bin/stelia-runner run --qmp /vm/qmp --");
    let command = [&runner[..], &accel.qemu(), &["-smp", &count]].concat();
    with_mounts(sleeper(INSTANCE, &count, "512Mi"), &command)
}

/// The container with the node's `/usr` and a folder of its own, and this command.
pub fn with_mounts(mut container: Value, command: &[&str]) -> Value {
    container["command"] = command.into();
    container["volumeMounts"] = json!([
        {"name": "usr", "mountPath": "/usr", "readOnly": true},
        {"name": "vm", "mountPath": "/vm"},
    ]);
    container
}

pub fn with_volumes(mut pod: Value) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "usr", "hostPath": {"path": "/usr"}}, {"name": "vm", "emptyDir": {}}]);
    pod
}

/// The container asks for the device plugin's resource: the runner, its socket and `/dev/kvm`.
pub fn ask_for_device(container: &mut Value) {
    for amounts in ["requests", "limits"] {
        container["resources"][amounts]["stelia.io/vm"] = "1".into();
    }
}

pub fn push(list: &mut Value, one: Value) {
    list.as_array_mut().expect("a list").push(one);
}

pub fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a name")
}

/// The pod becomes static. kubelet reads no file whose name begins with a dot.
pub fn apply(pod: &Value) {
    let name = name_of(pod);
    let new = format!("{MANIFESTS}/.{name}");
    put(&new, pod.to_string());
    fs::rename(&new, format!("{MANIFESTS}/{name}.yaml")).expect("a manifest");
}

/// The pod's file is removed, and it is waited until neither kubelet nor its state has the pod.
pub fn delete(name: &str) {
    let uid = seen(name).map(|pod| text(&pod["metadata"]["uid"]));
    fs::remove_file(format!("{MANIFESTS}/{name}.yaml")).expect("a manifest");
    let is_forgotten = |uid: &String| kubelet_state()["entries"].get(uid).is_none();
    wait_until(&format!("kubelet forgets {name}"), || {
        seen(name).is_none() && uid.as_ref().is_none_or(is_forgotten)
    });
}

/// What kubelet says of a static pod.
pub fn seen(name: &str) -> Option<Value> {
    let name = format!("{name}-{NODE}");
    pods().into_iter().find(|pod| name_of(pod) == name)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The CPUs of the containers that have exclusive ones.
    Admitted(BTreeMap<String, String>),
    /// The reason and the message.
    Rejected(String, String),
}

/// Waits until kubelet has decided.
pub fn verdict(name: &str) -> Verdict {
    let decided = wait_until(&format!("kubelet decides on {name}"), || {
        seen(name).filter(|pod| pod["status"]["phase"] == "Failed" || pod["status"]["containerStatuses"].is_array())
    });
    let status = &decided["status"];
    if status["phase"] == "Failed" {
        return Verdict::Rejected(text(&status["reason"]), text(&status["message"]));
    }
    let uid = text(&decided["metadata"]["uid"]);
    let entries = kubelet_state()["entries"][&uid].clone();
    let entries = entries.as_object().into_iter().flatten();
    let cpus = entries.map(|(container, cpus)| (container.clone(), text(cpus)));
    Verdict::Admitted(cpus.collect())
}

/// A container of a pod that runs, as the other tests know pods.
pub fn running(name: &str, container: &str) -> Pod {
    wait_running(name, container, |_| true)
}

/// The same once it was started again so often.
pub fn running_again(name: &str, restarts: u64) -> Pod {
    wait_running(name, INSTANCE, |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == restarts
    })
}

fn wait_running(name: &str, container: &str, is_so: impl Fn(&Value) -> bool) -> Pod {
    let said = || {
        let status = seen(name).unwrap_or_default()["status"].clone();
        format!("; kubelet says {status:#}{}", kubelet_journal())
    };
    wait_until_or(&format!("{container} of {name} runs"), said, || {
        of_kubelet(&seen(name).filter(&is_so)?, container)
    })
}

/// The same of a pod that kubelet shows, whoever gave it to kubelet.
pub fn of_kubelet(pod: &Value, container: &str) -> Option<Pod> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == container)?;
    status["state"].get("running")?;
    let (runtime, id) = status["containerID"].as_str()?.split_once("://")?;
    let scope = match runtime {
        "cri-o" => format!("crio-{id}.scope/container"),
        _ => format!("cri-containerd-{id}.scope"),
    };
    let uid = text(&pod["metadata"]["uid"]);
    let full = format!("{}_{}_{uid}", text(&pod["metadata"]["namespace"]), name_of(pod));
    Some(Pod {
        name: name_of(pod).to_owned(),
        cgroup: format!("{}/{scope}", slice_of(pod, &uid)),
        pid: first_process(runtime, id)?,
        cpus: kubelet_state()["entries"][&uid][container].as_str().map(str::to_owned),
        log: format!("/var/log/pods/{full}/{container}/{}.log", status["restartCount"]).into(),
        uid,
    })
}

/// The pod's slice. Guaranteed pods have none of their class above it.
fn slice_of(pod: &Value, uid: &str) -> String {
    let (class, uid) = (text(&pod["status"]["qosClass"]).to_lowercase(), uid.replace('-', "_"));
    match class.as_str() {
        "guaranteed" => format!("/kubepods.slice/kubepods-pod{uid}.slice"),
        _ => format!("/kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{uid}.slice"),
    }
}
