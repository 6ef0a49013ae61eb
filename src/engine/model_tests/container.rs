//! Containers whose own cgroup is the partition.

use stelia_koordinator::allocator::{AllocationRequest, CpuSource, Qos};
use stelia_settings::{AdoptKind, AdoptRule, Isolation, Pattern, ThreadName};
use stelia_testnode::Runtime;

use super::crash::killed;
use super::in_place::{kubepods, pod_of};
use super::kubevirt::{kubevirt, synced};
use super::*;

/// The whole container's cgroup.
fn own(pod: &Pod) -> CgroupPath {
    stelia_kernel::containers::container_scope(&pod.origin)
}

/// Adopts each container with exclusive CPUs.
fn of_containers() -> AdoptRule {
    let any = vec![Pattern::parse("*").unwrap()];
    AdoptRule {
        name: "containers".to_owned(),
        kind: AdoptKind::Container,
        namespaces: any.clone(),
        pods: any.clone(),
        vmm: Vec::new(),
        threads: ThreadName::default(),
        isolation: Isolation::Container,
        containers: any,
        ..adopt::rule()
    }
}

impl Node {
    fn container_request(&self, pod: &Pod) -> RegisterRequest {
        let request = self.request(pod);
        RegisterRequest {
            claim: Claim {
                isolation: Isolation::Container,
                ..Claim::default()
            },
            anchor: None,
            ..request
        }
    }

    pub(super) async fn register_container(&self, pod: &Pod) -> Result<(PodUid, CgroupPath), Error> {
        self.handle.register(self.container_request(pod)).await
    }

    async fn whole(&mut self, number: u32, list: &str) -> Pod {
        let pod = self.pod(number, list);
        self.register_container(&pod).await.unwrap();
        pod
    }

    /// kubelet gives the container other CPUs, and its runtime writes them.
    async fn resize(&mut self, pod: &Pod, list: &str) {
        self.assign(pod, list);
        self.model.meddle(&pod.origin, File::Cpus, list).unwrap();
        self.catch_up().await;
    }

    fn assert_partition(&self, pod: &Pod, list: &str) {
        assert_eq!(self.phase(pod), Some("isolated"));
        assert_eq!(self.read(&own(pod), File::Partition), "root");
        assert_eq!(
            self.read(&pod.origin, File::CpusEffective),
            list,
            "what programs in it read"
        );
        assert_eq!(self.read(&own(pod), File::CpusExclusive), list);
        assert_eq!(self.read(&pod_of(pod), File::CpusExclusive), list);
    }
}

#[tokio::test]
async fn nothing_of_the_container_is_moved_and_its_file_stays_whole() {
    for runtime in [Runtime::Runc, Runtime::Crun] {
        let mut node = Node::new().allowing_containers().await;
        let pod = node.pod_by(runtime, 1, "2-3");
        let before = node.model.tasks();
        node.register_container(&pod).await.unwrap();
        node.assert_partition(&pod, "2-3");
        assert!(!node.model.exists(&scope(&pod)), "no scope is made");
        let places = |tasks: &[(i32, CgroupPath, CpuSet)]| -> Vec<(i32, CgroupPath)> {
            tasks.iter().map(|(id, cgroup, _)| (*id, cgroup.clone())).collect()
        };
        assert_eq!(places(&node.model.tasks()), places(&before));
        let known = node.handle.view().instances[&pod.uid].clone();
        assert_eq!(
            (known.isolation.name(), known.float_reason.name()),
            ("container", "no-float")
        );
        assert!(
            known.float.is_empty() && known.degraded.is_empty(),
            "{:?}",
            known.degraded
        );
        node.check().await;
        // Another registration of the same container changes nothing.
        let changes = node.model.changes();
        node.register_container(&pod).await.unwrap();
        assert_eq!(node.model.changes(), changes);
        // A daemon that starts anew knows it again by its record.
        node.restart().await;
        node.check().await;
        node.assert_partition(&pod, "2-3");
        // What is exec'd into it is at home there.
        let shell = node.model.spawn(pod.init, "sh").unwrap();
        node.reconcile().await;
        assert_eq!(node.model.cgroup(shell).unwrap(), pod.origin);
        node.check().await;
        node.deregister(&pod).await;
        assert_eq!(node.read(&own(&pod), File::Partition), "member");
        assert_eq!(node.read(&own(&pod), File::CpusExclusive), "");
        node.assert_nothing_claimed(&[kubepods(), pod_of(&pod)]);
        node.check().await;
    }
}

