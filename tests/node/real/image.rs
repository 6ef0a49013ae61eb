//! The image of pods: the node's own programs, which pods mount, around a program that sleeps.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::json;

use crate::support::*;

pub const IMAGE: &str = "localhost/node:1";
/// A program of the image that needs nothing else: busybox.
pub const BUSYBOX: &str = "/busybox";
const FOLDER: &str = "/run/kubelet-node";

fn file(name: &str) -> String {
    format!("{FOLDER}/{name}")
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
    put_new(file("config.json"), config.to_string());
    put_new(file("manifest.json"), manifest.to_string());
    let image = file("image.tar");
    run(&format!(
        "tar -C {FOLDER} -cf {image} manifest.json config.json layer.tar"
    ));
    image
}
