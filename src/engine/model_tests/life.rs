//! An instance's life, and several of them.

use std::fs;

use super::*;

#[tokio::test]
async fn registration_moves_everything_but_the_anchor_into_float() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    let slice = pod.origin.parent().unwrap();
    node.model.meddle(&slice, File::PidsMax, "100").unwrap();
    node.model.pin(pod.other, &cpus("2")).unwrap();
    let (uid, cgroup) = node.register(&pod).await.unwrap();
    assert_eq!((uid, cgroup), (pod.uid.clone(), scope(&pod)));
    assert_eq!(node.phase(&pod), Some("waiting"));
    assert_eq!(node.model.cgroup(pod.anchor).unwrap(), pod.origin);
    for pid in [pod.init, pod.other] {
        assert_eq!(node.model.cgroup(pid).unwrap(), float(&pod));
        assert_eq!(node.model.affinity(pid).unwrap(), cpus("0-1,4-7"));
    }
    assert_eq!(node.model.mask(pod.other), cpus("0-7"), "the old affinity is gone");
    let limits = node.model.unit_limits(&pod.uid.scope()).unwrap();
    assert_eq!(limits.pids_max, Some(100), "the pod's, not the container's");
    assert_eq!(node.read(&scope(&pod), File::Threads), "", "the holder ended");
    node.check().await;
}

#[tokio::test]
async fn attach_isolates_every_vcpu_thread_on_a_cpu_of_its_own() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    assert_eq!(node.phase(&pod), Some("isolated"));
    assert_eq!(node.model.affinity(qemu.vcpus[0]).unwrap(), cpus("2"));
    assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    assert_eq!(node.model.cgroup(qemu.io).unwrap(), float(&pod));
    assert_eq!(node.read(&pod.origin, File::Cpus), "2-3");
    assert_eq!(node.read(&pod.origin, File::CpusEffective), "0-1,4-7");
    node.check().await;
}

#[tokio::test]
async fn asking_again_answers_the_same_and_moves_nothing() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let threads: Vec<_> = node.model.tasks();
    let placed = node.attach(&pod, &qemu).await.unwrap();
    let cpu_of: Vec<_> = placed.iter().map(|placed| (placed.thread, placed.cpu)).collect();
    assert_eq!(cpu_of, [(qemu.vcpus[0], Some(2)), (qemu.vcpus[1], Some(3))]);
    let again = node.register(&pod).await.unwrap();
    assert_eq!(again, (pod.uid.clone(), scope(&pod)));
    assert_eq!(node.model.tasks(), threads);
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
}

#[tokio::test]
async fn deregistration_gives_everything_back() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    assert!(!node.model.exists(&scope(&pod)));
    for tid in [pod.init, pod.anchor, pod.other, qemu.pid, qemu.vcpus[1]] {
        assert_eq!(node.model.cgroup(tid).unwrap(), pod.origin);
        assert_eq!(node.model.affinity(tid).unwrap(), cpus("2-3"));
    }
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "");
    assert_eq!(node.phase(&pod), None);
    node.check().await;
    node.register(&pod).await.unwrap();
}

#[tokio::test]
async fn deregistration_waits_for_a_systemd_that_takes_its_time() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    node.model.set_scope_removal(stelia_testnode::ScopeRemoval::OnCall);
    let (handle, uid) = (node.handle.clone(), pod.uid.clone());
    let leaving = tokio::spawn(async move { handle.deregister(uid).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!leaving.is_finished() && node.model.exists(&scope(&pod)));
    node.model.settle();
    leaving.await.unwrap().unwrap();
    node.check().await;
}

