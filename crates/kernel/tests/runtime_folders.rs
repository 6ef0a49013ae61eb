//! Where runtimes keep what they wrote down of a container: the same answers wherever that is.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use stelia_kernel::{oci, runtime_config, runtime_folders};
use stelia_kubelet::ContainerCgroup;
use tempfile::TempDir;

const ORIGIN: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a1.scope";
const CONFIG: &str = r#"{"annotations":{"io.kubernetes.cri.container-name":"compute","io.kubernetes.cri.sandbox-name":"virt-launcher-x",
    "io.kubernetes.cri.sandbox-namespace":"team","io.kubernetes.cri.sandbox-uid":"b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"},
    "linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":232,"access":"rwm"}]}}}"#;
const TASKS: &str = "io.containerd.runtime.v2.task/k8s.io";

struct Node(TempDir);

impl Node {
    /// One with runc, which keeps the container a1 where containerd's shim has it by default.
    fn new() -> Self {
        let node = Self(TempDir::new().unwrap());
        node.write("run/containerd/runc/k8s.io/a1/state.json", "{}");
        node.write("usr/sbin/runc", "");
        let runc = node.0.path().join("usr/sbin/runc");
        fs::set_permissions(runc, fs::Permissions::from_mode(0o755)).unwrap();
        node
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn with_bundle(self, folder: &str, config: &str) -> Self {
        self.write(&format!("{folder}/a1/config.json"), config);
        self.write(&format!("{folder}/a1/options.json"), r#"{"systemd_cgroup":true}"#);
        self
    }

    /// The container's name, whether its devices are known, and whether its OCI runtime is.
    fn told(&self) -> (Option<String>, bool, bool) {
        let run = self.0.path().join("run");
        let container = runtime_config::container(&run, &ContainerCgroup::parse(ORIGIN).unwrap());
        let named = container.pod.map(|pod| pod.to_string());
        assert!(named.is_none() || named.as_deref() == Some("team/virt-launcher-x"));
        (
            container.name,
            runtime_config::devices(&run, "a1", "").is_some(),
            oci::open_runtime(self.0.path(), "a1").is_ok(),
        )
    }
}

fn whole() -> (Option<String>, bool, bool) {
    (Some("compute".to_owned()), true, true)
}

#[test]
fn a_container_has_a_name_devices_and_a_runtime_whichever_distribution_made_it() {
    for state in [
        "run/containerd",
        "run/k3s/containerd",
        "run/k0s/containerd",
        "var/snap/microk8s/common/run/containerd",
    ] {
        let node = Node::new().with_bundle(&format!("{state}/{TASKS}"), CONFIG);
        assert_eq!(node.told(), whole(), "{state}");
    }
    assert_eq!(Node::new().told(), (None, false, false));
}

#[test]
fn crio_is_found_whatever_the_driver_of_its_storage() {
    for driver in ["overlay", "vfs", "btrfs"] {
        let config = CONFIG.replace("io.kubernetes.cri.container-name", "io.kubernetes.container.name");
        let node = Node::new();
        let userdata = format!("run/containers/storage/{driver}-containers/a1/userdata");
        node.write(&format!("{userdata}/config.json"), &config);
        node.write(&format!("{userdata}/conmon-pidfile"), "7\n");
        node.write(
            "proc/7/cmdline",
            "conmon\0-c\0a1\0-r\0/usr/sbin/runc\0--runtime-arg\0--root=/run/containerd/runc/k8s.io\0-s\0",
        );
        // A process of the node.
        node.write("proc/7/status", "Name:\tconmon\nUid:\t0\t0\t0\t0\n");
        node.write("proc/7/cgroup", "0::/system.slice/crio-conmon-a1.scope\n");
        assert_eq!(node.told(), whole(), "{driver}");
    }
}

#[test]
fn of_two_managers_the_one_that_made_the_pods_container_counts() {
    // Docker's containerd, and what another containerd left of a container of the same name.
    let other = CONFIG
        .replace("b9e4f71c", "00000000")
        .replace("\"compute\"", "\"other\"");
    let moby = "run/containerd/io.containerd.runtime.v2.task/moby";
    let node = Node::new()
        .with_bundle(moby, "{}")
        .with_bundle(&format!("run/containerd/{TASKS}"), &other)
        .with_bundle(&format!("run/k3s/containerd/{TASKS}"), CONFIG);
    assert_eq!(node.told(), whole());
    let node = Node::new()
        .with_bundle(moby, "{}")
        .with_bundle(&format!("run/k0s/containerd/{TASKS}"), CONFIG);
    assert_eq!(node.told(), whole());
    // One that is being written says nothing.
    let node = Node::new()
        .with_bundle(&format!("run/containerd/{TASKS}"), "{")
        .with_bundle(&format!("run/k3s/containerd/{TASKS}"), CONFIG);
    assert_eq!(node.told(), whole());
}

#[test]
fn a_folder_may_be_a_link_and_one_of_ones_own_is_a_setting() {
    let node = Node::new().with_bundle(&format!("data/state/{TASKS}"), CONFIG);
    assert_eq!(node.told(), (None, false, false));
    runtime_folders::set_runtime_state_folders(vec![Path::new("/data/state").to_owned()]);
    assert_eq!(node.told(), whole());
    runtime_folders::set_runtime_state_folders(Vec::new());
    assert_eq!(node.told(), (None, false, false));
    fs::create_dir_all(node.0.path().join("run/k3s")).unwrap();
    symlink(
        node.0.path().join("data/state"),
        node.0.path().join("run/k3s/containerd"),
    )
    .unwrap();
    assert_eq!(node.told(), whole());
}
