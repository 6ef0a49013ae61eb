//! Calls that must be refused, and change nothing.

use stelia_kernel::vmm_processes::MAX_PROCESS_THREADS;

use super::*;

/// Every refusal leaves the node as it was.
async fn refused<T: std::fmt::Debug>(node: &Node, call: impl Future<Output = Result<T, Error>>, wanted: ErrorKind) {
    let (changes, tasks) = (node.model.changes(), node.model.tasks());
    assert_eq!(kind(call.await), wanted);
    assert_eq!(
        (node.model.changes(), node.model.tasks()),
        (changes, tasks),
        "{wanted:?}"
    );
}

#[tokio::test]
async fn a_caller_that_is_no_container_or_speaks_of_another_pod_is_refused() {
    let mut node = Node::new();
    let (pod, other) = (node.pod(1, "2-3"), node.pod(2, "4"));
    let mut request = node.request(&pod);
    request.caller = Some((1, Peer::of(node.model.cgroup(1).unwrap())));
    refused(&node, node.handle.register(request), ErrorKind::NotPermitted).await;
    let mut request = node.request(&pod);
    request.claim.pod = other.uid.to_string();
    refused(&node, node.handle.register(request), ErrorKind::NoSuchPod).await;
    let mut request = node.request(&pod);
    request.claim.cpuset = "4".into();
    refused(&node, node.handle.register(request), ErrorKind::CpusetMismatch).await;
    let mut request = node.request(&pod);
    request.claim.pod = "../..".into();
    refused(&node, node.handle.register(request), ErrorKind::InvalidArgument).await;
    node.check().await;
}

#[tokio::test]
async fn an_anchor_must_be_a_process_that_stays_in_the_container() {
    let mut node = Node::new();
    let (pod, other) = (node.pod(1, "2-3"), node.pod(2, "4"));
    let with = |anchor| RegisterRequest {
        anchor,
        ..node.request(&pod)
    };
    refused(&node, node.handle.register(with(None)), ErrorKind::NoAnchor).await;
    for pid in [pod.init, other.anchor, 1] {
        let anchor = Some(node.model.pidfd(pid).unwrap());
        refused(&node, node.handle.register(with(anchor)), ErrorKind::NoAnchor).await;
    }
    let ended = node.model.spawn(pod.init, "sleep").unwrap();
    let anchor = Some(node.model.pidfd(ended).unwrap());
    node.model.end(ended).unwrap();
    refused(&node, node.handle.register(with(anchor)), ErrorKind::NoAnchor).await;
    let file = Some(std::fs::File::open("/dev/null").unwrap().into());
    refused(&node, node.handle.register(with(file)), ErrorKind::NoAnchor).await;
    node.check().await;
}

#[tokio::test]
async fn a_pod_that_kubelet_gave_no_cpus_or_others_is_refused() {
    let mut node = Node::new();
    let none = node.plain_pod(1, "0-7");
    refused(&node, node.register(&none), ErrorKind::NotGuaranteed).await;
    node.checkpoint.admit(&uid(2), "vm", &cpus("4-5")).unwrap();
    let differs = node.plain_pod(2, "4");
    refused(&node, node.register(&differs), ErrorKind::CpusetMismatch).await;
    let pod = node.pod(3, "2-3");
    node.checkpoint.write_bytes(b"{").unwrap();
    refused(&node, node.register(&pod), ErrorKind::KubeletStateUnusable).await;
    node.checkpoint.write().unwrap();
    node.register(&pod).await.unwrap();
    node.check().await;
}

#[tokio::test]
async fn a_pid_namespace_within_the_containers_own_is_its_own_business_and_one_beside_it_is_not() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    let nested = node.model.spawn_in_namespace(pod.init, "nested").unwrap();
    let stranger = node.pod(2, "4-5");
    let number = stranger.init.to_string();
    node.model.meddle(&pod.origin, File::Procs, &number).unwrap();
    refused(&node, node.register(&pod), ErrorKind::SharedPidNamespace).await;
    node.model.meddle(&stranger.origin, File::Procs, &number).unwrap();
    node.register(&pod).await.unwrap();
    assert_eq!(node.model.cgroup(nested).unwrap(), float(&pod));
    node.check().await;
}

