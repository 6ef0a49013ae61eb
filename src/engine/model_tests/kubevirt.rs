//! KubeVirt's `isolateEmulatorThread` beside adoption: the CPU that it costs is float's, and virt-handler's own work changes
//! nothing. Its steps are those of `configureHousekeepingCgroup` in KubeVirt's `pkg/virt-handler`.

use stelia_settings::{AdoptPartition, AdoptRule, Isolation, Pattern, ReadyMade, TreeChoice};

use super::adopt::rule;
use super::*;

/// What virt-handler does each time it looks at a VM: make its cgroup, give it the emulator's CPU, and move the threads that
/// are in the container's own cgroup there, but for the vCPUs'.
pub(super) fn synced(node: &Node, pod: &Pod, qemu: &Qemu, emulator: &str) {
    let housekeeping = pod.origin.child("housekeeping");
    if !node.model.exists(&housekeeping) {
        node.handle.system().cgroups.create(&housekeeping).unwrap();
    }
    node.model.meddle(&housekeeping, File::Type, "threaded").unwrap();
    node.model.meddle(&pod.origin, File::SubtreeControl, "+cpuset").unwrap();
    node.model.meddle(&housekeeping, File::Cpus, emulator).unwrap();
    for thread in node.read(&pod.origin, File::Threads).split_whitespace() {
        if !qemu.vcpus.iter().any(|vcpu| vcpu.to_string() == thread) {
            node.model.meddle(&housekeeping, File::Threads, thread).unwrap();
        }
    }
}

/// Its vCPUs have 2 and 3, everything else runs on 4.
async fn assert_whole(node: &mut Node, pod: &Pod, qemu: &Qemu) {
    node.quiet().await;
    let known = node.known(pod).unwrap();
    assert_eq!(
        (known.exclusive.to_string(), known.float_reason.name()),
        ("2-3".to_owned(), "spare")
    );
    assert!(known.degraded.is_empty(), "{:?}", known.degraded);
    assert_eq!(node.pins(qemu), ["2", "3"]);
    let housekeeping = pod.origin.child("housekeeping");
    assert_eq!(node.read(&housekeeping, File::CpusEffective), "4");
    for thread in [pod.init, pod.other, qemu.pid, qemu.io] {
        assert_eq!(node.model.cgroup(thread).unwrap(), housekeeping, "{thread}");
    }
    node.check().await;
}

#[tokio::test]
async fn the_cpu_of_isolate_emulator_thread_is_floats_whether_virt_handler_comes_before_or_after() {
    for before in [true, false] {
        let mut node = Node::adopting(vec![rule()]).await;
        let (pod, qemu) = node.launched(1, "2-4", &[2, 3]);
        if before {
            synced(&node, &pod, &qemu, "4");
        }
        node.until_adopted(&pod).await;
        assert_whole(&mut node, &pod, &qemu).await;
        // Again at each look of virt-handler's.
        let drift = node.handle.view().counters.drift_found;
        synced(&node, &pod, &qemu, "4");
        node.reconcile().await;
        assert_whole(&mut node, &pod, &qemu).await;
        assert_eq!(node.handle.view().counters.drift_found, drift, "no drift");
        // A daemon that starts anew takes it as it is.
        node.restart().await;
        assert_whole(&mut node, &pod, &qemu).await;
        node.deregister(&pod).await;
        assert_eq!(node.model.children(&pod.origin).unwrap(), Vec::<String>::new());
        assert_eq!(node.pins(&qemu), ["2", "3"]);
    }
}

#[tokio::test]
async fn in_a_scope_a_vm_that_is_pinned_by_others_floats_on_its_spare_cpus_too() {
    let in_slice = AdoptRule {
        tree: TreeChoice::Slice,
        ..rule()
    };
    let mut node = Node::adopting(vec![in_slice]).await;
    let (pod, _) = node.launched(1, "2-4", &[2, 3]);
    node.until_adopted(&pod).await;
    node.quiet().await;
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,4-7");
    assert_eq!(node.read(&vcpu(&pod), File::CpusEffective), "2-3");
    node.check().await;
    // With KubeVirt's cgroup in the container it is adopted in place or not at all.
    let (other, qemu) = node.launched(2, "5-7", &[5, 6]);
    synced(&node, &other, &qemu, "7");
    node.look().await;
    node.until("it is refused", |node| node.unadopted(&other).is_some())
        .await;
    let refused = node.unadopted(&other).unwrap();
    assert_eq!(refused.reason, "Failed");
    assert!(refused.text.contains("isolateEmulatorThread"), "{}", refused.text);
    assert_eq!(node.model.children(&other.origin).unwrap(), ["housekeeping"]);
    node.reconcile().await;
    node.check().await;
}

