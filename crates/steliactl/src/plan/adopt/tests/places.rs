//! Where containers are and what is known of them: distributions, runtimes, drivers, and VMs that are in none.

use super::*;

#[test]
fn whichever_distribution_keeps_the_containers_a_vm_is_adopted() {
    for state in [
        "run/containerd",
        "run/k3s/containerd",
        "run/k0s/containerd",
        "var/snap/microk8s/common/run/containerd",
    ] {
        let mut node = Node::new();
        node.state = state;
        node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-3", ["2", "3"], "");
        node.rules("[[adopt]]\nuse = \"kubevirt\"\n");
        assert_eq!(reasons(&node.preview()), [("virt-launcher-web-x7k2p", None)], "{state}");
    }
    let mut node = Node::new();
    node.state = "data/containerd";
    node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-3", ["2", "3"], "");
    node.rules("runtime-state = [\"/data/containerd\"]\n[[adopt]]\nuse = \"kubevirt\"\n");
    assert_eq!(reasons(&node.preview()), [("virt-launcher-web-x7k2p", None)]);
}

#[test]
fn crios_containers_are_found_with_either_driver() {
    let id = &WEB[..8];
    let unit = WEB.replace('-', "_");
    for cgroup in [
        format!("kubepods/pod{WEB}/crio-{id}"),
        format!("kubepods.slice/kubepods-pod{unit}.slice/crio-{id}.scope"),
    ] {
        let mut node = Node::new();
        node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-3", ["2", "3"], "");
        node.moved(WEB, &cgroup);
        let bundle = node
            .root
            .path()
            .join(format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}"));
        let userdata = node
            .root
            .path()
            .join(format!("run/containers/storage/overlay-containers/{id}/userdata"));
        fs::create_dir_all(userdata.parent().unwrap()).unwrap();
        fs::rename(bundle, &userdata).unwrap();
        // CRI-O's own keys.
        let config = userdata.join("config.json");
        let text = fs::read_to_string(&config).unwrap();
        let text = text
            .replace("io.kubernetes.cri.sandbox-", "io.kubernetes.pod.")
            .replace("io.kubernetes.cri.container-name", "io.kubernetes.container.name");
        fs::write(&config, text).unwrap();
        node.rules("[[adopt]]\nuse = \"kubevirt\"\n");
        assert_eq!(
            reasons(&node.preview()),
            [("virt-launcher-web-x7k2p", None)],
            "{cgroup}"
        );
    }
}

#[test]
fn whether_the_runtime_copes_decides_about_a_vm_that_must_stay_in_its_container() {
    let mut node = Node::new();
    let tasks = [
        (500, 500, "cloud-hyperviso", "/usr/bin/cloud-hypervisor-static\0", "2"),
        (500, 501, "vcpu0", "", "2"),
    ];
    node.container(MICRO, ("c/micro", "vmm"), "2", "", &tasks);
    node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "3-5", ["3", "4"], "");
    node.rules("[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\npartition = \"member\"\n[[adopt]]\nuse = \"cloud-hypervisor\"\n");
    let of = |copes| {
        node.tried(copes);
        let preview = node.preview();
        let shown = text(&preview);
        let micro = preview
            .vms
            .iter()
            .find(|one| one.pod.pod_name == "micro")
            .unwrap()
            .reason
            .clone();
        let web = preview
            .vms
            .iter()
            .find(|one| one.pod.pod_name != "micro")
            .unwrap()
            .reason
            .clone();
        (micro, web, shown)
    };
    let (micro, web, shown) = of(Some(true));
    assert!(micro.is_none() && web.is_none(), "{shown}");
    let (micro, web, shown) = of(Some(false));
    assert_eq!(
        (micro.as_deref(), web.as_deref()),
        (Some("NoAnchor"), Some("Failed")),
        "{shown}"
    );
    assert!(shown.contains("does not cope with threaded cgroups"), "{shown}");
    let (micro, web, shown) = of(None);
    assert_eq!(
        (micro.as_deref(), web.as_deref()),
        (Some("Untried"), Some("Untried")),
        "{shown}"
    );
    assert!(shown.contains("not known before /usr/sbin/runc was tried"), "{shown}");
    // Its first process is not the VMM: it can be moved.
    node.rules("[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\n");
    let (_, web, shown) = of(None);
    assert_eq!(web, None, "{shown}");
}

#[test]
fn a_vm_that_is_in_no_container_that_is_known_has_a_line_with_the_reason() {
    let id = "5".repeat(64);
    let unit = format!("pod{}.slice", WEB.replace('-', "_"));
    for (cgroup, reason, cure) in [
        (
            format!("k8s-infra.slice/k8s-infra-kubepods.slice/k8s-infra-kubepods-{unit}/cri-containerd-{id}.scope"),
            "OutsideKubepods",
            "cgroupRoot",
        ),
        (
            format!("system.slice/containerd.service/kubepods-{unit}:cri-containerd:{id}"),
            "OutsideKubepods",
            "SystemdCgroup = true",
        ),
        (
            format!("kubepods.slice/kubepods-{unit}/docker-{id}.scope"),
            "Unnamed",
            "cri-dockerd",
        ),
        (
            "machine.slice/machine-qemu.scope".to_owned(),
            "NotInPod",
            "machine-qemu",
        ),
    ] {
        for rules in ["", "[[adopt]]\nuse = \"kubevirt\"\n"] {
            let mut node = Node::new();
            node.rules(rules);
            node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-3", ["2", "3"], "");
            node.moved(WEB, &cgroup);
            let preview = node.preview();
            let shown = text(&preview);
            let [one] = preview.vms.as_slice() else {
                panic!("{cgroup}: {shown}")
            };
            assert_eq!((one.reason.as_deref(), one.vcpus), (Some(reason), Some(2)), "{cgroup}");
            assert!(one.why.contains(cure) && !shown.contains("No VMs"), "{shown}");
        }
    }
}

#[test]
fn whoever_has_a_vm_of_kvms_open_has_a_line_whatever_it_is_called() {
    let node = Node::new();
    node.process(70, "crosvm", "/user.slice/user-0.slice", "anon_inode:kvm-vm");
    node.process(80, "libkrun-app", "/system.slice/app.service", "anon_inode:kvm-vcpu:0");
    node.process(90, "bash", "/user.slice", "/dev/kvm");
    let preview = node.preview();
    let found: Vec<_> = preview
        .vms
        .iter()
        .map(|one| (one.vmm_pid, one.reason.as_deref()))
        .collect();
    assert_eq!(found, [(Some(80), Some("NotInPod")), (Some(70), Some("NotInPod"))]);
    // One in a pod that no rule knows by its names, and an instance's, which `list` shows.
    let mut node = Node::new();
    let tasks = [(100, 100, "app", "/app\0", "2"), (100, 101, "worker", "", "2")];
    node.container(LOGS, ("a/app", "app"), "2", "", &tasks);
    fs::create_dir_all(node.root.path().join("proc/100/fd")).unwrap();
    std::os::unix::fs::symlink("anon_inode:kvm-vm", node.root.path().join("proc/100/fd/3")).unwrap();
    let instance = format!("/stelia.slice/stelia-instance-{WEB}.scope/instance/float");
    node.process(200, "qemu-kvm", &instance, "anon_inode:kvm-vm");
    let preview = node.preview();
    let [one] = preview.vms.as_slice() else {
        panic!("{preview:?}")
    };
    assert_eq!((one.vmm_pid, one.reason.as_deref()), (Some(100), Some("UnknownVmm")));
}
