//! Static pods of kubelet's, in CRI-O.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::node::{CONTAINERS, CRUN, IMAGE, MANIFESTS, last_logs};
use crate::real::kubelet::frame::pods;
use crate::real::kubelet::manifest::{NODE, seen};
use crate::support::*;

pub const CONTAINER: &str = "instance";

/// A manifest of a guaranteed pod with one container of two CPUs.
pub struct Manifest {
    name: String,
    text: Value,
}

impl Manifest {
    /// `command` is the container's.
    pub fn new(name: &str, command: &[&str]) -> Self {
        let resources = json!({"cpu": "2", "memory": "400Mi"});
        let text = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": {}},
            "spec": {
                // The node has no network for pods.
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": CONTAINER,
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "env": [],
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {},
                    "volumeMounts": [
                        {"name": "usr", "mountPath": "/usr", "readOnly": true},
                        {"name": "vm", "mountPath": "/vm"},
                    ],
                }],
                "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}, {"name": "vm", "emptyDir": {}}],
            },
        });
        let name = name.to_owned();
        Self { name, text }
    }

    /// A VM of two vCPUs that `stelia-runner` starts.
    pub fn of_runner(name: &str) -> Self {
        Self::new(name, &[words(RUNNER), qemu()].concat()).with_device()
    }

    /// The device plugin's resource: the runner, its socket and `/dev/kvm`.
    pub fn with_device(mut self) -> Self {
        for kind in ["requests", "limits"] {
            self.container()["resources"][kind]["stelia.io/vm"] = json!("1");
        }
        self
    }

    /// An ordinary user without privileges, as `vm.yaml` has it.
    pub fn restricted(mut self) -> Self {
        self.text["spec"]["securityContext"] = json!({
            "runAsNonRoot": true,
            "runAsUser": 107,
            "runAsGroup": 107,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        self.container()["securityContext"] =
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        self
    }

    pub fn with_capability(mut self, name: &str) -> Self {
        self.container()["securityContext"] = json!({"capabilities": {"add": [name]}});
        self
    }

    /// Ready is a guest on CPUs of its own, as `vm.yaml` has it.
    pub fn with_probe(self) -> Self {
        self.with_startup_probe(&["/usr/bin/stelia-runner", "probe", "readiness", "--qmp", "/vm/qmp"])
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

    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.text["metadata"]["namespace"] = json!(namespace);
        self
    }

    pub fn with_annotations(mut self, annotations: Value) -> Self {
        self.text["metadata"]["annotations"] = annotations;
        self
    }

    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.container()["env"] = json!([{"name": name, "value": value}]);
        self
    }

    fn container(&mut self) -> &mut Value {
        &mut self.text["spec"]["containers"][0]
    }

    /// Have kubelet run it, and wait until its container runs.
    pub fn apply(&self) -> Pod {
        // kubelet reads whatever is in the folder: a file comes into it as a whole.
        let draft = format!("/run/real/{}.json", self.name);
        put(&draft, self.text.to_string());
        fs::rename(&draft, file(&self.name)).expect("the manifest is put in place");
        running(&self.name, 0)
    }
}

const RUNNER: &str = "/usr/bin/stelia-runner run --qmp /vm/qmp --grace 1 --";

/// QEMU with a guest of two vCPUs that never ends.
pub fn qemu() -> Vec<&'static str> {
    [&Accel::of_node().qemu()[..], &["-smp", "2"]].concat()
}

fn file(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!("{name}.json"))
}

/// The name in the pod's manifest.
pub fn short_name(pod: &Pod) -> &str {
    pod.name.trim_end_matches(NODE).trim_end_matches('-')
}

/// Whether kubelet takes the pod's container for ready.
pub fn is_ready(pod: &Pod) -> bool {
    seen(short_name(pod)).is_some_and(|found| found["status"]["containerStatuses"][0]["ready"] == true)
}

/// The pod's container once it runs and was started again so often.
pub fn running(name: &str, restarts: u64) -> Pod {
    let said = || {
        let status = seen(name).unwrap_or_default()["status"].clone();
        format!("; kubelet says {status:#}{}", last_logs())
    };
    wait_until_or(&format!("the container of {name} runs"), said, || {
        let found = seen(name)?;
        let container = &found["status"]["containerStatuses"][0];
        let is_so = container["restartCount"] == restarts && container["state"]["running"].is_object();
        is_so.then(|| pod_of(&found, container))
    })
}

fn pod_of(found: &Value, container: &Value) -> Pod {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let [namespace, name, uid] = ["namespace", "name", "uid"].map(|key| text(&found["metadata"][key]));
    let id = text(&container["containerID"]);
    let id = id.strip_prefix("cri-o://").expect("a container of CRI-O");
    let log = format!(
        "/var/log/pods/{namespace}_{name}_{uid}/{CONTAINER}/{}.log",
        container["restartCount"]
    );
    let slice = format!("kubepods-pod{}.slice", uid.replace('-', "_"));
    let state = kubelet_state();
    Pod {
        cgroup: format!("/kubepods.slice/{slice}/crio-{id}.scope/container"),
        pid: number(&read(userdata(id).join("pidfile"))),
        cpus: state["entries"][&uid][CONTAINER].as_str().map(str::to_owned),
        log: log.into(),
        name,
        uid,
    }
}

/// The container's folder of CRI-O.
fn userdata(id: &str) -> PathBuf {
    Path::new(CONTAINERS).join(id).join("userdata")
}

/// CRI-O's id of the pod's container.
pub fn container_id(pod: &Pod) -> String {
    let mut parts = pod.cgroup.split('/');
    let id = parts.find_map(|part| part.strip_prefix("crio-")?.strip_suffix(".scope"));
    id.expect("a scope of CRI-O's").to_owned()
}

/// The container's configuration.
pub fn config(pod: &Pod) -> Value {
    let file = userdata(&container_id(pod)).join("config.json");
    json(&read(file))
}

/// Run a script in the container as CRI-O does: with crun, in the container's own cgroup.
pub fn exec(pod: &Pod, script: &str) -> String {
    let id = container_id(pod);
    said(&output(&[&CRUN[..], &["exec", &id, "sh", "-c", script]].concat()))
}

/// Take the pod's manifest away, and wait until nothing of it is left.
pub fn delete(pod: &Pod) {
    fs::remove_file(file(short_name(pod))).expect("a manifest");
    gone(pod);
}

fn gone(pod: &Pod) {
    let slice = pod.origin().ancestors().nth(2).expect("the pod's slice").to_owned();
    wait_until_or(&format!("{} is gone", pod.name), last_logs, || {
        let is_there = slice.exists() || userdata(&container_id(pod)).exists();
        !is_there && seen(short_name(pod)).is_none()
    });
}

/// However a test ended: no pod is left.
pub fn delete_all() {
    for name in names_in(MANIFESTS) {
        let _ = fs::remove_file(Path::new(MANIFESTS).join(name));
    }
    wait_until("kubelet has no pod", || pods().is_empty());
    wait_until("crun has no container", || {
        let list = run(&[&CRUN[..], &["list", "-q"]].concat());
        list.is_empty()
    });
}
