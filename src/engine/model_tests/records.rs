//! Attributes that somebody else wrote: a container on its own cgroup, or whoever may write the host's cgroups on its pod's. What
//! they say is believed as far as kubelet's state, the kernel and the cgroup's own path say it too.

use stelia_api::ThreadRole;
use stelia_cpus::NodeSet;
use stelia_kernel::proc::TaskId;
use stelia_model::record::testing::in_place as recorded;
use stelia_model::record::{Record, RecordPlace, Tree, VcpuThread};

use super::in_place::pod_of;
use super::*;

/// Where a record is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planted {
    /// On the container's own cgroup, with the names that a scope's record has.
    OnContainer,
    /// On the container's own cgroup, with the names that it would have on the pod's.
    ByItsNameOnContainer,
    /// On the pod's cgroup, where the daemon writes records.
    OnPod,
}

pub(super) const EVERYWHERE: [Planted; 3] = [Planted::OnContainer, Planted::ByItsNameOnContainer, Planted::OnPod];

/// A record by which the pod's container is isolated on these CPUs, with one vCPU thread on the last of them.
pub(super) fn claim(pod: &Pod, exclusive: &str, entry: &str, vcpu: TaskId) -> Record {
    let cpu = cpus(exclusive).iter().last();
    let role = ThreadRole::Vcpu(0);
    Record {
        pod: pod.uid.clone(),
        container: "vm".to_owned(),
        origin: pod.origin.clone(),
        exclusive: cpus(exclusive),
        entry: cpus(entry),
        mems: NodeSet::new(),
        partition: Partition::Root,
        vcpus: vec![VcpuThread { role, task: vcpu, cpu }],
        props: BTreeMap::new(),
        registered_us: 1,
        isolated_us: 1,
        ..recorded()
    }
}

/// The kernel's owner of a cgroup needs no daemon to write these.
pub(super) fn plant(model: &Model, pod: &Pod, record: &Record, planted: Planted) {
    let tree = Tree::in_place(pod.origin.clone());
    let place = match planted {
        Planted::OnContainer => RecordPlace::on_scope(tree.outer().clone()),
        _ => tree.place().clone(),
    };
    let cgroup = match planted {
        Planted::OnPod => place.cgroup(),
        _ => tree.outer(),
    };
    for (name, value) in record.attributes() {
        model.set_attribute(cgroup, &place.name(name), &value).unwrap();
    }
}

impl Node {
    async fn found(&mut self, pod: &Pod, record: &Record, planted: Planted) {
        self.stop().await;
        plant(&self.model, pod, record, planted);
        self.start();
        self.catch_up().await;
    }

    fn task(&self, id: i32) -> TaskId {
        self.model.identify(id).unwrap()
    }

    fn kubepods(&self) -> String {
        let kubepods = CgroupPath::root().child("kubepods.slice");
        self.model.read(&kubepods, File::CpusExclusive).unwrap_or_default()
    }

    /// The exclusive CPUs of all instances.
    fn owned(&self) -> CpuSet {
        let view = self.handle.view();
        view.instances
            .values()
            .flat_map(|instance| instance.exclusive.iter().collect::<Vec<_>>())
            .collect()
    }

    fn has_record(&self, pod: &Pod) -> bool {
        let names = self.model.attributes(&pod_of(pod)).unwrap_or_default();
        names.keys().any(|name| name.contains('.'))
    }
}

#[tokio::test]
async fn a_forged_record_moves_no_process_of_the_host() {
    for planted in EVERYWHERE {
        let mut node = Node::new();
        let attacker = node.pod(2, "4-5");
        let victims: Vec<_> = node.model.tasks();
        let victims = victims
            .into_iter()
            .filter(|(_, cgroup, _)| !cgroup.as_str().contains("kubepods"));
        let victim = victims.min().unwrap();
        let record = claim(&attacker, "4-5", "4-5", node.task(victim.0));
        node.found(&attacker, &record, planted).await;
        assert_eq!(node.model.cgroup(victim.0).unwrap(), victim.1, "{planted:?}");
        assert_eq!(node.model.affinity(victim.0).unwrap(), victim.2, "{planted:?}");
        assert_eq!(node.phase(&attacker), None, "{planted:?}");
        assert_eq!(node.kubepods(), "", "{planted:?}");
        node.check().await;
    }
}

