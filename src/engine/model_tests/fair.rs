//! One tenant's calls, one broken instance, a systemd that hangs: other instances do not wait for them.

use std::time::Instant;

use stelia_koordinator::allocator::{AllocationRequest, CpuSource, Qos};

use super::*;

impl Node {
    /// Wait until this holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A plain pod that kubelet gives a CPU: floats leave it.
    fn admit_plain(&mut self, number: u32, list: &str) {
        self.checkpoint.admit(&uid(number), "web", &cpus(list)).unwrap();
    }
}

#[tokio::test]
async fn a_fork_chain_is_caught_when_its_instance_leaves() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let forks = node.model.spawn(pod.init, "sh").unwrap();
    let chain = node.model.start_fork_chain(forks, 1).unwrap();
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    assert!(!node.model.exists(&scope(&pod)));
    let caught = node.model.chain_task(chain).unwrap();
    assert_eq!(node.model.cgroup(caught).unwrap(), pod.origin);
    assert_eq!(node.model.cgroup(pod.init).unwrap(), pod.origin);
}

#[tokio::test]
async fn a_task_that_does_not_freeze_leaves_all_the_same() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let sleeps = node.model.spawn(pod.init, "nfs").unwrap();
    node.model.set_unfreezable(sleeps).unwrap();
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    assert!(!node.model.exists(&scope(&pod)));
    assert_eq!(node.model.cgroup(sleeps).unwrap(), pod.origin);
    node.check().await;
}

