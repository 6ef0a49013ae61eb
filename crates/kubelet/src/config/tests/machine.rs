//! The configuration of a kubelet that runs on a machine made of files.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::home::Search;

/// A machine made of files: `/proc` in `proc`, the rest in `root`.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().unwrap());
        machine.process(1, "systemd", "0", "/init.scope", "systemd");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: i32, name: &str, uid: &str, cgroup: &str, line: &str) {
        self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        let status = format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        self.write(&format!("proc/{pid}/status"), &status);
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.write(&format!("proc/{pid}/cmdline"), &(line.replace(' ', "\0") + "\0"));
    }

    fn read(&self) -> Result<KubeletConfig, ConfigError> {
        read(
            &self.0.path().join("proc"),
            &self.0.path().join("root"),
            Search::SocketsThenNames,
        )
    }
}

const UNIT: &str = "/system.slice/kubelet.service";
const POD: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope";

#[test]
fn the_running_kubelet_is_found_and_its_files_are_read_in_kubelets_order() {
    let machine = Machine::new();
    machine.process(
        70,
        "kubelet",
        "0",
        UNIT,
        "kubelet --config=/etc/k.yaml --config-dir conf.d --root-dir=/k",
    );
    // In a pod, below a container, in an instance, or not run by root: the name alone proves nothing.
    let scope = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope/instance/float";
    machine.process(71, "kubelet", "0", POD, "kubelet --root-dir=/wrong");
    machine.process(72, "kubelet", "0", &format!("{POD}/inner"), "kubelet --root-dir=/wrong");
    machine.process(73, "kubelet", "0", scope, "kubelet --root-dir=/wrong");
    machine.process(74, "kubelet", "1000", "/user.slice", "kubelet --root-dir=/wrong");
    symlink("/etc", machine.0.path().join("proc/70/cwd")).unwrap();
    machine.write("root/etc/k.yaml", &format!("{HEAD}{FILE}"));
    machine.write("root/etc/conf.d/00.conf", &format!("{HEAD}reservedMemory: null\n"));
    let reserved = |cpus: &str| format!("{HEAD}reservedSystemCPUs: \"{cpus}\"\n");
    machine.write("root/etc/conf.d/10-a.conf", &reserved("1"));
    machine.write("root/etc/conf.d/20-b/99.conf", &reserved("2"));
    machine.write("root/etc/conf.d/20-c.conf.bak", &reserved("3"));
    machine.write("root/etc/conf.d/30-d.yaml", &reserved("4"));
    let config = machine.read().unwrap();
    assert_eq!(config.reserved_system_cpus.to_string(), "2");
    assert_eq!(config.root_dir.to_str(), Some("/k"));
    assert_eq!(config.cpu_manager_policy, "static");
}

#[test]
fn a_kubelet_without_files_has_its_flags() {
    let machine = Machine::new();
    machine.process(70, "kubelet", "0", UNIT, "kubelet --cpu-manager-policy=static");
    assert_eq!(machine.read().unwrap().cpu_manager_policy, "static");
}

#[test]
fn what_is_not_known_is_an_error_with_its_place() {
    let machine = Machine::new();
    assert_eq!(machine.read().unwrap_err().to_string(), "no kubelet runs on this node");
    machine.process(70, "kubelet", "0", UNIT, "kubelet --config=/etc/k.yaml");
    let error = machine.read().unwrap_err().to_string();
    assert!(
        error.starts_with("read /") && error.contains("root/etc/k.yaml: "),
        "{error}"
    );
    machine.write("root/etc/k.yaml", &" ".repeat(2 << 20));
    assert!(
        machine
            .read()
            .unwrap_err()
            .to_string()
            .contains("more than 1048576 bytes")
    );
    machine.process(80, "kubelet", "0", "/", "kubelet");
    assert!(machine.read().unwrap_err().to_string().contains("[70, 80]"));
}
