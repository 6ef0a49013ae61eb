//! containerd as kubelet asks for it, and the one image of its pods: the node's own programs, which pods mount, around a program that sleeps.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Instant;

use serde_json::json;

use crate::support::host::run;

pub const IMAGE: &str = "localhost/node:1";
/// A program of the image that needs nothing else: busybox.
pub const BUSYBOX: &str = "/busybox";
/// Where containerd's shims keep the containers of the CRI: the node's, and k3s's.
const TASKS: [&str; 2] = [
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io",
];
const FOLDER: &str = "/run/kubelet-node";
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
        let started = Instant::now();
        let image = make_image();
        write(&Path::new(FOLDER).join("containerd.toml"), CONFIG);
        let exec = format!("[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {FOLDER}/containerd.toml\n");
        write(Path::new(DROP_IN), &exec);
        run(&["systemctl", "daemon-reload"]);
        run(&["systemctl", "restart", "containerd"]);
        run(&["ctr", "-n", "k8s.io", "images", "import", &image]);
        for program in ["containerd", "runc"] {
            println!("  {}", run(&[program, "--version"]).lines().next().unwrap_or_default());
        }
        println!("  containerd and its image: {} ms", started.elapsed().as_millis());
    });
}

/// The containers that the runtime has, sandboxes among them.
pub fn containers() -> Vec<String> {
    let entries = TASKS.iter().flat_map(fs::read_dir).flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The first process of a container that has one.
pub fn first_process(id: &str) -> Option<u32> {
    let mut files = TASKS.iter().map(|tasks| Path::new(tasks).join(id).join("init.pid"));
    let text = files.find_map(|file| fs::read_to_string(file).ok())?;
    text.trim().parse().ok()
}

fn file(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

pub fn write(path: &Path, text: &str) {
    let folder = path.parent().expect("a folder");
    fs::create_dir_all(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// In the form of `docker save`, which containerd imports: there is no registry. Answers the file.
pub fn make_image() -> String {
    let root = PathBuf::from(file("root"));
    let _ = fs::remove_dir_all(&root);
    for folder in ["usr", "proc", "sys", "dev", "run", "tmp", "var", "etc"] {
        fs::create_dir_all(root.join(folder)).expect(folder);
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{link}"), root.join(link)).expect(link);
    }
    fs::copy("/bin/busybox", root.join(BUSYBOX.trim_start_matches('/'))).expect("busybox");
    // What the node's programs need besides /usr, which pods mount.
    let root = root.display().to_string();
    let etc = ["/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group"];
    run(&[&["cp", "-a"], &etc[..], &[&format!("{root}/etc/")]].concat());
    let layer = file("layer.tar");
    run(&["tar", "-C", &root, "--owner=0", "--group=0", "-cf", &layer, "."]);
    let sum = run(&["sha256sum", &layer]);
    let digest = format!("sha256:{}", sum.split_whitespace().next().expect("a sum"));
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": [BUSYBOX, "sleep", "1000000"], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    write(Path::new(&file("config.json")), &config.to_string());
    write(Path::new(&file("manifest.json")), &manifest.to_string());
    let image = file("image.tar");
    run(&[
        "tar",
        "-C",
        FOLDER,
        "-cf",
        &image,
        "manifest.json",
        "config.json",
        "layer.tar",
    ]);
    image
}