#[tokio::test]
async fn a_scope_that_systemd_leaves_behind_is_removed_all_the_same() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    // It never tries again.
    node.model.set_scope_removal(stelia_testnode::ScopeRemoval::OnCall);
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    assert!(!node.model.exists(&scope(&pod)));
    node.check().await;
    node.register(&pod).await.unwrap();
    // Nor when a container dies, with everything still in the scope.
    node.model.kill_pod(&pod).unwrap();
    let gone = node.model.clone();
    let gone = async {
        while gone.exists(&scope(&pod)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    node.check().await;
}

#[tokio::test]
async fn a_dead_containers_cpus_are_everyones_without_anybody_asking() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let mut views = node.handle.watch();
    node.model.kill_pod(&pod).unwrap();
    let gone = views.wait_for(|view| view.instances.is_empty() && view.slice_exclusive.is_empty());
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .unwrap()
        .unwrap();
    let everyone = CgroupPath::root().child("system.slice");
    assert_eq!(node.read(&everyone, File::CpusEffective), "0-7");
    node.check().await;
}

#[tokio::test]
async fn a_restarted_daemon_adopts_and_touches_nothing() {
    let mut node = Node::new();
    let (first, _) = node.isolated(1, "2-3").await;
    let second = node.pod(2, "4");
    node.register(&second).await.unwrap();
    node.reconcile().await;
    let (changes, tasks) = (node.model.changes(), node.model.tasks());
    node.restart().await;
    assert_eq!(node.reconcile().await.did.steps, 0);
    assert_eq!(node.model.changes(), changes);
    assert_eq!(node.model.tasks(), tasks);
    assert_eq!(node.phase(&first), Some("isolated"));
    assert_eq!(node.phase(&second), Some("waiting"));
    node.check().await;
}

#[tokio::test]
async fn two_instances_share_no_cpu_and_neither_floats_on_the_others() {
    let mut node = Node::new();
    let (first, qemu) = node.isolated(1, "2-3").await;
    let (second, _) = node.isolated(2, "4-5").await;
    assert_eq!(node.read(&float(&first), File::Cpus), "0-1,6-7");
    assert_eq!(node.read(&float(&second), File::Cpus), "0-1,6-7");
    assert_eq!(node.read(&CgroupPath::root(), File::CpusIsolated), "2-5");
    node.check().await;
    node.model.kill_pod(&second).unwrap();
    node.checkpoint.release(&second.uid).unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&float(&first), File::Cpus), "0-1,4-7");
    assert_eq!(node.model.affinity(qemu.vcpus[0]).unwrap(), cpus("2"));
    node.check().await;
}

#[tokio::test]
async fn an_older_kernel_contains_instead_and_gives_the_hosts_units_back() {
    let mut node = Node::of(Kernel::V6_1);
    let (pod, qemu) = node.isolated(1, "2-3").await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    let problems = node.handle.view().problems();
    assert!(problems.iter().any(|one| one.code == ReasonCode::OldKernel));
    for unit in ["system.slice", "init.scope"] {
        let unit = CgroupPath::root().child(unit);
        assert_eq!(node.read(&unit, File::Cpus), "0-1,4-7", "{unit}");
    }
    let shell = node.model.spawn(pod.anchor, "sh").unwrap();
    node.reconcile().await;
    assert_eq!(node.model.cgroup(shell).unwrap(), float(&pod));
    node.model.kill_pod(&pod).unwrap();
    node.reconcile().await;
    let unit = CgroupPath::root().child("system.slice");
    assert_eq!(node.read(&unit, File::CpusEffective), "0-7");
}

#[tokio::test]
async fn more_vcpus_than_cpus_share_a_root_partition() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, 3).unwrap();
    let placed = node.attach(&pod, &qemu).await.unwrap();
    assert!(placed.iter().all(|placed| placed.cpu.is_none()));
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "root");
    assert_eq!(node.model.affinity(qemu.vcpus[2]).unwrap(), cpus("2-3"));
    let everyone = CgroupPath::root().child("system.slice");
    assert_eq!(node.read(&everyone, File::CpusEffective), "0-1,4-7");
}

#[tokio::test]
async fn the_new_owner_of_cpus_that_kubelet_took_from_a_living_vm_gets_them_isolated() {
    let mut node = Node::new();
    let (old, qemu) = node.isolated(1, "2-3").await;
    node.checkpoint.release(&old.uid).unwrap();
    let (new, _) = node.isolated(2, "3").await;
    assert_eq!(
        (node.phase(&old), node.phase(&new)),
        (Some("evicted"), Some("isolated"))
    );
    assert_eq!(node.model.cgroup(qemu.vcpus[1]).unwrap(), float(&old));
    assert_eq!(node.read(&CgroupPath::root(), File::CpusIsolated), "3");
    node.check().await;
}

