//! CPUs that steliad chooses itself: the classes, their pools, and what others on the host may use.

use stelia_cpus::located::{Located, Part};
use stelia_koordinator::allocator::{AllocationRequest, CpuBindPolicy, CpuSource, Qos, Schedule};

use super::*;

/// A node of 8 CPUs on which kubelet's policy is none and CPU 0 is reserved.
pub(super) async fn node() -> Node {
    let mut node = Node::new();
    std::fs::remove_file(node.settings.kubelet_root.join("cpu_manager_state")).unwrap();
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.settings.policies.allocator.reserved = cpus("0");
    node.handle.reload(node.settings.clone()).await.unwrap();
    node
}

impl Node {
    /// A pod with a CPU limit and without CPUs of kubelet's.
    pub(super) fn limited(&self, number: u32, limit: u32) -> Pod {
        let pod = self
            .model
            .add_pod(&uid(number), &CpuSet::new(), &Limits::default())
            .unwrap();
        let max = format!("{} 100000", limit * 100_000);
        self.model.meddle(&pod.origin, File::CpuMax, &max).unwrap();
        pod
    }

    /// Register it as a class.
    pub(super) async fn ask(&self, pod: &Pod, asked: AllocationRequest) -> Result<(PodUid, CgroupPath), Error> {
        let mut request = self.request(pod);
        request.claim.request = asked;
        self.handle.register(request).await
    }

    async fn assert_refused(&self, pod: &Pod, asked: AllocationRequest, wanted: ErrorKind) {
        assert_eq!(kind(self.ask(pod, asked).await), wanted);
    }

    pub(super) async fn registered(&self, number: u32, limit: u32, qos: Qos) -> Pod {
        let pod = self.limited(number, limit);
        self.ask(&pod, as_class(qos)).await.unwrap();
        pod
    }

    pub(super) fn exclusive(&self, pod: &Pod) -> CpuSet {
        self.handle.view().instances[&pod.uid].exclusive.clone()
    }

    pub(super) fn floats(&self, pod: &Pod) -> CpuSet {
        cpus(&self.read(&float(pod), File::CpusEffective))
    }
}

fn as_class(qos: Qos) -> AllocationRequest {
    AllocationRequest {
        qos: Some(qos),
        ..AllocationRequest::default()
    }
}

/// kubelet's record has the pod's GPUs at NUMA node 0, where fewer CPUs are free.
#[tokio::test]
async fn cpus_are_at_the_numa_node_of_the_devices_in_kubelets_record() {
    const DEVICES: &[u8] =
        include_bytes!("../../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint");
    let asked = AllocationRequest {
        qos: Some(Qos::Lse),
        numa_allocate_strategy: Some(stelia_koordinator::allocator::NumaAllocateStrategy::LeastAllocated),
        ..AllocationRequest::default()
    };
    for (has_devices, expected) in [(false, "4-7"), (true, "0-3")] {
        let node = node().await;
        let folder = node.settings.kubelet_root.join("device-plugins");
        std::fs::create_dir_all(&folder).unwrap();
        if has_devices {
            std::fs::write(folder.join("kubelet_internal_checkpoint"), DEVICES).unwrap();
        }
        let uid = PodUid::parse("ce32ebd2-f905-449e-b74b-4231a84b88e1").unwrap();
        let pod = node.model.add_pod(&uid, &CpuSet::new(), &Limits::default()).unwrap();
        node.model.meddle(&pod.origin, File::CpuMax, "200000 100000").unwrap();
        node.ask(&pod, asked.clone()).await.unwrap();
        let own = node.exclusive(&pod);
        assert!(own.len() == 2 && own.is_subset(&cpus(expected)), "{own}");
        node.check().await;
    }
}

