//! Containers of crun, as on CRI-O's nodes: the processes are in a cgroup of the scope, and the scope has what binds them.

use stelia_kernel::cgroup::HugePage;
use stelia_kubelet::ContainerCgroup;

use super::*;

fn scope_of(pod: &Pod) -> CgroupPath {
    pod.origin.parent().unwrap()
}

#[tokio::test]
async fn a_vm_is_isolated_and_given_back_to_where_crun_had_put_it() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated_by(Runtime::Crun, 1, "2-3").await;
    assert_eq!(pod.origin.name(), ContainerCgroup::SUBGROUP);
    assert_eq!(node.phase(&pod), Some("isolated"));
    assert_eq!(node.handle.view().instances[&pod.uid].origin, pod.origin);
    assert_eq!(node.model.cgroup(pod.anchor).unwrap(), pod.origin);
    for pid in [pod.init, pod.other] {
        assert_eq!(node.model.cgroup(pid).unwrap(), float(&pod));
    }
    assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    // What is exec'd into the container stays where crun puts it, on shared CPUs.
    let shell = node.model.spawn(pod.anchor, "sh").unwrap();
    node.reconcile().await;
    assert_eq!(node.model.cgroup(shell).unwrap(), pod.origin);
    assert_eq!(node.model.affinity(shell).unwrap(), cpus("0-1,4-7"));
    node.check().await;
    // A daemon that starts anew knows it again by its record.
    node.restart().await;
    node.check().await;
    assert_eq!(node.phase(&pod), Some("isolated"));

    node.handle.deregister(pod.uid.clone()).await.unwrap();
    for tid in [pod.init, pod.anchor, pod.other, qemu.pid, qemu.vcpus[1], shell] {
        assert_eq!(node.model.cgroup(tid).unwrap(), pod.origin);
        assert_eq!(node.model.affinity(tid).unwrap(), cpus("2-3"));
    }
    assert!(!node.model.exists(&scope(&pod)));
    node.check().await;
    node.register(&pod).await.unwrap();
}

#[tokio::test]
async fn limits_that_only_the_scope_has_hold_for_what_was_moved() {
    let mut node = Node::new();
    let limits = Limits {
        pids_max: Some(77),
        memory_high: Some(1 << 29),
        memory_max: Some(1 << 30),
        cpu_weight: Some(79),
        ..Limits::default()
    };
    node.checkpoint.admit(&uid(1), "vm", &cpus("2-3")).unwrap();
    let added = node.model.add_pod_by(Runtime::Crun, &uid(1), &cpus("2-3"), &limits);
    let pod = added.unwrap();
    let on_scope = |file, value| node.model.meddle(&scope_of(&pod), file, value).unwrap();
    on_scope(File::HugetlbMax(HugePage::Mb2), "4194304");
    on_scope(File::HugetlbReservedMax(HugePage::Mb2), "2097152");
    on_scope(File::IoMax, "8:0 rbps=1048576");
    on_scope(File::MemoryOomGroup, "1");
    node.model.record_calls(true);
    node.register(&pod).await.unwrap();
    // What is taken before a limit is there stays taken.
    let calls = node.model.calls();
    node.model.record_calls(false);
    let first = |what: String| calls.iter().position(|call| call.starts_with(&what)).expect(&what);
    let moved = first(format!("write {}/cgroup.procs", float(&pod)));
    for file in ["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"] {
        assert!(
            first(format!("write {}/{file}", scope(&pod))) < moved,
            "{file}: {calls:#?}"
        );
    }
    let reserved = File::HugetlbReservedMax(HugePage::Mb2);
    assert_eq!(node.read(&scope(&pod), reserved), "2097152");
    assert_eq!(
        node.read(&scope(&pod), File::IoMax),
        node.read(&scope_of(&pod), File::IoMax)
    );
    let of_unit = node.model.unit_limits(&pod.uid.scope()).unwrap();
    assert_eq!(of_unit.pids_max, Some(77));
    assert_eq!(
        (of_unit.memory_high, of_unit.memory_max),
        (Some(1 << 29), Some(1 << 30))
    );
    assert_eq!(of_unit.cpu_weight, Some(79));
    assert_eq!(node.read(&scope(&pod), File::HugetlbMax(HugePage::Mb2)), "4194304");
    assert_eq!(node.read(&scope(&pod), File::MemoryOomGroup), "1");
    // A resize in place counts wherever the less is written.
    node.model.meddle(&pod.origin, File::MemoryMax, "536870912").unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&scope(&pod), File::MemoryMax), "536870912");
    node.check().await;
}