#[tokio::test]
async fn a_resize_gives_the_spare_cpus_to_float_again() {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, qemu) = node.launched(1, "2-4", &[2, 3]);
    node.until_adopted(&pod).await;
    for (list, float) in [("2-5", "4-5"), ("2-4", "4")] {
        node.assign(&pod, list);
        node.model.meddle(&pod.origin, File::Cpus, list).unwrap();
        node.catch_up().await;
        let known = node.known(&pod).unwrap();
        assert_eq!(known.exclusive.to_string(), "2-3");
        assert_eq!(node.read(&pod.origin.child("housekeeping"), File::Cpus), float);
        assert_eq!(node.pins(&qemu), ["2", "3"]);
        node.check().await;
    }
}

/// The ready-made rule, of any container.
pub(super) fn kubevirt() -> AdoptRule {
    let any = vec![Pattern::parse("*").unwrap()];
    AdoptRule {
        pods: any.clone(),
        containers: any,
        ..AdoptRule::ready_made(ReadyMade::KubeVirt).unwrap()
    }
}

/// The same without a partition, and with a float.
fn without_partition() -> AdoptRule {
    AdoptRule {
        isolation: Isolation::Vcpus,
        partition: AdoptPartition::Member,
        ..kubevirt()
    }
}

impl Node {
    async fn until_contained(&self, pod: &Pod) {
        self.look().await;
        self.until("the VM is pinned", |node| node.phase(pod) == Some("pinned"))
            .await;
        self.quiet().await;
        assert_eq!(self.known(pod).unwrap().pinned_reason, Some(PinnedReason::Rule));
    }

    /// virt-launcher plans pins from the first, and sets them again: none may be refused.
    pub(super) fn assert_launcher_may_pin(&self, pod: &Pod, qemu: &Qemu, entry: &str, pins: [&str; 2]) {
        assert_eq!(self.read(&pod.origin, File::CpusEffective), entry);
        for pins in [[pins[1], pins[0]], pins] {
            for (vcpu, cpu) in qemu.vcpus.iter().zip(pins) {
                self.model.pin(*vcpu, &cpus(cpu)).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_vm_whose_rule_wants_no_partition_has_none_and_its_container_keeps_all_its_cpus() {
    let mut node = Node::adopting(vec![without_partition()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.until_contained(&pod).await;
    node.assert_launcher_may_pin(&pod, &qemu, "2-3", ["2", "3"]);
    assert_eq!(node.model.cgroup(qemu.vcpus[0]).unwrap(), vcpu(&pod));
    assert_eq!(node.read(&float(&pod), File::Cpus), "0-1,4-7");
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "member");
    node.check().await;
    // It stays so whatever becomes of the rule and the daemon.
    node.settings.policies.adopt.clear();
    node.restart().await;
    node.until_contained(&pod).await;
    for _ in 0..3 {
        node.reconcile().await;
    }
    node.until_contained(&pod).await;
    node.assert_launcher_may_pin(&pod, &qemu, "2-3", ["2", "3"]);
    node.check().await;
    node.deregister(&pod).await;
    assert_eq!(node.pins(&qemu), ["2", "3"]);
    node.check().await;
}

#[tokio::test]
async fn with_isolate_emulator_thread_such_a_vm_is_contained_in_its_container_or_not_adopted() {
    for before in [true, false] {
        let mut node = Node::adopting(vec![without_partition()]).await;
        let (pod, qemu) = node.launched(1, "2-4", &[2, 3]);
        if before {
            synced(&node, &pod, &qemu, "4");
        }
        node.until_contained(&pod).await;
        node.assert_launcher_may_pin(&pod, &qemu, "2-4", ["2", "3"]);
        synced(&node, &pod, &qemu, "4");
        node.reconcile().await;
        assert_whole(&mut node, &pod, &qemu).await;
        assert_eq!(node.read(&pod.origin, File::CpusEffective), "2-4");
        node.restart().await;
        node.until_contained(&pod).await;
        assert_whole(&mut node, &pod, &qemu).await;
    }
    // virt-handler has yet to make its cgroup: it would make it in the slice.
    for before in [true, false] {
        let mut node = Node::adopting(vec![without_partition()]).await;
        node.model.set_copes(false);
        let (pod, qemu) = node.launched(1, "2-4", &[2, 3]);
        if before {
            synced(&node, &pod, &qemu, "4");
        }
        node.look().await;
        node.until("it is refused", |node| node.unadopted(&pod).is_some()).await;
        let refused = node.unadopted(&pod).unwrap();
        assert_eq!(refused.reason, "Failed");
        assert!(refused.text.contains("isolateEmulatorThread"), "{}", refused.text);
        node.assert_launcher_may_pin(&pod, &qemu, "2-4", ["2", "3"]);
        node.check().await;
    }
}