/// The CPUs are chosen all the same, and the registration says what they were chosen without.
#[tokio::test]
async fn a_record_of_devices_that_cannot_be_used_is_told() {
    let node = node().await;
    let folder = node.settings.kubelet_root.join("device-plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("kubelet_internal_checkpoint"), "{").unwrap();
    let vm = node.registered(1, 2, Qos::Lse).await;
    let explained = |pod: &Pod| {
        let instance = &node.handle.view().instances[&pod.uid];
        instance.allocation.as_ref().unwrap().explanation.join("; ")
    };
    let text = explained(&vm);
    assert!(
        text.contains("no device") && text.contains("internal_checkpoint"),
        "{text}"
    );
    // A scheduler's choice is not changed for devices.
    let pod = node.limited(3, 2);
    node.ask(&pod, scheduled("6-7", 1)).await.unwrap();
    assert!(!explained(&pod).contains("no device"), "{}", explained(&pod));
    std::fs::remove_file(folder.join("kubelet_internal_checkpoint")).unwrap();
    let other = node.registered(2, 2, Qos::Lse).await;
    assert!(!explained(&other).contains("no device"), "{}", explained(&other));
}

/// The ledger's record has the devices of the kubelet whose root directory is set.
#[tokio::test]
async fn the_ledger_reads_the_devices_of_the_kubelet_that_is_set() {
    use crate::ledger::{KernelBackend, LedgerBackend};
    const DEVICES: &[u8] =
        include_bytes!("../../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint");
    let node = node().await;
    let folder = node.settings.kubelet_root.join("device-plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("kubelet_internal_checkpoint"), DEVICES).unwrap();
    let uid = PodUid::parse("ce32ebd2-f905-449e-b74b-4231a84b88e1").unwrap();
    let pod = node.model.add_pod(&uid, &CpuSet::new(), &Limits::default()).unwrap();
    node.model.meddle(&pod.origin, File::CpuMax, "200000 100000").unwrap();
    node.ask(&pod, as_class(Qos::Lse)).await.unwrap();
    let mut view = (*node.handle.view()).clone();
    let instance = view.instances.get_mut(&uid).unwrap();
    // As the runtime's configuration would name it.
    Arc::make_mut(instance).container = "instance".to_owned();
    let backend = KernelBackend::new(node.handle.system(), node.handle.settings());
    let found = backend
        .counter_reader()
        .located(&view, &[uid.clone()].into(), &BTreeMap::new());
    let names: Vec<&str> = found[&uid].iter().map(|part| part.name.as_str()).collect();
    assert!(names.contains(&"nvidia.com/gpu"), "{names:?}");

    // A file of a kubelet that is not known yet: the devices are where they were, and the rest is read.
    std::fs::write(folder.join("kubelet_internal_checkpoint"), r#"{"V3":{}}"#).unwrap();
    let located = |record: &[Located]| {
        let record = [(uid.to_string(), record.to_vec())].into();
        let found = backend.counter_reader().located(&view, &[uid.clone()].into(), &record);
        found[&uid].clone()
    };
    let is_device = |part: &&Located| part.part == Part::Device;
    let mut before = found[&uid].clone();
    before.retain(|part| is_device(&part));
    let now = located(&before);
    assert_eq!(
        now.iter().filter(is_device).collect::<Vec<_>>(),
        before.iter().collect::<Vec<_>>()
    );
    assert!(now.iter().any(|part| part.part == Part::Cpus), "{now:?}");
    let unknown = located(&[]);
    assert!(unknown.iter().any(|part| part.part == Part::Cpus), "{unknown:?}");
    assert!(!unknown.iter().any(|part| is_device(&part)), "{unknown:?}");
}

#[tokio::test]
async fn lse_is_isolated_and_every_pool_follows() {
    let node = node().await;
    let shared = node.registered(1, 2, Qos::Ls).await;
    assert_eq!(node.floats(&shared), cpus("0-7"));
    let vm = node.registered(2, 2, Qos::Lse).await;
    let own = node.exclusive(&vm);
    assert_eq!((own.len(), own.contains(0)), (2, false));
    let rest = cpus("0-7").difference(&own);
    assert_eq!(node.floats(&shared), rest);
    let best_effort = node.registered(3, 1, Qos::Be).await;
    assert_eq!(node.floats(&best_effort), rest);
    node.started(&vm, 2).await;
    assert_eq!(node.phase(&vm), Some("isolated"));
    assert_eq!(node.read(&vcpu(&vm), File::Partition), "isolated");
    node.check().await;
    node.handle.deregister(vm.uid.clone()).await.unwrap();
    assert_eq!(node.floats(&shared), cpus("0-7"));
    assert_eq!(node.floats(&best_effort), cpus("0-7"));
    node.check().await;
    // What is free again is given again.
    node.ask(&vm, as_class(Qos::Lse)).await.unwrap();
    assert_eq!(node.exclusive(&vm), own);
}

#[tokio::test]
async fn lsr_is_contained_and_only_be_runs_on_its_cpus() {
    let node = node().await;
    let vm = node.registered(1, 2, Qos::Lsr).await;
    let own = node.exclusive(&vm);
    let (shared, best_effort) = (
        node.registered(2, 1, Qos::Ls).await,
        node.registered(3, 1, Qos::Be).await,
    );
    let bystander = node.limited(4, 1);
    node.started(&vm, 2).await;
    assert_eq!(node.phase(&vm), Some("pinned"));
    let rest = cpus("0-7").difference(&own);
    assert_eq!(node.floats(&best_effort), cpus("0-7"));
    assert_eq!(node.floats(&shared), rest);
    // The pods that are not instances are kept off, and so is the host.
    assert_eq!(cpus(&node.read(&bystander.origin, File::CpusEffective)), rest);
    let host = CgroupPath::root().child("system.slice");
    assert_eq!(cpus(&node.read(&host, File::CpusEffective)), rest);
    node.check().await;
    // One of them ends while it is kept off: nothing of it is remembered.
    node.model.kill_pod(&bystander).unwrap();
    node.check_after_a_pass().await;
    node.model.kill_pod(&vm).unwrap();
    node.check_after_a_pass().await;
    assert_eq!(cpus(&node.read(&host, File::CpusEffective)), cpus("0-7"));
    assert!(node.handle.view().restricted.is_empty());
    let attributes = node.handle.system().cgroups.attributes(&CgroupPath::slice()).unwrap();
    assert!(
        attributes.keys().all(|name| !name.starts_with("allowed-cpus.")),
        "{attributes:?}"
    );
}

impl Node {
    async fn check_after_a_pass(&self) {
        self.model.settle();
        self.reconcile().await;
        self.check().await;
    }
}

#[tokio::test]
async fn the_vcpus_of_a_class_without_cpus_stay_in_its_pool() {
    let node = node().await;
    let pod = node.registered(1, 2, Qos::Ls).await;
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    let placed = node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(placed.iter().map(|placed| placed.cpu).collect::<Vec<_>>(), [None, None]);
    assert_eq!(node.phase(&pod), Some("shared"));
    assert_eq!(node.model.cgroup(qemu.vcpus[0]).unwrap(), float(&pod));
    node.check().await;
    // A stranger's thread is refused as ever.
    let other = node.registered(2, 2, Qos::Ls).await;
    assert_eq!(kind(node.attach(&other, &qemu).await), ErrorKind::ForeignProcess);
}

#[tokio::test]
async fn a_burst_stays_on_its_numa_node_and_moves_only_when_nothing_is_left_there() {
    let node = node().await;
    let pod = node.limited(1, 3);
    let burst = AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::ConstrainedBurst),
        ..as_class(Qos::Ls)
    };
    node.ask(&pod, burst).await.unwrap();
    let first = node.floats(&pod);
    assert_eq!(first, cpus("0-3"));
    let vm = node.registered(2, 2, Qos::Lse).await;
    assert_eq!(node.floats(&pod), first.difference(&node.exclusive(&vm)));
    assert!(node.handle.view().instances[&pod.uid].degraded.is_empty());
    node.check().await;
}

#[tokio::test]
async fn a_restarted_daemon_knows_every_allocation() {
    let mut node = node().await;
    let (vm, pod) = (
        node.registered(1, 2, Qos::Lsr).await,
        node.registered(2, 1, Qos::Be).await,
    );
    let before = node.handle.view().instances.clone();
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.handle.view().instances, before);
    node.check().await;
    // The same words answer the same instance; others are refused.
    node.ask(&vm, as_class(Qos::Lsr)).await.unwrap();
    node.assert_refused(&pod, as_class(Qos::Ls), ErrorKind::InstanceExists)
        .await;
}

#[tokio::test]
async fn a_registration_of_ours_cut_off_anywhere_can_be_asked_for_again() {
    for changes in 0.. {
        let mut node = node().await;
        let pod = node.limited(1, 2);
        let mut request = node.request(&pod);
        request.claim.request = as_class(Qos::Lse);
        let handle = node.handle.clone();
        let done = crash::killed(&mut node, changes, handle.register(request)).await;
        node.ask(&pod, as_class(Qos::Lse)).await.unwrap();
        assert_eq!(node.exclusive(&pod).len(), 2);
        node.check().await;
        if done {
            return;
        }
    }
}

#[tokio::test]
async fn what_kubelet_gave_stays_its_pods_through_the_take_over() {
    let mut node = Node::new();
    let (vm, _) = node.isolated(1, "2-3").await;
    let bystander = node.pod(2, "4-5");
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.settings.policies.allocator.reserved = cpus("0");
    node.handle.reload(node.settings.clone()).await.unwrap();
    assert_eq!(node.phase(&vm), Some("isolated"));
    node.check().await;
    // Beside kubelet's static policy: what its file names is not given.
    let first = node.registered(3, 2, Qos::Lse).await;
    assert!(node.exclusive(&first).is_subset(&cpus("1,6-7")));
    // kubelet comes back with policy none: its new file has no entries, and both pods still run.
    std::fs::remove_file(node.settings.kubelet_root.join("cpu_manager_state")).unwrap();
    node.reconcile().await;
    node.check().await;
    let view = node.handle.view();
    assert_eq!(view.pools.as_ref().unwrap().kubelet, cpus("4-5"));
    assert_eq!(view.instances[&vm.uid].degraded, []);
    let last = node.limited(4, 2);
    node.assert_refused(&last, as_class(Qos::Lse), ErrorKind::NotAllocated)
        .await;
    // The one that was no instance may still become one, with the CPUs it has.
    node.ask(&bystander, AllocationRequest::default()).await.unwrap();
    assert_eq!(node.exclusive(&bystander), cpus("4-5"));
    node.model.kill_pod(&bystander).unwrap();
    node.check_after_a_pass().await;
    node.ask(&last, as_class(Qos::Lse)).await.unwrap();
    node.check().await;
}

#[tokio::test]
async fn a_pod_that_kubelet_is_just_giving_cpus_is_not_given_others() {
    let mut node = Node::new();
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.handle.reload(node.settings.clone()).await.unwrap();
    // Of kubelet's two writes only the first is there: the default set is smaller, the entry is missing.
    let pod = node.pod(1, "2-3");
    Checkpoint::create(&node.settings.kubelet_root, &cpus("0-1,4-7")).unwrap();
    let other = node.limited(2, 3);
    node.ask(&other, as_class(Qos::Lse)).await.unwrap();
    assert!(node.exclusive(&other).is_disjoint(&cpus("2-3")));
    node.assert_refused(&pod, AllocationRequest::default(), ErrorKind::CpusetMismatch)
        .await;
    node.check().await;
}

/// What a scheduler chose.
fn scheduled(list: &str, node: u32) -> AllocationRequest {
    AllocationRequest {
        schedule: Schedule {
            cpus: Some(cpus(list)),
            nodes: Some([node].into()),
        },
        ..AllocationRequest::default()
    }
}

#[tokio::test]
async fn where_kubelet_chooses_a_scheduler_must_have_chosen_the_same() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    for other in [scheduled("4-5", 1), scheduled("2-3", 1), scheduled("2", 0)] {
        node.assert_refused(&pod, other, ErrorKind::CpusetMismatch).await;
    }
    let policy = AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::FullPcpus),
        ..scheduled("2-3", 0)
    };
    node.assert_refused(&pod, policy, ErrorKind::InvalidArgument).await;
    node.ask(&pod, scheduled("2-3", 0)).await.unwrap();
    node.check().await;
}