#[tokio::test]
async fn devices_come_from_the_runtimes_configuration_and_are_never_all_by_default() {
    let mut node = Node::new();
    let pod = node.pod_by(Runtime::Crun, 1, "2-3");
    let id = ContainerCgroup::parse(pod.origin.as_str()).unwrap().container_id;
    let bundle = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
    let file = node.directory.path().join(bundle).join("config.json");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let changes = node.model.changes();
    let refusal = node.register(&pod).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Failed);
    assert!(refusal.text.contains(scope_of(&pod).as_str()), "{}", refusal.text);
    assert_eq!(node.model.changes(), changes, "nothing was made");

    std::fs::write(&file, config).unwrap();
    node.register(&pod).await.unwrap();
    let devices = node.model.unit_devices(&pod.uid.scope()).unwrap();
    let allowed: Vec<&str> = devices.allow.iter().map(|(device, _)| device.as_str()).collect();
    assert_eq!(devices.policy, "strict");
    assert!(
        allowed.contains(&"/dev/char/10:232") && allowed.contains(&"/dev/char/1:3"),
        "{allowed:?}"
    );
    assert!(!allowed.contains(&"/dev/char/1:1"), "{allowed:?}");
}

#[tokio::test]
async fn whichever_distribution_keeps_the_container_it_registers_with_its_name_and_devices() {
    for state in [
        "run/k3s/containerd",
        "run/k0s/containerd",
        "var/snap/microk8s/common/run/containerd",
    ] {
        let mut node = Node::new();
        let pod = node.pod_by(Runtime::Crun, 1, "2-3");
        let tasks = "io.containerd.runtime.v2.task";
        let state = node.directory.path().join(state);
        std::fs::create_dir_all(&state).unwrap();
        let default = node.directory.path().join("run/containerd").join(tasks);
        std::fs::rename(default, state.join(tasks)).unwrap();
        node.register(&pod).await.unwrap();
        let devices = node.model.unit_devices(&pod.uid.scope()).unwrap();
        let kvm = devices.allow.iter().any(|(device, _)| device == "/dev/char/10:232");
        assert!(devices.policy == "strict" && kvm, "{}: {devices:?}", state.display());
        node.check().await;
    }
}

#[tokio::test]
async fn a_container_that_ends_leaves_nothing_and_the_next_one_is_an_instance_anew() {
    let mut node = Node::new();
    let (first, _) = node.isolated_by(Runtime::Crun, 1, "2-3").await;
    node.model.kill_pod(&first).unwrap();
    node.reconcile().await;
    assert!(!node.model.exists(&scope(&first)) && !node.model.exists(&scope_of(&first)));
    assert_eq!(node.phase(&first), None);
    node.check().await;
    let added = node
        .model
        .add_pod_by(Runtime::Crun, &uid(1), &cpus("2-3"), &Limits::default());
    let second = added.unwrap();
    assert_ne!(second.origin, first.origin);
    node.register(&second).await.unwrap();
    assert_eq!(node.handle.view().instances[&second.uid].origin, second.origin);
    node.check().await;
}

#[tokio::test]
async fn an_administrator_names_the_pod_or_the_scope_and_means_the_container() {
    let mut node = Node::new();
    let pod = node.pod_by(Runtime::Crun, 1, "2-3");
    // CRI-O's monitor of the container is beside it and is none.
    let monitor = pod
        .origin
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .child("crio-conmon-50ab.scope");
    node.model.create(&monitor).unwrap();
    let conmon = node.model.spawn(1, "conmon").unwrap();
    node.model.write(&monitor, File::Procs, &conmon.to_string()).unwrap();
    for origin in [None, Some(scope_of(&pod)), Some(pod.origin.clone())] {
        let request = RegisterRequest {
            claim: Claim {
                pod: pod.uid.to_string(),
                ..Claim::default()
            },
            caller: None,
            origin,
            ..node.request(&pod)
        };
        node.handle.register(request).await.unwrap();
        assert_eq!(node.handle.view().instances[&pod.uid].origin, pod.origin);
        assert_eq!(node.model.cgroup(conmon).unwrap(), monitor);
        node.handle.deregister(pod.uid.clone()).await.unwrap();
    }
    let request = RegisterRequest {
        caller: None,
        origin: Some(monitor),
        ..node.request(&pod)
    };
    assert_eq!(kind(node.handle.register(request).await), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_container_with_processes_beside_its_subgroup_is_refused() {
    let mut node = Node::new();
    let pod = node.pod_by(Runtime::Crun, 1, "2-3");
    let beside = scope_of(&pod).child("crun-exec");
    node.model.create(&beside).unwrap();
    let stray = node.model.spawn(pod.init, "sh").unwrap();
    node.model.write(&beside, File::Procs, &stray.to_string()).unwrap();
    assert_eq!(kind(node.register(&pod).await), ErrorKind::InvalidArgument);
    node.model.end(stray).unwrap();
    node.register(&pod).await.unwrap();
    node.check().await;
}