#[tokio::test]
async fn a_forged_record_takes_no_shared_cpus() {
    for planted in EVERYWHERE {
        for (exclusive, entry) in [("4-7", "4"), ("4-7", "4-7"), ("6-7", "6-7")] {
            let mut node = Node::new();
            let attacker = node.pod(2, "4");
            let record = claim(&attacker, exclusive, entry, node.task(attacker.other));
            node.found(&attacker, &record, planted).await;
            let case = format!("{planted:?}: {exclusive} of {entry}");
            assert!(node.owned().is_subset(&cpus("4")), "{case}: {}", node.owned());
            assert!(
                cpus(&node.kubepods()).is_subset(&cpus("4")),
                "{case}: {}",
                node.kubepods()
            );
            for (tid, _, runs_on) in node.model.tasks() {
                assert!(
                    runs_on.len() > 1 || runs_on == cpus("4"),
                    "{case}: thread {tid} on {runs_on}"
                );
            }
            assert_eq!(
                node.checkpoint.default_cpus().intersection(&node.owned()),
                CpuSet::new()
            );
            node.check().await;
        }
    }
}

#[tokio::test]
async fn a_forged_record_does_not_stand_for_another_pod() {
    for planted in EVERYWHERE {
        let mut node = Node::in_place().await;
        let (victim, qemu) = node.isolated(1, "2-3").await;
        let attacker = node.pod(2, "4-5");
        let record = Record {
            pod: victim.uid.clone(),
            ..claim(&attacker, "4-5", "4-5", node.task(attacker.other))
        };
        node.found(&attacker, &record, planted).await;
        let view = node.handle.view();
        let shown = &view.instances[&victim.uid];
        assert_eq!(
            (shown.state.name(), shown.exclusive.to_string()),
            ("isolated", "2-3".to_owned()),
            "{planted:?}"
        );
        assert_eq!(shown.scope, victim.origin, "{planted:?}");
        assert_eq!(node.phase(&attacker), None);
        // And it is maintained.
        let vcpu = victim.origin.child("vcpu");
        node.model.meddle(&vcpu, File::Partition, "member").unwrap();
        node.catch_up().await;
        assert_ne!(node.read(&vcpu, File::Partition), "member", "{planted:?}");
        assert_eq!(node.model.affinity(qemu.vcpus[0]).unwrap(), cpus("2"));
        node.check().await;
    }
}

/// Its vCPU is the victim's, whose record is as it was.
#[tokio::test]
async fn a_forged_record_does_not_take_another_pods_threads_or_cpus() {
    for planted in EVERYWHERE {
        let mut node = Node::in_place().await;
        let (victim, qemu) = node.isolated(1, "2-3").await;
        let attacker = node.pod(2, "4-5");
        let record = claim(&attacker, "2-5", "2-5", node.task(qemu.vcpus[0]));
        node.found(&attacker, &record, planted).await;
        assert_eq!(node.phase(&attacker), None, "{planted:?}");
        assert_eq!(node.phase(&victim), Some("isolated"), "{planted:?}");
        let vcpu = victim.origin.child("vcpu");
        assert_eq!(node.model.cgroup(qemu.vcpus[0]).unwrap(), vcpu);
        node.check().await;
    }
}

