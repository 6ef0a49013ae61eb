//! What others do to an instance behind the daemon's back.

use rstest::rstest;
use stelia_api::reason::joined;

use super::*;

#[rstest]
#[case::float_widened("float", File::Cpus, "0-7")]
#[case::float_narrowed("float", File::Cpus, "0")]
#[case::partition_off("vcpu", File::Partition, "member")]
#[case::load_balanced("vcpu", File::Partition, "root")]
#[case::list_emptied("vcpu", File::CpusExclusive, "")]
#[case::list_narrowed("vcpu", File::CpusExclusive, "2")]
#[case::cpus_narrowed("vcpu", File::Cpus, "2")]
#[tokio::test]
async fn a_changed_file_is_set_right_at_the_next_pass(#[case] leaf: &str, #[case] file: File, #[case] value: &str) {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let path = scope(&pod).child("instance").child(leaf);
    let before = node.read(&path, file);
    let changes = node.model.changes();
    node.model.meddle(&path, file, value).unwrap();
    let report = node.reconcile().await;
    assert!(report.degraded.is_empty(), "{report:?}");
    // By this pass, or by one that an earlier event had asked for.
    assert!(node.model.changes() > changes);
    assert_eq!(node.read(&path, file), before);
    node.check().await;
}

#[tokio::test]
async fn a_float_written_onto_its_own_vcpus_leaves_them_even_while_kubelets_file_is_broken() {
    for value in ["2-3", "2", "5"] {
        let mut node = Node::new();
        let (pod, _) = node.isolated(1, "2-3").await;
        let (other, _) = node.isolated(2, "5").await;
        node.checkpoint.write_bytes(b"{}").unwrap();
        node.model.meddle(&float(&pod), File::Cpus, value).unwrap();
        node.reconcile().await;
        assert_eq!(cpus(&node.read(&float(&pod), File::Cpus)), cpus("0-1,4,6-7"));
        for pod in [&pod, &other] {
            assert_eq!(node.read(&vcpu(pod), File::Partition), "isolated");
        }
        node.check().await;
        // Once kubelet's word counts again it floats where it belongs.
        node.checkpoint.write().unwrap();
        node.reconcile().await;
        node.check().await;
    }
}

#[tokio::test]
async fn the_lists_above_the_partition_are_set_right_too() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    for path in [CgroupPath::slice(), scope(&pod), scope(&pod).child("instance")] {
        node.model.meddle(&path, File::CpusExclusive, "3").unwrap();
        assert!(node.read(&vcpu(&pod), File::Partition).contains("invalid"), "{path}");
        node.reconcile().await;
        node.check().await;
    }
}

#[tokio::test]
async fn what_was_written_while_the_slice_could_not_be_read_is_no_drift() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let slice = CgroupPath::slice();
    node.model.set_unreadable(Some(&slice));
    node.model.kill_pod(&pod).unwrap();
    node.checkpoint.release(&pod.uid).unwrap();
    node.quiet().await;
    assert_eq!(node.read(&slice, File::CpusExclusive), "");
    let drift = async || {
        node.catch_up().await;
        node.handle.view().counters.drift_found
    };
    assert_eq!(drift().await, 0);
    node.model.set_unreadable(None);
    assert_eq!(drift().await, 0);
    // The mark ends with the first look that succeeds.
    node.model.meddle(&slice, File::CpusExclusive, "5").unwrap();
    assert_eq!(drift().await, 1);
    node.check().await;
}

#[tokio::test]
async fn a_late_thread_of_a_vcpu_goes_to_float_and_a_vcpu_that_strayed_comes_back() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let late = node.model.spawn_thread(qemu.vcpus[0], "kvm-nx-lpage").unwrap();
    assert_eq!(node.model.cgroup(late).unwrap(), vcpu(&pod), "inherited");
    node.model
        .meddle(&float(&pod), File::Threads, &qemu.vcpus[1].to_string())
        .unwrap();
    node.reconcile().await;
    assert_eq!(node.model.cgroup(late).unwrap(), float(&pod));
    assert_eq!(node.model.affinity(late).unwrap(), cpus("0-1,4-7"));
    assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    node.check().await;
}

#[tokio::test]
async fn a_thread_that_the_kernel_makes_as_the_guest_begins_goes_to_float_without_any_call() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let late = node.model.spawn_thread(qemu.vcpus[0], "kvm-nx-lpage-re").unwrap();
    assert_eq!(node.model.cgroup(late).unwrap(), vcpu(&pod), "inherited");
    while node.model.cgroup(late).unwrap() != float(&pod) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(node.model.affinity(late).unwrap(), cpus("0-1,4-7"));
    node.check().await;
}

#[tokio::test]
async fn a_later_thread_with_a_dead_vcpus_number_is_no_vcpu() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let number = qemu.vcpus[1];
    node.model.end(number).unwrap();
    node.model.next_id(number);
    assert_eq!(node.model.spawn_thread(qemu.vcpus[0], "worker").unwrap(), number);
    let report = node.reconcile().await;
    assert_eq!(node.model.cgroup(number).unwrap(), float(&pod));
    assert!(
        report
            .degraded
            .iter()
            .any(|(_, reason)| reason.code == ReasonCode::ThreadEnded),
        "{report:?}"
    );
}

#[tokio::test]
async fn cpus_that_were_offline_are_isolated_again_when_they_return() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    node.model.hotplug(&cpus("0-1,4-7")).unwrap();
    let report = node.reconcile().await;
    assert!(!report.degraded.is_empty(), "{report:?}");
    node.model.hotplug(&cpus("0-7")).unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "isolated");
    node.check().await;
}