#[tokio::test]
async fn what_a_scheduler_chose_is_known_after_a_restart() {
    let mut node = node().await;
    let pod = node.limited(1, 2);
    node.ask(&pod, scheduled("6-7", 1)).await.unwrap();
    assert_eq!(node.exclusive(&pod), cpus("6-7"));
    // Nobody else gets them, whatever a scheduler chose.
    let other = node.limited(2, 2);
    node.assert_refused(&other, scheduled("5-6", 1), ErrorKind::NotAllocated)
        .await;
    node.restart().await;
    node.ask(&pod, scheduled("6-7", 1)).await.unwrap();
    node.assert_refused(&pod, scheduled("4-5", 1), ErrorKind::CpusetMismatch)
        .await;
    node.check().await;
}

#[tokio::test]
async fn with_kubelet_as_source_nothing_is_allocated() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.assert_refused(&pod, as_class(Qos::Lse), ErrorKind::InvalidArgument)
        .await;
    node.check().await;
}

#[tokio::test]
async fn a_quota_follows_those_without_cpus_of_their_own() {
    let node = node().await;
    let (ls, lse) = (
        node.registered(1, 2, Qos::Ls).await,
        node.registered(2, 2, Qos::Lse).await,
    );
    let quota = |node: &Node, pod: &Pod| node.read(&scope(pod), File::CpuMax);
    assert_eq!(quota(&node, &ls), "200000 100000");
    assert_eq!(quota(&node, &lse), "max 100000");
    // The least counts, and a resize follows.
    let pod = ls.origin.parent().unwrap();
    node.model.meddle(&pod, File::CpuMax, "75000 50000").unwrap();
    node.reconcile().await;
    assert_eq!(quota(&node, &ls), "75000 50000");
    // Of the scope's own limits the audit after it takes care.
    node.model.meddle(&scope(&lse), File::CpuMax, "10000 100000").unwrap();
    node.reconcile().await;
    node.reconcile().await;
    assert_eq!(quota(&node, &lse), "max 100000");
    node.check().await;
}