/// The origin decides whose tasks may be moved.
#[tokio::test]
async fn a_record_whose_origin_is_not_the_container_is_not_believed() {
    for planted in EVERYWHERE {
        let mut node = Node::new();
        let attacker = node.pod(2, "4-5");
        let bystander = node.pod(3, "6");
        for origin in ["/init.scope", "/system.slice", "/", bystander.origin.as_str()] {
            let record = Record {
                origin: CgroupPath::parse(origin).unwrap(),
                ..claim(&attacker, "4-5", "4-5", node.task(bystander.other))
            };
            let before = node.model.tasks();
            node.found(&attacker, &record, planted).await;
            assert_eq!(node.model.tasks(), before, "{planted:?} {origin}");
            assert_eq!(node.phase(&attacker), None, "{planted:?} {origin}");
            node.check().await;
        }
    }
}

/// A record of another version, and lists that the container should not have been able to write.
async fn unreadable(planted: Planted) -> (Node, Pod) {
    let mut node = Node::new();
    let attacker = node.pod(2, "4-5");
    node.stop().await;
    plant(
        &node.model,
        &attacker,
        &claim(&attacker, "6-7", "6-7", TaskId { id: 1, start: 1 }),
        planted,
    );
    let tree = Tree::in_place(attacker.origin.clone());
    let (cgroup, name) = match planted {
        Planted::OnPod => (tree.place().cgroup(), tree.place().name("schema")),
        Planted::ByItsNameOnContainer => (tree.outer(), tree.place().name("schema")),
        Planted::OnContainer => (tree.outer(), "schema".to_owned()),
    };
    node.model.set_attribute(cgroup, &name, "9").unwrap();
    node.model.meddle(&attacker.origin, File::CpusExclusive, "6-7").unwrap();
    node.start();
    node.catch_up().await;
    (node, attacker)
}

#[tokio::test]
async fn a_record_of_another_version_keeps_nobody_from_his_cpus_and_ends_with_its_container() {
    for planted in EVERYWHERE {
        let (mut node, attacker) = unreadable(planted).await;
        assert_eq!(node.kubepods(), "", "{planted:?}");
        let named = usize::from(planted == Planted::OnPod);
        assert_eq!(node.handle.view().unreadable.len(), named, "{planted:?}");
        // The pod lives on.
        node.add_container(&attacker, "0-1");
        let (victim, _) = node.isolated(1, "6-7").await;
        assert_eq!(node.phase(&victim), Some("isolated"), "{planted:?}");
        node.model.end(attacker.init).unwrap();
        assert!(!node.model.exists(&attacker.origin));
        node.catch_up().await;
        assert_eq!(node.handle.view().unreadable, [], "{planted:?}");
        assert!(!node.has_record(&attacker), "{planted:?}");
        node.check().await;
    }
}

#[tokio::test]
async fn a_record_that_could_not_be_used_is_looked_at_again() {
    let mut node = Node::in_place().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    let tree = Tree::in_place(pod.origin.clone());
    let schema = tree.place().name("schema");
    node.stop().await;
    node.model.set_attribute(tree.place().cgroup(), &schema, "9").unwrap();
    node.start();
    node.catch_up().await;
    assert_eq!((node.phase(&pod), node.handle.view().unreadable.len()), (None, 1));
    // What kubelet gave it and the kernel has in its partition stays.
    assert_eq!(node.read(&pod.origin.child("vcpu"), File::Partition), "isolated");
    assert_eq!(node.kubepods(), "2-3");
    node.model.set_attribute(tree.place().cgroup(), &schema, "1").unwrap();
    node.catch_up().await;
    assert_eq!(
        (node.phase(&pod), node.handle.view().unreadable.len()),
        (Some("isolated"), 0)
    );
    node.check().await;
}

#[tokio::test]
async fn without_kubelets_state_an_instance_keeps_what_it_has_and_no_record_claims_more() {
    let mut node = Node::in_place().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let attacker = node.pod(2, "4-5");
    let record = claim(&attacker, "4-5", "4-5", node.task(attacker.other));
    node.checkpoint.write_bytes(b"{}").unwrap();
    node.found(&attacker, &record, Planted::OnPod).await;
    assert_eq!((node.phase(&pod), node.phase(&attacker)), (Some("isolated"), None));
    assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    assert_eq!(node.kubepods(), "2-3");
    node.checkpoint.write().unwrap();
    node.catch_up().await;
    // The record is as good as any that this daemon writes, and asks for no more than kubelet gave.
    assert_eq!(node.phase(&attacker), Some("isolated"));
    assert_eq!(node.owned(), cpus("2-5"));
}

