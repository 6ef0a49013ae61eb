//! The daemon is killed at every single change it makes; what the next one finds it can go on from.

use stelia_testnode::ScopeRemoval;

use super::*;

/// Run `call` with the daemon cut off after `changes` changes, then start a new daemon. Whether the call went through.
pub(super) async fn killed<T>(node: &mut Node, changes: u32, call: impl Future<Output = Result<T, Error>>) -> bool {
    let model = node.model.clone();
    let cut = async {
        while !model.is_cut() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    node.model.cut_after(changes);
    let done = tokio::select! {
        result = call => result.is_ok(),
        () = cut => false,
    };
    node.running.abort();
    let _ = (&mut node.running).await;
    (node.handle, node.cancel, node.running) = start(&node.model, &node.settings);
    node.reconcile().await;
    node.check().await;
    done
}

#[tokio::test]
async fn a_registration_cut_off_anywhere_can_be_asked_for_again() {
    for changes in 0.. {
        let mut node = Node::new();
        let pod = node.pod(1, "2-3");
        node.model.pin(pod.other, &cpus("2")).unwrap();
        let request = node.request(&pod);
        let handle = node.handle.clone();
        let call = handle.register(request);
        let done = killed(&mut node, changes, call).await;
        node.register(&pod).await.unwrap();
        assert_eq!(node.phase(&pod), Some("waiting"), "cut after {changes}");
        assert_eq!(node.model.cgroup(pod.init).unwrap(), float(&pod), "cut after {changes}");
        assert_eq!(
            node.model.cgroup(pod.anchor).unwrap(),
            pod.origin,
            "cut after {changes}"
        );
        node.check().await;
        if done {
            assert!(changes > 20, "all of it in {changes} changes");
            break;
        }
    }
}

#[tokio::test]
async fn an_attach_cut_off_anywhere_can_be_asked_for_again() {
    for changes in 0.. {
        let mut node = Node::new();
        let pod = node.pod(1, "2-3");
        node.register(&pod).await.unwrap();
        let qemu = node.model.add_qemu(pod.init, 2).unwrap();
        let request = node.attach_request(&pod, &qemu);
        let handle = node.handle.clone();
        let call = handle.attach(request);
        let done = killed(&mut node, changes, call).await;
        node.attach(&pod, &qemu).await.unwrap();
        assert_eq!(node.phase(&pod), Some("isolated"), "cut after {changes}");
        node.check().await;
        if done {
            assert!(changes > 8, "all of it in {changes} changes");
            break;
        }
    }
}

#[tokio::test]
async fn a_deregistration_cut_off_anywhere_ends_by_itself() {
    for changes in 0.. {
        let mut node = Node::new();
        let (pod, qemu) = node.isolated(1, "2-3").await;
        let handle = node.handle.clone();
        let call = handle.deregister(pod.uid.clone());
        let done = killed(&mut node, changes, call).await;
        if changes > 0 {
            assert!(!node.model.exists(&scope(&pod)), "cut after {changes}");
            assert_eq!(node.model.unit_limits(&pod.uid.scope()), None, "cut after {changes}");
            let at = node.model.cgroup(qemu.vcpus[0]).unwrap();
            assert_eq!(at, pod.origin, "cut after {changes}");
            assert_eq!(node.model.mask(qemu.vcpus[0]), cpus("0-7"), "cut after {changes}");
        }
        if done {
            assert!(changes > 8, "all of it in {changes} changes");
            break;
        }
    }
}

#[tokio::test]
async fn a_scope_whose_cgroup_the_former_daemon_had_removed_is_stopped() {
    let mut node = Node::new();
    let unit = uid(1).scope();
    let system = node.model.system();
    let holder = system.holders.start().unwrap();
    let (limits, devices) = (Limits::default(), stelia_kernel::systemd::Devices::default());
    let started = system.systemd.start_scope(
        stelia_kernel::systemd::Listening::default(),
        &unit,
        "",
        holder.pid(),
        &limits,
        &devices,
    );
    started.await.unwrap();
    node.model.set_scope_removal(ScopeRemoval::OnCall);
    drop(holder);
    system.cgroups.remove(&CgroupPath::slice().child(&unit)).unwrap();
    assert!(node.model.unit_limits(&unit).is_some());
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.model.unit_limits(&unit), None);
}