#[tokio::test]
async fn vcpus_that_are_not_this_pods_threads_are_refused() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    refused(&node, node.attach(&pod, &qemu), ErrorKind::NoSuchInstance).await;
    node.register(&pod).await.unwrap();
    let (other, foreign) = node.isolated(2, "4-5").await;

    let mut request = node.attach_request(&pod, &qemu);
    request.vmm = Vmm::Pidfd(node.model.pidfd(foreign.pid).unwrap());
    refused(&node, node.handle.attach(request), ErrorKind::ForeignProcess).await;
    let mut request = node.attach_request(&pod, &qemu);
    request.vcpus[1].thread = *node.model.numbers(pod.other).unwrap().last().unwrap();
    refused(&node, node.handle.attach(request), ErrorKind::ForeignProcess).await;
    let mut request = node.attach_request(&pod, &qemu);
    request.vcpus[1].thread = qemu.vcpus[1]; // the host's number, not the container's
    refused(&node, node.handle.attach(request), ErrorKind::ForeignProcess).await;
    let mut request = node.attach_request(&pod, &qemu);
    request.vcpus[1].thread = request.vcpus[0].thread;
    refused(&node, node.handle.attach(request), ErrorKind::InvalidArgument).await;
    let mut request = node.attach_request(&pod, &qemu);
    request.vcpus[1].vcpu.index = 0;
    refused(&node, node.handle.attach(request), ErrorKind::InvalidArgument).await;
    // What separates names in the record is part of none: the record would not be readable any more.
    for name in ["", "a,b", "a b", "a=b", "a\u{a0}b", "a\0"] {
        let mut request = node.attach_request(&pod, &qemu);
        request.vcpus[1].vcpu.props.insert(name.into(), 1);
        refused(&node, node.handle.attach(request), ErrorKind::InvalidArgument).await;
    }
    let mut request = node.attach_request(&pod, &qemu);
    request.vcpus.clear();
    refused(&node, node.handle.attach(request), ErrorKind::InvalidArgument).await;

    assert_eq!(node.phase(&other), Some("isolated"));
    node.check().await;
}

#[tokio::test]
async fn a_process_with_too_many_threads_is_refused_before_they_are_read() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    for _ in 0..MAX_PROCESS_THREADS {
        node.model.spawn_thread(qemu.pid, "worker").unwrap();
    }
    let before = node.model.counts();
    refused(&node, node.attach(&pod, &qemu), ErrorKind::InvalidArgument).await;
    let reads = node.model.counts().since(before).reads;
    assert!(reads < MAX_PROCESS_THREADS as u64, "{reads} reads");
}

#[tokio::test]
async fn a_container_that_another_program_made_a_partition_is_refused() {
    let mut node = Node::new();
    let pods = [
        (node.pod(1, "2-3"), "2-3"),
        (node.pod_by(Runtime::Crun, 2, "4-5"), "4-5"),
    ];
    for (pod, list) in &pods {
        let scope = stelia_kernel::containers::container_scope(&pod.origin);
        let slice = scope.parent().unwrap();
        for (level, list) in [(slice.parent().unwrap(), "2-5"), (slice, list), (scope.clone(), list)] {
            node.model.meddle(&level, File::CpusExclusive, list).unwrap();
        }
        node.model.meddle(&scope, File::Partition, "isolated").unwrap();
        let error = node.register(pod).await.unwrap_err();
        assert!(error.text.contains("made the container a partition"), "{error:?}");
        assert_eq!((error.kind, error.may_pass), (ErrorKind::Failed, false));
    }
}
