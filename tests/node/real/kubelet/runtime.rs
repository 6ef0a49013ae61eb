//! containerd as kubelet asks for it, with the image of its pods.

use std::fs;
use std::path::Path;
use std::sync::Once;

use crate::real::common::image::{make_image, write};
use crate::support::*;

/// Where containerd's shims keep the containers of the CRI.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
const SETTINGS: &str = "/run/kubelet-node/containerd.toml";
/// The configuration in /etc stays as the package made it.
const DROP_IN: &str = "/run/systemd/system/containerd.service.d/kubelet.conf";
/// As docs/kubelet.md asks for: a runtime whose cgroup driver is kubelet's.
const CONFIG: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/node:1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
"#;

/// It stays for the later tests: to start it takes an emulated node several seconds.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let image = make_image();
        write(Path::new(SETTINGS), CONFIG);
        let exec = format!("[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {SETTINGS}\n");
        write(Path::new(DROP_IN), &exec);
        run("systemctl daemon-reload");
        restart("containerd");
        run(&["ctr", "-n", "k8s.io", "images", "import", &image]);
    });
}

/// The containers that the runtime has, sandboxes among them.
pub fn containers() -> Vec<String> {
    names_in(TASKS)
}

/// The first process of a container that has one.
pub fn first_process(id: &str) -> Option<u32> {
    let text = fs::read_to_string(Path::new(TASKS).join(id).join("init.pid")).ok()?;
    text.trim().parse().ok()
}
