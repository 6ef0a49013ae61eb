//! containerd as kubelet asks for it, with the image of its pods.

use std::fs;
use std::sync::Once;

use crate::real::image::make_image;
use crate::support::*;

/// Where containerd's shims keep the containers of the CRI.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// Where CRI-O has its containers' folders.
pub const CRIO: &str = "/run/containers/storage/overlay-containers";
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
        put_new(SETTINGS, CONFIG);
        let exec = format!("[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {SETTINGS}\n");
        put_new(DROP_IN, exec);
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
pub fn first_process(runtime: &str, id: &str) -> Option<u32> {
    let file = match runtime {
        "cri-o" => format!("{CRIO}/{id}/userdata/pidfile"),
        _ => format!("{TASKS}/{id}/init.pid"),
    };
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