#[tokio::test]
async fn several_deregistrations_of_one_pod_are_one() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let calls = (0..20).map(|_| {
        let (handle, uid) = (node.handle.on_behalf_of(&pod.uid), pod.uid.clone());
        tokio::spawn(async move { handle.deregister(uid).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    node.check().await;
}

#[tokio::test]
async fn an_instance_that_never_converges_keeps_nobody_from_following_kubelet() {
    let mut node = Node::new();
    let (broken, qemu) = node.isolated(1, "2").await;
    let (other, _) = node.isolated(2, "5").await;
    // Each thread in `vcpu/` makes the next and ends: a thread that is listed there is gone when it is to be moved.
    let thread = node.model.spawn_thread(qemu.vcpus[0], "chain").unwrap();
    node.model.start_thread_chain(thread, 1).unwrap();
    for _ in 0..4 {
        let report = node.handle.audit(broken.uid.clone()).await.unwrap();
        assert!(
            report
                .degraded
                .iter()
                .any(|(_, reason)| reason.text.contains("8 turns")),
            "{report:?}"
        );
    }
    for number in [7, 6] {
        node.admit_plain(number, &number.to_string());
        let left = |node: &Node| !cpus(&node.read(&float(&other), File::Cpus)).contains(number);
        node.until("the other's float follows", left).await;
        let left = |node: &Node| !cpus(&node.read(&float(&broken), File::Cpus)).contains(number);
        node.until("its own float follows", left).await;
    }
    // It rests, and nothing wakes anybody meanwhile.
    let report = node.handle.audit(other.uid.clone()).await.unwrap();
    assert_eq!((report.did.steps, report.degraded), (0, vec![]));
}

#[tokio::test]
async fn a_systemd_that_hangs_delays_who_needs_it_and_loses_nothing() {
    let mut node = Node::new();
    let (one, _) = node.isolated(1, "2-3").await;
    let pod = node.pod(2, "4");
    node.model.hang_systemd(true);
    let request = node.request(&pod);
    let handle = node.handle.on_behalf_of(&pod.uid);
    let registering = tokio::spawn(async move { handle.register(request).await });
    // Nobody else gets its CPUs, and everybody else goes on.
    node.admit_plain(7, "7");
    let left = |node: &Node| !cpus(&node.read(&float(&one), File::Cpus)).contains(7);
    node.until("a float follows kubelet", left).await;
    let report = node.handle.audit(one.uid.clone()).await.unwrap();
    assert_eq!(report.degraded, []);
    assert!(!registering.is_finished());
    let told = |node: &Node| {
        let view = node.handle.view();
        let problem = view.systemd_problem.as_deref();
        problem.is_some_and(|problem| problem.contains("PID 1") && problem.contains(&pod.uid.scope()))
    };
    node.until("it is said by name", told).await;
    node.model.hang_systemd(false);
    registering.await.unwrap().unwrap();
    node.until("it is no longer said", |node| {
        node.handle.view().systemd_problem.is_none()
    })
    .await;
    assert_eq!(node.phase(&pod), Some("waiting"));
    node.check().await;
}

#[tokio::test]
async fn a_registration_waits_for_kubelets_second_write_and_is_woken_by_it() {
    let mut node = Node::new();
    let pod = node.plain_pod(1, "2-3");
    let request = RegisterRequest {
        timeout: Duration::from_secs(3600),
        ..node.request(&pod)
    };
    let handle = node.handle.on_behalf_of(&pod.uid);
    let registering = tokio::spawn(async move { handle.register(request).await });
    // kubelet writes about other pods: no waiting registration is tried again for that.
    node.quiet().await;
    node.admit_plain(7, "7");
    node.quiet().await;
    node.model.record_calls(true);
    node.admit_plain(6, "6");
    node.quiet().await;
    let calls = node.model.calls();
    assert!(
        !calls.iter().any(|call| call.contains(pod.origin.as_str())),
        "{calls:?}"
    );
    assert!(!registering.is_finished());
    node.checkpoint.admit(&pod.uid, "vm", &cpus("2-3")).unwrap();
    registering.await.unwrap().unwrap();
    node.check().await;
}

#[tokio::test]
async fn a_pods_refused_calls_leave_another_its_turn() {
    let mut node = Node::new();
    let rude = node.plain_pod(8, "0-7");
    let pod = node.pod(1, "2-3");
    let handle = node.handle.on_behalf_of(&rude.uid);
    let asks = |anchor| RegisterRequest {
        anchor,
        ..node.request(&rude)
    };
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (handle, request) = (handle.clone(), asks(None));
            tokio::spawn(async move { handle.register(request).await })
        })
        .collect();
    let began = node.model.counts();
    node.register(&pod).await.unwrap();
    let meanwhile = node.model.counts().since(began);
    // Each of the other's steps has at most one of those calls before it: not all 200.
    assert!(meanwhile.reads < 200 * 15, "{meanwhile:?}");
    let mut calls = calls.into_iter();
    // The others wait: a pod may call so often in a row.
    for call in calls.by_ref().take(10) {
        assert_eq!(kind(call.await.unwrap()), ErrorKind::NoAnchor);
    }
    calls.for_each(|call| call.abort());
    node.check().await;
}

#[tokio::test]
async fn who_restricts_more_pods_than_the_slice_has_room_for_keeps_what_they_had_with_them() {
    let mut node = allocator::node().await;
    let vm = node.limited(1, 2);
    let request = AllocationRequest {
        qos: Some(Qos::Lsr),
        ..AllocationRequest::default()
    };
    node.ask(&vm, request).await.unwrap();
    let plain: Vec<Pod> = (100..400).map(|number| node.plain_pod(number, "")).collect();
    node.started(&vm, 2).await;
    assert_eq!(node.phase(&vm), Some("pinned"));
    let slice = |pod: &Pod| pod.origin.parent().unwrap();
    let own = node.exclusive(&vm);
    for pod in &plain {
        assert!(cpus(&node.read(&slice(pod), File::CpusEffective)).is_disjoint(&own));
    }
    // Neither the slice nor any pod has more attributes than the kernel keeps; more than 128 pods have a record.
    let attributes = |cgroup: &CgroupPath| node.handle.system().cgroups.attributes(cgroup).unwrap().len();
    assert!(attributes(&CgroupPath::slice()) < 128);
    assert!(plain.iter().filter(|pod| attributes(&slice(pod)) > 0).count() > 128);
    node.restart().await;
    // Each gets its former CPUs back, with either `cpu-source`.
    node.settings.policies.allocator.source = CpuSource::Kubelet;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.handle.deregister(vm.uid.clone()).await.unwrap();
    for pod in &plain {
        assert_eq!(node.read(&slice(pod), File::CpusEffective), "0-7");
    }
    assert!(plain.iter().all(|pod| {
        let left = node.handle.system().cgroups.attributes(&slice(pod)).unwrap();
        left.is_empty()
    }));
}

#[tokio::test]
async fn who_waits_too_long_for_an_instance_to_be_gone_is_told_that_it_goes_on() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    // Every write after that of the intent fails.
    node.model.cut_after(1);
    let refusal = node.handle.deregister(pod.uid.clone()).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Busy);
    assert!(refusal.text.contains("goes on leaving"), "{refusal}");
    node.restart().await;
    node.until("it is gone", |node| !node.model.exists(&scope(&pod))).await;
    node.quiet().await;
    node.check().await;
}

#[tokio::test]
async fn a_systemd_that_hangs_keeps_nobody_from_leaving() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    // It neither removes the empty scope nor answers who asks it to.
    node.model.set_scope_removal(stelia_testnode::ScopeRemoval::OnCall);
    node.model.hang_systemd(true);
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    assert!(!node.model.exists(&scope(&pod)));
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "");
    node.model.hang_systemd(false);
    node.model.settle();
    node.quiet().await;
    node.check().await;
}