#[tokio::test]
async fn a_container_costs_at_most_half_the_changes_of_a_vm_in_place() {
    let mut node = Node::in_place().await.allowing_containers().await;
    let vm = node.pod(1, "2-3");
    let qemu = node.model.add_qemu(vm.init, 2).unwrap();
    // The record is written in both cases: what is compared are the changes of the kernel's state.
    let changes = |node: &Node| {
        let calls = node.model.calls();
        let changes = calls.iter().filter(|call| {
            let operation = call.split(' ').next().unwrap_or_default();
            !matches!(operation, "read" | "list" | "exists" | "query") && !call.contains("attribute")
        });
        changes.cloned().collect::<Vec<String>>()
    };
    node.model.record_calls(true);
    node.register(&vm).await.unwrap();
    node.attach(&vm, &qemu).await.unwrap();
    let of_vm = changes(&node);
    let container = node.pod(2, "4-5");
    node.model.record_calls(true);
    node.register_container(&container).await.unwrap();
    let of_container = changes(&node);
    println!("{of_container:#?}");
    assert!(
        2 * of_container.len() <= of_vm.len(),
        "{of_container:#?}, of a VM in place {of_vm:#?}"
    );
}

#[tokio::test]
async fn the_partition_follows_kubelets_entry() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    for list in ["4-5", "2-5", "2-3"] {
        node.resize(&pod, list).await;
        node.assert_partition(&pod, list);
        node.check().await;
    }
    // While the file cannot be used everything stays as it is.
    node.checkpoint.write_bytes(b"{").unwrap();
    node.catch_up().await;
    assert_eq!(node.read(&own(&pod), File::Partition), "root");
    assert_eq!(node.read(&own(&pod), File::CpusExclusive), "2-3");
}

#[tokio::test]
async fn cpus_that_kubelet_gives_to_another_pod_are_left_before_that_has_them() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    // kubelet has forgotten the first pod, whose container runs on.
    node.checkpoint.release(&pod.uid).unwrap();
    let other = node.pod(2, "3-4");
    node.catch_up().await;
    assert_eq!(node.phase(&pod), Some("evicted"));
    assert_eq!(node.read(&own(&pod), File::Partition), "member");
    assert_eq!(node.read(&own(&pod), File::CpusExclusive), "");
    node.register_container(&other).await.unwrap();
    node.assert_partition(&other, "3-4");
    node.check().await;
    // It has its CPUs again.
    node.checkpoint.release(&other.uid).unwrap();
    node.model.end(other.init).unwrap();
    node.checkpoint.admit(&pod.uid, "vm", &cpus("2-3")).unwrap();
    node.catch_up().await;
    let known = node.handle.view().instances[&pod.uid].clone();
    println!("{:?} {:?} {:?}", known.degraded, known.partition, node.lists(&pod));
    node.assert_partition(&pod, "2-3");
    node.check().await;
}

#[tokio::test]
async fn a_partition_that_somebody_undoes_is_made_again_and_that_is_drift() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    node.model.meddle(&own(&pod), File::Partition, "member").unwrap();
    node.catch_up().await;
    node.assert_partition(&pod, "2-3");
    assert_eq!(node.handle.view().counters.drift_found, 1);
    node.check().await;
    // kubelet writes the same list again, as after its restart.
    node.model.meddle(&pod.origin, File::Cpus, "2-3").unwrap();
    node.reconcile().await;
    node.assert_partition(&pod, "2-3");
    assert_eq!(node.handle.view().counters.drift_found, 1);
}