/// While a node is taken over, kubelet's policy may still give CPUs that steliad gave before.
#[tokio::test]
async fn a_vm_leaves_its_cpus_to_the_vm_that_kubelet_gave_them_to_until_that_one_has_ended() {
    let mut node = Node::new();
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.handle.reload(node.settings.clone()).await.unwrap();
    let ours = node.registered(1, 2, Qos::Lsr).await;
    node.started(&ours, 2).await;
    assert_eq!(node.exclusive(&ours), cpus("0-1"));
    let kubelets = node.pod(2, "1");
    node.register(&kubelets).await.unwrap();
    node.started(&kubelets, 1).await;
    let evicted = [Some("isolated"), Some("evicted")];
    assert_eq!([node.phase(&kubelets), node.phase(&ours)], evicted);
    // Its policy becomes `none`: the entry is gone, and the VM keeps the CPU.
    node.checkpoint.release(&kubelets.uid).unwrap();
    node.reconcile().await;
    assert_eq!([node.phase(&kubelets), node.phase(&ours)], evicted);
    node.check().await;
    node.restart().await;
    node.reconcile().await;
    assert_eq!([node.phase(&kubelets), node.phase(&ours)], evicted);
    node.check().await;
    node.model.kill_pod(&kubelets).unwrap();
    node.reconcile().await;
    assert_eq!(node.phase(&ours), Some("pinned"));
    node.check().await;
}

/// Another program's partition has a CPU of an instance that no partition protects: its vCPU cannot be pinned there.
#[tokio::test]
async fn a_reconcile_is_answered_while_a_step_of_an_instance_fails_again_and_again() {
    let node = node().await;
    let vm = node.registered(1, 2, Qos::Lsr).await;
    node.started(&vm, 2).await;
    let other = CgroupPath::root().child("system.slice");
    let taken = node.exclusive(&vm).iter().last().unwrap().to_string();
    node.model.meddle(&other, File::CpusExclusive, &taken).unwrap();
    node.model.meddle(&other, File::Partition, "root").unwrap();
    for _ in 0..3 {
        let report = node.reconcile().await;
        let reasons = report.degraded.iter();
        let failed = reasons.filter(|(_, reason)| reason.text.contains("set affinity"));
        assert_eq!(failed.count(), 1, "{report:?}");
    }
    node.model.meddle(&other, File::Partition, "member").unwrap();
    node.reconcile().await;
    node.check().await;
}