#[tokio::test]
async fn a_container_that_returns_while_its_former_unit_is_being_stopped_waits_for_that() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    // systemd leaves the empty scope, so it is removed for it; that its unit is to be stopped, it hears too late.
    node.model.set_scope_removal(stelia_testnode::ScopeRemoval::OnCall);
    node.model.hang_systemd(true);
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    let request = RegisterRequest {
        timeout: Duration::from_secs(3600),
        ..node.request(&pod)
    };
    let handle = node.handle.on_behalf_of(&pod.uid);
    node.model.record_calls(true);
    let returning = tokio::spawn(async move { handle.register(request).await });
    node.quiet().await;
    let begun = node.model.calls().iter().any(|call| call == "start a holder");
    assert!(!returning.is_finished() && !begun);
    node.model.hang_systemd(false);
    returning.await.unwrap().unwrap();
    node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
}

#[tokio::test]
async fn a_reload_applies_kubelets_root_and_the_audits_interval() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let other = node.directory.path().join("other");
    let mut moved = Checkpoint::create(&other, &cpus("0-7")).unwrap();
    moved.admit(&pod.uid, "vm", &cpus("2-3")).unwrap();
    moved.admit(&uid(7), "web", &cpus("7")).unwrap();
    let former = node.settings.clone();
    node.settings.kubelet_root = other;
    node.settings.audit_interval = Duration::from_secs(1);
    node.handle.reload(node.settings.clone()).await.unwrap();
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,4-6");
    // The new root is watched, the old one no more.
    node.checkpoint.admit(&uid(6), "web", &cpus("6")).unwrap();
    moved.admit(&uid(5), "web", &cpus("5")).unwrap();
    node.until("the new root's file is followed", |node| {
        node.read(&float(&pod), File::Cpus) == "0-1,4,6"
    })
    .await;
    // Nothing tells of this but the audit, and it comes by every second now.
    node.model.meddle(&vcpu(&pod), File::Partition, "member").unwrap();
    let right = |node: &Node| node.read(&vcpu(&pod), File::Partition) == "isolated";
    node.until("the audit came by", right).await;
    node.handle.reload(former).await.unwrap();
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,4-5,7");
}

/// Orders to steliad-quiet, accounts and looks at containers wait for each other on the runtime's few threads.
#[test]
fn a_registration_does_not_wait_for_threads_that_other_work_blocks() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    runtime.block_on(async {
        let other_work = tokio::task::spawn_blocking(move || blocked.recv());
        let mut node = Node::new();
        let (pod, _) = node.isolated(1, "2-3").await;
        assert_eq!(node.phase(&pod), Some("isolated"));
        assert!(!other_work.is_finished());
        release.send(()).unwrap();
        other_work.await.unwrap().unwrap();
    });
}

