//! kubelet as a service of the node, containerd as it asks for it, with the image of its pods, and the frame in which each test runs.

use std::fs;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Once;

use serde_json::{Value, json};

use crate::real::image::make_image;
use crate::real::program;
use crate::support::apiserver::ask;
use crate::support::pod_recording::CONTAINERD;
use crate::support::*;

pub const UNIT: &str = "kubelet.service";
pub const MANIFESTS: &str = "/run/kubelet-node/manifests";
const HOME: &str = "/var/lib/kubelet";
const SETTINGS: &str = "/run/kubelet-node/kubelet.yaml";
const UNIT_FILE: &str = "/run/systemd/system/kubelet.service";
/// kubelet's port without TLS and authorization.
const SERVER: &str = "127.0.0.1:10255";
/// Where CRI-O has its containers' folders.
pub const CRIO: &str = "/run/containers/storage/overlay-containers";
const CONTAINERD_SETTINGS: &str = "/run/kubelet-node/containerd.toml";
/// The configuration in /etc stays as the package made it.
const CONTAINERD_DROP_IN: &str = "/run/systemd/system/containerd.service.d/kubelet.conf";
/// containerd as docs/kubelet.md asks for it: a runtime whose cgroup driver is kubelet's.
const CONTAINERD_CONFIG: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/node:1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
"#;

/// It stays for the later tests: to start it takes an emulated node several seconds.
fn start_containerd() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let image = make_image();
        put_new(CONTAINERD_SETTINGS, CONTAINERD_CONFIG);
        let exec = format!("[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {CONTAINERD_SETTINGS}\n");
        put_new(CONTAINERD_DROP_IN, exec);
        run("systemctl daemon-reload");
        restart("containerd");
        run(&["ctr", "-n", "k8s.io", "images", "import", &image]);
    });
}

pub fn first_process(runtime: &str, id: &str) -> Option<u32> {
    let file = match runtime {
        "cri-o" => format!("{CRIO}/{id}/userdata/pidfile"),
        _ => format!("{CONTAINERD}/{id}/init.pid"),
    };
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// What every test's kubelet has: static pods, and what this node lacks turned off.
fn settings(more: &Value) -> Value {
    let mut all = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "staticPodPath": MANIFESTS, "readOnlyPort": 10255,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "systemd", "failSwapOn": false, "makeIPTablesUtilChains": false,
        "evictionHard": {"memory.available": "100Mi"},
        "cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1",
    });
    let all_of = all.as_object_mut().expect("an object");
    all_of.extend(more.as_object().expect("an object").clone());
    all
}

/// Starts kubelet with these settings more, and flags, on a node without its files; answers when its API does.
pub fn start(more: &Value, flags: &str) {
    forget();
    fs::create_dir_all(MANIFESTS).expect(MANIFESTS);
    put_new(SETTINGS, settings(more).to_string());
    let kubelet = program("kubelet").display().to_string();
    let exec = format!("{kubelet} --config={SETTINGS} --hostname-override=node {flags}");
    put(
        UNIT_FILE,
        format!("[Service]\nExecStart={exec}\nRestart=on-failure\nRestartSec=1\n"),
    );
    run("systemctl daemon-reload");
    run(&["systemctl", "start", UNIT]);
    wait_ready();
}

pub fn wait_ready() {
    wait_until_or("kubelet answers", kubelet_journal, || {
        Path::new(HOME).join("cpu_manager_state").exists() && get("/pods").is_some()
    });
}

/// Removes the manifests, waits for the containers' end, and stops kubelet.
pub fn stop() {
    remove_manifests();
    // A test may have ended while it was stopped.
    run(&["systemctl", "start", UNIT]);
    wait_until_or("no container runs", kubelet_journal, || names_in(CONTAINERD).is_empty());
    run(&["systemctl", "stop", UNIT]);
}

pub fn remove_manifests() {
    for name in names_in(MANIFESTS) {
        fs::remove_file(Path::new(MANIFESTS).join(name)).expect("a manifest");
    }
}

/// As on a node on which kubelet never ran, but for its certificate, which takes an emulated node seconds to make.
fn forget() {
    device_plugin::stop();
    for name in names_in(HOME).iter().filter(|name| *name != "pki") {
        run(&["rm", "--recursive", &format!("{HOME}/{name}")]);
    }
}

/// An answer of kubelet's own API.
pub fn get(path: &str) -> Option<Value> {
    ask(SERVER, "GET", path, "")
}

/// The pods that kubelet runs; none while it starts.
pub fn pods() -> Vec<Value> {
    let list = get("/pods").unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

pub fn kubelet_journal() -> String {
    journal_of(&[UNIT, "crio", "stelia*"])
}

/// Runs a test's body beside a kubelet with these settings more, and holds the node to being as clean as before.
pub fn beside_kubelet(more: &Value, body: impl FnOnce()) {
    beside_kubelet_undoing(more, || (), body);
}

/// The same with something to undo however the body ends: after its pods.
pub fn beside_kubelet_undoing(more: &Value, undo: impl FnOnce(), body: impl FnOnce()) {
    let end = || {
        let stopped = catch_unwind(stop);
        undo();
        stopped.unwrap_or_else(|panic| resume_unwind(panic));
        forget();
        let _ = fs::remove_file(UNIT_FILE);
        run("systemctl daemon-reload");
    };
    on_node_undoing(end, || {
        start_containerd();
        start(more, "");
        body();
    });
}