#[tokio::test]
async fn a_broken_file_of_kubelets_leaves_the_floats_alone_and_a_mended_one_is_followed() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    node.checkpoint.write_bytes(b"").unwrap();
    node.plain_pod(9, "4");
    let report = node.reconcile().await;
    assert_eq!(report.did.steps, 0);
    assert!(report.degraded[0].1.text.contains("empty"), "{report:?}");
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,4-7");
    node.checkpoint.admit(&uid(9), "vm", &cpus("4")).unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,5-7");
    node.check().await;
}

/// A file of kubelet's without a checksum, which is good for V2.
const POLICY_NONE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":0}"#;

#[rstest]
#[case::policy_none(Some(POLICY_NONE), "\"none\"")]
#[case::empty(Some(""), "empty")]
#[case::absent(None, "No such file")]
#[tokio::test]
async fn a_node_without_a_static_policy_admits_nobody_and_says_why(#[case] text: Option<&str>, #[case] says: &str) {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    match text {
        Some(text) => node.checkpoint.write_bytes(text.as_bytes()).unwrap(),
        None => std::fs::remove_file(node.checkpoint.path()).unwrap(),
    }
    let refused = node.register(&pod).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::KubeletStateUnusable);
    assert!(refused.text.contains(says), "{refused}");
    node.reconcile().await;
    let view = node.handle.view();
    let problem = view.kubelet_problem.clone().unwrap();
    assert!(problem.contains(says), "{problem}");
    // A pod's event may have it, so no file and no content is in it.
    assert_eq!(view.admission_text(), "kubelet's CPU manager state cannot be used");
    node.checkpoint.write().unwrap();
    node.register(&pod).await.unwrap();
    let view = node.handle.view();
    assert_eq!(
        (view.kubelet_problem.as_deref(), view.admission_text()),
        (None, String::new())
    );
}

#[tokio::test]
async fn the_view_tells_of_the_last_pass_of_kubelets_file_and_of_offline_cpus() {
    let mut node = Node::new();
    node.isolated(1, "2-3").await;
    let report = node.reconcile().await;
    let view = node.handle.view();
    let pass = view.last_pass.clone().unwrap();
    assert!(pass.number >= report.pass && pass.failures == 0, "{pass:?}");
    let now = stelia_kernel::clock::now_us();
    let hour = 3_600_000_000;
    assert!((now - hour..=now).contains(&pass.ended_us), "{pass:?}");
    assert!((now - hour..=now).contains(&view.kubelet_modified_us.unwrap()));
    assert!(view.offline.is_empty());
    node.model.hotplug(&cpus("0-6")).unwrap();
    node.reconcile().await;
    assert_eq!(node.handle.view().offline, cpus("7"));
}

#[tokio::test]
async fn a_scope_with_a_newer_record_keeps_its_partition_beside_others_that_come_and_go() {
    let mut node = Node::new();
    let (newer, _) = node.isolated(1, "2-3").await;
    let cgroups = node.handle.system().cgroups.clone();
    cgroups.set_attribute(&scope(&newer), "schema", "2").unwrap();
    let holds = |node: &Node, slice: &str| {
        assert_eq!(node.read(&vcpu(&newer), File::Partition), "isolated");
        assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), slice);
    };
    // A daemon of a version that does not read this schema starts.
    node.restart().await;
    node.reconcile().await;
    holds(&node, "2-3");
    assert_eq!((node.phase(&newer), node.handle.view().unreadable.len()), (None, 1));
    let (other, _) = node.isolated(2, "4-5").await;
    holds(&node, "2-5");
    node.handle.deregister(other.uid.clone()).await.unwrap();
    node.reconcile().await;
    holds(&node, "2-3");
}

#[tokio::test]
async fn a_memory_limit_below_what_the_vm_holds_waits_until_it_fits() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let limit = |bytes: &str| node.model.meddle(&pod.origin, File::MemoryMax, bytes).unwrap();
    let reasons = || node.handle.view().instances[&pod.uid].degraded.clone();
    let shown = || node.handle.view().instances[&pod.uid].memory_limit;
    assert_eq!(shown(), None);
    limit("4096000");
    node.reconcile().await;
    assert_eq!(node.read(&scope(&pod), File::MemoryMax), "4096000");
    assert_eq!(shown(), Some(4_096_000));
    node.model.uses_memory(&scope(&pod), 3_000_000).unwrap();
    limit("2048000");
    node.reconcile().await;
    assert_eq!(node.read(&scope(&pod), File::MemoryMax), "4096000");
    // Who gives up memory has to know.
    assert_eq!(shown(), Some(2_048_000));
    let told = joined(&reasons());
    assert!(
        told.contains("2048000") && told.contains("3000000") && told.contains("4096000"),
        "{told}"
    );
    // Nothing is tried again and again.
    let before = node.model.changes();
    assert_eq!((node.reconcile().await.did.steps, node.model.changes()), (0, before));
    node.model.uses_memory(&scope(&pod), 2_000_000).unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&scope(&pod), File::MemoryMax), "2048000");
    node.reconcile().await;
    assert_eq!(reasons(), []);
    // More is never waited for. Nothing tells of the write here, and an audit looks at one side: the scope's is next.
    limit("8192000");
    node.reconcile().await;
    node.reconcile().await;
    assert_eq!(node.read(&scope(&pod), File::MemoryMax), "8192000");
    assert_eq!(shown(), Some(8_192_000));
    node.check().await;
}
