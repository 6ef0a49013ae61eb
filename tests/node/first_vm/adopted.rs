//! The examples whose pods know nothing of steliad: `vm-libvirt.yaml` and `vm-qemu.yaml`, adopted by a rule.

use rustix::fs::{XattrFlags, removexattr, setxattr};

use crate::libvirt::{RULE, assert_alone, recorded_pins};
use crate::support::*;

/// The user and the group that KubeVirt's image has: libvirt's daemon of a user without a name ends.
const OF_IMAGE: [(&str, &str); 2] = [
    ("/etc/passwd", "qemu:x:107:107::/:/sbin/nologin"),
    ("/etc/group", "qemu:x:107:"),
];
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const FILE_CAPABILITY: &str = "security.capability";
/// CAP_NET_BIND_SERVICE, permitted and effective, as KubeVirt's QEMU has it: `struct vfs_cap_data`, VFS_CAP_REVISION_2.
const NET_BIND_SERVICE: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The pod of an example, when steliad says that its VM of two vCPUs is isolated, and the kernel that they are alone.
fn isolated(name: &str) -> Pod {
    let pod = super::start(name);
    let seen = || format!(": {:?}\n{}", pod.state(), pod.logs());
    wait_until_or("isolated", seen, || {
        let ended = thread(pod.pid).is_none();
        assert!(!ended, "the container ended:\n{}", pod.logs());
        pod.is("isolated")
    });
    // The shell that is the container's first process stays in its cgroup, as the anchor, with the commands that it waits for.
    let placed: Vec<u32> = recorded_pins(&pod).into_values().collect();
    assert_eq!(placed.len(), 2);
    assert_alone(&pod, &placed);
    assert_eq!(device_plugin::given(&pod.uid).len(), 1);
    pod
}

#[test]
fn libvirt_of_an_ordinary_user() {
    needs_kvm();
    let before = OF_IMAGE.map(|(file, line)| (file, line, read(file)));
    let undo = || {
        device_plugin::stop();
        for (file, _, text) in &before {
            put(file, format!("{text}\n"));
        }
        removexattr(QEMU, FILE_CAPABILITY).expect(QEMU);
    };
    on_node_undoing(undo, || {
        for (file, line, text) in &before {
            put(file, format!("{text}\n{line}\n"));
        }
        setxattr(QEMU, FILE_CAPABILITY, &NET_BIND_SERVICE, XattrFlags::empty()).expect(QEMU);
        configure(RULE);
        device_plugin::start();
        let pod = isolated("vm-libvirt");
        let vcpus = pod.exec("virsh vcpuinfo vm");
        assert_eq!(vcpus.matches("State:          running").count(), 2, "{vcpus}");
        pod.exec("virsh destroy vm");
        assert_eq!(pod.wait(), "0", "{}", pod.logs());
        pod.wait_released();
    });
}

#[test]
fn qemu_of_a_script_of_the_pod() {
    needs_kvm();
    on_node_undoing(device_plugin::stop, || {
        configure("[[adopt]]\nuse = \"qemu\"\n");
        device_plugin::start();
        let pod = isolated("vm-qemu");
        // As kubelet does when the pod is deleted: the image's STOPSIGNAL.
        kill("-HUP", pod.pid);
        assert_eq!(pod.wait(), "0", "{}", pod.logs());
        pod.wait_released();
    });
}