#[tokio::test]
async fn a_hot_plugged_vcpu_joins_and_the_others_stay_where_they_are() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-4");
    node.register(&pod).await.unwrap();
    let mut qemu = node.started(&pod, 2).await;
    let late = node.model.spawn_thread(qemu.pid, "CPU 2/KVM").unwrap();
    qemu.vcpus.push(late);
    let placed = node.attach(&pod, &qemu).await.unwrap();
    let cpus_of: Vec<_> = placed.iter().map(|placed| (placed.thread, placed.cpu)).collect();
    let expected = [(qemu.vcpus[0], Some(2)), (qemu.vcpus[1], Some(3)), (late, Some(4))];
    assert_eq!(cpus_of, expected);
    node.check().await;
    // And unplugged again: its thread ended before the new list came.
    node.model.end(late).unwrap();
    qemu.vcpus.pop();
    let since = |node: &Node| node.handle.view().instances[&pod.uid].isolated_us;
    let before = since(&node);
    let placed = node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(placed.len(), 2);
    assert_eq!(since(&node), before, "the promise was never interrupted");
    node.check().await;
}

#[tokio::test]
async fn an_io_thread_gets_a_cpu_that_the_vcpus_leave_over_and_floats_when_there_is_none() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-4");
    node.register(&pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    let mut request = node.attach_request(&pod, &qemu);
    request.iothreads = vec![*node.model.numbers(qemu.io).unwrap().last().unwrap()];
    let placed = node.handle.attach(request).await.unwrap();
    let cpus_of: Vec<_> = placed
        .iter()
        .map(|placed| (u32::from(placed.role), placed.thread, placed.cpu))
        .collect();
    let expected = [
        (0, qemu.vcpus[0], Some(2)),
        (1, qemu.vcpus[1], Some(3)),
        (1 << 31, qemu.io, Some(4)),
    ];
    assert_eq!(cpus_of, expected);
    assert_eq!(node.model.cgroup(qemu.io).unwrap(), vcpu(&pod));
    assert_eq!(node.phase(&pod), Some("isolated"));
    // With none left over it is as if it had not been given.
    let third = node.model.spawn_thread(qemu.pid, "CPU 2/KVM").unwrap();
    let mut grown = qemu.clone();
    grown.vcpus.push(third);
    let mut request = node.attach_request(&pod, &grown);
    request.iothreads = vec![*node.model.numbers(qemu.io).unwrap().last().unwrap()];
    let placed = node.handle.attach(request).await.unwrap();
    assert_eq!(placed.len(), 3);
    assert_eq!(node.model.cgroup(qemu.io).unwrap(), float(&pod));
    assert_eq!(node.model.affinity(third).unwrap(), cpus("4"));
    node.check().await;
}

/// The call looks at the VM before the turn that would, and finds that its cgroup is gone.
#[tokio::test]
async fn a_vm_that_an_attach_finds_gone_is_shown_no_more() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let request = node.attach_request(&pod, &qemu);
    node.model.kill_pod(&pod).unwrap();
    let refusal = node.handle.attach(request).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NoSuchInstance);
    node.quiet().await;
    assert_eq!(node.phase(&pod), None);
}

#[tokio::test]
async fn what_of_the_node_could_not_be_read_is_read_again_soon() {
    let mut node = Node::new();
    node.settings.audit_interval = Duration::from_secs(3600);
    node.restart().await;
    node.catch_up().await;
    let online = node.model.system().sys.join("devices/system/cpu/online");
    fs::remove_file(&online).unwrap();
    node.catch_up().await;
    assert_eq!(node.handle.view().topology.online(), cpus("0-7"));
    fs::write(&online, "0-6\n").unwrap();
    node.until("the topology is read", |node| {
        node.handle.view().topology.online() == cpus("0-6")
    })
    .await;
}