#[tokio::test]
async fn a_container_that_ends_leaves_nothing_on_the_levels_above() {
    for without_daemon in [false, true] {
        let mut node = Node::new().allowing_containers().await;
        let first = node.whole(1, "2-3").await;
        let second = node.whole(2, "4-5").await;
        // The pod lives on.
        node.add_container(&first, "0-1");
        if without_daemon {
            node.stop().await;
        }
        node.model.end(first.init).unwrap();
        if without_daemon {
            node.start();
        }
        node.catch_up().await;
        assert_eq!(node.phase(&first), None);
        node.assert_nothing_claimed(&[pod_of(&first)]);
        node.assert_partition(&second, "4-5");
        node.check().await;
    }
}

#[test]
fn a_registration_and_a_deregistration_cut_off_anywhere_can_be_asked_for_again() {
    let cut = |changes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let mut node = Node::new().allowing_containers().await;
            let pod = node.pod(1, "2-3");
            let (request, handle) = (node.container_request(&pod), node.handle.clone());
            let call = async move {
                let (pod, _) = handle.register(request).await?;
                handle.deregister(pod).await
            };
            let done = killed(&mut node, changes, call).await;
            node.register_container(&pod).await.unwrap();
            node.assert_partition(&pod, "2-3");
            node.check().await;
            node.deregister(&pod).await;
            node.assert_nothing_claimed(&[kubepods(), pod_of(&pod), own(&pod)]);
            node.check().await;
            done
        })
    };
    let last = (0..).find(|changes| cut(*changes)).unwrap();
    assert!(last > 10, "all of it in {last} changes");
}

#[tokio::test]
async fn the_vcpus_of_a_vm_in_such_a_container_are_pinned_where_they_are_and_let_go_of() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    let qemu = node.started(&pod, 2).await;
    assert_eq!(node.pins(&qemu), ["2", "3"]);
    assert_eq!(node.model.cgroup(qemu.vcpus[0]).unwrap(), pod.origin);
    node.assert_partition(&pod, "2-3");
    node.check().await;
    node.resize(&pod, "4-5").await;
    assert_eq!(node.pins(&qemu), ["4", "5"]);
    node.check().await;
    node.deregister(&pod).await;
    assert_eq!(node.pins(&qemu), ["4-5", "4-5"]);
    node.check().await;
}

#[tokio::test]
async fn what_cannot_be_a_partition_is_refused_by_name() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    // With vCPUs of its own: another promise.
    let refused = node.register(&pod).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InstanceExists);
    assert!(refused.to_string().contains("container"), "{refused}");
    let vm = node.pod(2, "4-5");
    node.register(&vm).await.unwrap();
    let refused = node.register_container(&vm).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InstanceExists);
    node.check().await;
}

#[tokio::test]
async fn a_rule_adopts_containers_with_exclusive_cpus_and_no_others() {
    let mut node = Node::adopting(vec![of_containers()]).await;
    let pod = node.pod(1, "2-3");
    node.name(&pod, "database");
    let shared = node
        .model
        .add_pod_by(Runtime::Runc, &uid(2), &cpus("0-1,4-7"), &Limits::default())
        .unwrap();
    node.name(&shared, "web");
    // Nobody asks: kubelet's file has changed.
    node.until("it is adopted", |node| node.phase(&pod) == Some("isolated"))
        .await;
    node.quiet().await;
    node.assert_partition(&pod, "2-3");
    let known = node.handle.view().instances[&pod.uid].clone();
    assert_eq!(known.adopted_by.as_deref(), Some("containers"));
    assert!(
        node.handle.view().unadopted.is_empty(),
        "{:?}",
        node.handle.view().unadopted
    );
    assert_eq!(node.phase(&shared), None);
    node.check().await;
    // The container is restarted: another cgroup with the same CPUs.
    node.model.end(pod.init).unwrap();
    let again = node.add_container(&pod, "2-3");
    node.name(&again, "database");
    node.until("the former instance is gone, and the new one is there", |node| {
        let view = node.handle.view();
        let known = view.instances.get(&pod.uid);
        known.is_some_and(|known| known.origin == again.origin && known.state.name() == "isolated")
    })
    .await;
    node.check().await;
}