/// A record on the container's own cgroup, where a container may write, is nobody's.
#[tokio::test]
async fn an_instance_with_its_record_on_the_container_is_not_known_and_nothing_of_it_is_harmed() {
    let mut node = Node::in_place().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    node.stop().await;
    let tree = Tree::in_place(pod.origin.clone());
    let all = node.model.attributes(tree.place().cgroup()).unwrap();
    for (name, value) in tree.place().own(&all) {
        node.model
            .remove_attribute(tree.place().cgroup(), &tree.place().name(&name))
            .unwrap();
        node.model.set_attribute(&pod.origin, &name, &value).unwrap();
    }
    let (other, _) = {
        node.start();
        node.isolated(3, "6-7").await
    };
    node.catch_up().await;
    assert_eq!((node.phase(&pod), node.phase(&other)), (None, Some("isolated")));
    for tid in [pod.init, qemu.pid, qemu.vcpus[0], qemu.vcpus[1]] {
        assert!(node.model.cgroup(tid).unwrap().is_within(&pod.origin));
        assert!(node.model.affinity(tid).unwrap().is_subset(&cpus("2-3")));
    }
    // Its CPUs are kubelet's to give and nobody else's claim.
    assert_eq!(node.kubepods(), "6-7");
}

#[tokio::test]
async fn a_pod_without_room_for_a_record_is_refused_by_name_and_the_room_of_dead_containers_is_used() {
    let mut node = Node::in_place().await;
    let pod = node.pod(1, "2-3");
    let tree = Tree::in_place(pod.origin.clone());
    // Of containers that are gone.
    for number in 0..7 {
        let gone = CgroupPath::parse(&format!("{}/cri-containerd-{number}.scope", pod_of(&pod))).unwrap();
        let place = RecordPlace::on_pod(&gone);
        for (name, value) in recorded().attributes() {
            node.model
                .set_attribute(place.cgroup(), &place.name(name), &value)
                .unwrap();
        }
    }
    node.register(&pod).await.unwrap();
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    for number in 0..110 {
        let name = format!("others-{number}");
        node.model.set_attribute(tree.place().cgroup(), &name, "").unwrap();
    }
    let refusal = node.register(&pod).await.unwrap_err().to_string();
    assert!(refusal.contains("the kernel keeps 128"), "{refusal}");
    assert!(!node.has_record(&pod));
    assert_eq!(node.phase(&pod), None);
}

#[tokio::test]
async fn a_vcpu_that_somebody_moved_to_the_host_is_not_moved_back_and_that_is_said() {
    for tree in [TreeChoice::Slice, TreeChoice::InPlace] {
        let mut node = Node::new();
        node.settings.policies.tree = tree;
        node.restart().await;
        let (pod, qemu) = node.isolated(1, "2-3").await;
        let elsewhere = CgroupPath::parse("/init.scope").unwrap();
        node.model
            .meddle(&elsewhere, File::Procs, &qemu.pid.to_string())
            .unwrap();
        node.catch_up().await;
        assert_eq!(node.model.cgroup(qemu.vcpus[0]).unwrap(), elsewhere);
        let told: Vec<String> = node.handle.view().instances[&pod.uid]
            .degraded
            .iter()
            .map(|reason| reason.text.clone())
            .collect();
        assert!(told.iter().any(|text| text.contains("outside")), "{told:?}");
        // Back in its container it is the VM's again.
        node.model
            .meddle(&pod.origin, File::Procs, &qemu.pid.to_string())
            .unwrap();
        node.catch_up().await;
        assert_eq!(node.model.affinity(qemu.vcpus[0]).unwrap(), cpus("2"), "{tree:?}");
        node.check().await;
    }
}