/// How often the daemon asks the model about the victim, and about the rude pod, during a start of the victim, while the rude pod
/// calls as fast as it is answered. Whatever else runs on the host only gives the rude pod more time, so the start of several
/// counts that has the least about the rude pod.
async fn asked_during_starts<F, C>(node: &Node, rude: &Pod, victim: &Pod, qemu: &Qemu, call: C) -> [usize; 2]
where
    F: Future<Output = ()> + Send,
    C: Fn(Handle) -> F + Clone + Send + 'static,
{
    let stop = CancellationToken::new();
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let (handle, stop, call) = (node.handle.on_behalf_of(&rude.uid), stop.clone(), call.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    call(handle.clone()).await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    // The rude pod has made the engine do much by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut counts = Vec::new();
    // The least of them: while the host runs other tests, more is done for the rude pod whenever the victim waits for systemd.
    for _ in 0..12 {
        node.model.record_calls(true);
        node.register(victim).await.unwrap();
        node.attach(victim, qemu).await.unwrap();
        node.handle.deregister(victim.uid.clone()).await.unwrap();
        let calls = node.model.calls();
        node.model.record_calls(false);
        counts.push([victim, rude].map(|pod| {
            let of = |call: &&String| call.contains(pod.uid.as_str()) || call.contains(pod.origin.name());
            calls.iter().filter(of).count()
        }));
    }
    stop.cancel();
    for caller in callers {
        caller.await.unwrap();
    }
    counts.into_iter().min_by_key(|[_, rude]| *rude).unwrap()
}

#[tokio::test]
async fn a_pod_that_audits_itself_beside_chains_adds_little_to_another_pods_start() {
    for chain in ["none", "processes", "threads"] {
        let mut node = Node::new();
        let (rude, rude_qemu) = node.isolated(8, "5").await;
        let victim = node.pod(1, "2-3");
        let qemu = node.model.add_qemu(victim.init, 2).unwrap();
        match chain {
            "processes" => {
                let first = node.model.spawn(rude.init, "sh").unwrap();
                node.model.start_fork_chain(first, 1).unwrap();
            }
            "threads" => {
                let first = node.model.spawn_thread(rude_qemu.vcpus[0], "chain").unwrap();
                node.model.start_thread_chain(first, 1).unwrap();
            }
            _ => {}
        }
        let uid = rude.uid.clone();
        let audit = move |handle: Handle| {
            let uid = uid.clone();
            async move { drop(handle.audit(uid).await) }
        };
        let [own, others] = asked_during_starts(&node, &rude, &victim, &qemu, audit).await;
        println!("chain of {chain}: {own} calls about the victim, {others} about the rude pod");
        assert!(others * 2 < own, "chain of {chain}: {others} of {own}");
    }
}

#[tokio::test]
async fn a_pod_that_registers_and_leaves_all_the_time_adds_little_to_another_pods_start() {
    let mut node = Node::new();
    let rude = node.pod(8, "5");
    let victim = node.pod(1, "2-3");
    let qemu = node.model.add_qemu(victim.init, 2).unwrap();
    let first = node.model.spawn(rude.init, "sh").unwrap();
    node.model.start_fork_chain(first, 1).unwrap();
    let (model, pod) = (node.model.clone(), rude.clone());
    let cycle = move |handle: Handle| {
        let (uid, request) = (pod.uid.clone(), request_of(&model, &pod));
        async move {
            let _ = handle.register(request).await;
            let _ = handle.deregister(uid).await;
        }
    };
    let [own, others] = asked_during_starts(&node, &rude, &victim, &qemu, cycle).await;
    println!("{own} calls about the victim, {others} about the rude pod");
    // By then it may not register, so it is not an instance.
    assert!(others * 20 < own, "{others} of {own}");
}

#[tokio::test]
async fn a_pod_that_registers_too_often_waits_and_then_registers() {
    let mut node = Node::new();
    let (pod, other) = (node.pod(8, "5"), node.pod(1, "2-3"));
    let handle = node.handle.on_behalf_of(&pod.uid);
    let began = Instant::now();
    for _ in 0..2 {
        handle.register(node.request(&pod)).await.unwrap();
        handle.deregister(pod.uid.clone()).await.unwrap();
    }
    let request = node.request(&pod);
    let third = tokio::spawn(async move { handle.register(request).await });
    let others = node.handle.on_behalf_of(&other.uid);
    others.register(node.request(&other)).await.unwrap();
    node.quiet().await;
    assert!(!third.is_finished() && !node.model.exists(&scope(&pod)));
    third.await.unwrap().unwrap();
    // One registration in 10 s.
    assert!(began.elapsed() >= Duration::from_secs(10));
    node.check().await;
}

#[tokio::test]
async fn a_registration_that_waits_in_vain_keeps_no_other_call_of_its_pod_waiting() {
    let mut node = Node::new();
    let pod = node.pod(8, "5");
    let handle = node.handle.on_behalf_of(&pod.uid);
    let began = Instant::now();
    for _ in 0..2 {
        handle.register(node.request(&pod)).await.unwrap();
        handle.deregister(pod.uid.clone()).await.unwrap();
    }
    let (request, caller) = (node.request(&pod), handle.clone());
    let third = tokio::spawn(async move { caller.register(request).await });
    node.quiet().await;
    third.abort();
    assert!(third.await.unwrap_err().is_cancelled());
    let refusal = handle.deregister(pod.uid.clone()).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NoSuchInstance);
    // By then it might register again.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_pod_that_is_held_back_has_its_turn_although_the_other_start_hangs() {
    let mut node = Node::new();
    let (rude, _) = node.isolated(8, "5").await;
    for _ in 0..100 {
        node.handle.audit(rude.uid.clone()).await.unwrap();
    }
    let victim = node.pod(1, "2-3");
    node.model.hang_systemd(true);
    let (handle, request) = (node.handle.on_behalf_of(&victim.uid), node.request(&victim));
    let registering = tokio::spawn(async move { handle.register(request).await });
    node.quiet().await;
    let report = node
        .handle
        .on_behalf_of(&rude.uid)
        .audit(rude.uid.clone())
        .await
        .unwrap();
    assert_eq!(report.degraded, []);
    assert!(!registering.is_finished());
    node.model.hang_systemd(false);
    registering.await.unwrap().unwrap();
    node.check().await;
}