#[tokio::test]
async fn a_vm_of_kubevirt_keeps_its_file_and_its_pins_with_and_without_isolate_emulator_thread() {
    for (list, emulator) in [("2-3", None), ("2-4", Some("4"))] {
        let mut node = Node::adopting(vec![kubevirt()]).await;
        let (pod, qemu) = node.launched(1, list, &[2, 3]);
        node.look().await;
        node.until("the VM is adopted", |node| node.phase(&pod) == Some("isolated"))
            .await;
        node.quiet().await;
        node.assert_partition(&pod, list);
        node.assert_launcher_may_pin(&pod, &qemu, list, ["2", "3"]);
        if let Some(emulator) = emulator {
            synced(&node, &pod, &qemu, emulator);
        }
        let drift = node.handle.view().counters.drift_found;
        node.catch_up().await;
        assert_eq!(node.handle.view().counters.drift_found, drift, "no drift");
        node.assert_partition(&pod, list);
        assert_eq!(node.pins(&qemu), ["2", "3"]);
        node.check().await;
        node.restart().await;
        node.reconcile().await;
        node.assert_partition(&pod, list);
        node.deregister(&pod).await;
        assert_eq!(node.pins(&qemu), ["2", "3"]);
        node.check().await;
    }
}

#[tokio::test]
async fn a_contained_container_keeps_its_protection_while_kubelets_file_cannot_be_used() {
    let mut node = Node::new().allowing_containers().await;
    node.settings.policies.partition = Some(Partition::Member);
    node.restart().await;
    let pod = node.whole(1, "2-3").await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.read(&own(&pod), File::Partition), "member");
    let restricted = node.handle.view().restricted.clone();
    assert!(!restricted.is_empty());
    node.checkpoint.write_bytes(b"{").unwrap();
    node.catch_up().await;
    assert_eq!(node.handle.view().restricted, restricted);
    assert_eq!(node.phase(&pod), Some("pinned"));
}

/// Where steliad chooses the CPUs, pods' slices are kept off those of pinned instances.
#[tokio::test]
async fn a_contained_container_of_kubelets_is_not_kept_off_its_own_cpus() {
    let mut node = Node::new().allowing_containers().await;
    node.settings.policies.partition = Some(Partition::Member);
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.restart().await;
    let (pod, other) = (node.pod(1, "2-3"), node.pod(2, "4-5"));
    node.register_container(&pod).await.unwrap();
    node.quiet().await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.read(&pod.origin, File::CpusEffective), "2-3");
    let slice = |pod: &Pod| cpus(&node.read(&pod_of(pod), File::CpusEffective));
    assert!(slice(&other).is_disjoint(&cpus("2-3")), "{}", slice(&other));
    assert!(cpus("2-3").is_subset(&slice(&pod)), "{}", slice(&pod));
    node.check().await;
}

#[tokio::test]
async fn without_a_daemon_the_partition_is_given_back() {
    let mut node = Node::new().allowing_containers().await;
    let pod = node.whole(1, "2-3").await;
    node.stop().await;
    crate::engine::in_place::release(&*node.model.system().cgroups).unwrap();
    assert_eq!(node.read(&own(&pod), File::Partition), "member");
    node.assert_nothing_claimed(&[kubepods(), pod_of(&pod), own(&pod)]);
    node.start();
    node.reconcile().await;
    assert_eq!(node.phase(&pod), None);
}

#[tokio::test]
async fn a_pod_that_deregisters_its_container_again_and_again_is_adopted_at_its_rate() {
    let mut node = Node::adopting(vec![of_containers()]).await;
    let pod = node.pod(1, "2-3");
    node.name(&pod, "database");
    let mut adopted = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(4);
    while tokio::time::Instant::now() < end {
        if node.phase(&pod) == Some("isolated") {
            adopted += 1;
            node.handle.deregister(pod.uid.clone()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!((1..=2).contains(&adopted), "adopted {adopted} times");
}

/// The node on which steliad chooses the CPUs: nobody writes them into the container's `cpuset.cpus`.
#[tokio::test]
async fn the_allocators_cpus_are_those_of_the_partition_alone() {
    let mut node = allocator::node().await.allowing_containers().await;
    let vm = node.registered(1, 2, Qos::Lse).await;
    node.started(&vm, 2).await;
    let pod = node.limited(2, 2);
    node.register_container(&pod).await.unwrap();
    let own_cpus = node.exclusive(&pod);
    assert_eq!(own_cpus.len(), 2);
    assert!(own_cpus.is_disjoint(&node.exclusive(&vm)));
    assert_eq!(node.read(&own(&pod), File::Partition), "root");
    assert_eq!(node.read(&pod.origin, File::CpusEffective), own_cpus.to_string());
    assert_eq!(node.read(&pod.origin, File::Cpus), "");
    node.check().await;
    node.restart().await;
    node.reconcile().await;
    node.check().await;
    assert_eq!(node.exclusive(&pod), own_cpus);
    assert_eq!(node.handle.view().counters.drift_found, 0);
    node.deregister(&pod).await;
    node.assert_nothing_claimed(&[kubepods(), pod_of(&pod), own(&pod)]);
    let rest = cpus("0-7").difference(&node.exclusive(&vm));
    assert_eq!(node.read(&pod.origin, File::CpusEffective), rest.to_string());
    node.check().await;
}

#[tokio::test]
async fn the_allocator_gives_a_container_cpus_of_class_lse_in_a_partition_or_none() {
    let mut node = allocator::node().await.allowing_containers().await;
    let pod = node.limited(1, 2);
    for qos in [Qos::Lsr, Qos::Ls, Qos::Be] {
        let mut request = node.container_request(&pod);
        request.claim.request = AllocationRequest {
            qos: Some(qos),
            ..AllocationRequest::default()
        };
        let refused = node.handle.register(request).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains(qos.name()), "{refused}");
    }
    node.settings.policies.partition = Some(Partition::Member);
    node.handle.reload(node.settings.clone()).await.unwrap();
    let refused = node.register_container(&pod).await.unwrap_err();
    assert!(refused.to_string().contains("no partition"), "{refused}");
    node.check().await;
}

#[tokio::test]
async fn a_rule_adopts_containers_that_the_allocator_gives_cpus_at_the_next_audit() {
    let mut node = allocator::node().await.allowing_containers().await;
    node.settings.policies.adopt = vec![of_containers()];
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.adopt();
    let named = |number: u32, limit: u32| {
        let pod = node.limited(number, limit);
        node.name(&pod, &format!("database-{number}"));
        pod
    };
    let (pod, fractions, unlimited) = (named(1, 2), named(2, 1), named(3, 2));
    // The pod's limit is of all its containers.
    node.model
        .meddle(&unlimited.origin, File::CpuMax, "max 100000")
        .unwrap();
    node.model
        .meddle(&pod_of(&unlimited), File::CpuMax, "200000 100000")
        .unwrap();
    node.model
        .meddle(&fractions.origin, File::CpuMax, "150000 100000")
        .unwrap();
    node.reconcile().await;
    node.until("it is adopted", |node| node.phase(&pod) == Some("isolated"))
        .await;
    node.quiet().await;
    assert_eq!(node.exclusive(&pod).len(), 2);
    assert_eq!((node.phase(&fractions), node.phase(&unlimited)), (None, None));
    assert!(node.handle.view().unadopted.is_empty());
    node.check().await;
}
