//! kubelet gives running VMs other CPUs, and theirs to others: at once, and while no daemon runs.

use rstest::rstest;
use stelia_api::ReasonCode;
use stelia_koordinator::allocator::CpuSource;

use super::*;

/// A pod that is no VM.
const WEB: u32 = 7;

impl Node {
    /// A node whose instances have their cgroups there.
    async fn home(tree: TreeHome) -> Self {
        match tree {
            TreeHome::Slice => Self::new(),
            TreeHome::InPlace => Self::in_place().await,
        }
    }

    /// kubelet gives these pods these CPUs instead of theirs, and those to the other pod, before anybody looks.
    fn reassign(&mut self, to: &[(&Pod, &str)], web: Option<&str>) {
        for (pod, _) in to {
            self.checkpoint.release(&pod.uid).unwrap();
        }
        for (pod, list) in to {
            self.checkpoint.admit(&pod.uid, "vm", &cpus(list)).unwrap();
        }
        if let Some(web) = web {
            self.checkpoint.admit(&uid(WEB), "web", &cpus(web)).unwrap();
        }
        self.follow(to);
    }

    /// The runtime writes the CPUs of the containers. What the kernel refuses because of a partition that is still there, kubelet has
    /// written again later.
    fn follow(&self, to: &[(&Pod, &str)]) {
        for (pod, list) in to {
            let _ = self.model.meddle(&pod.origin, File::Cpus, list);
        }
    }

    async fn settle(&self, to: &[(&Pod, &str)]) {
        for _ in 0..4 {
            self.catch_up().await;
            self.follow(to);
        }
    }

    /// A VM with so many vCPUs that runs isolated on these CPUs.
    async fn with_vcpus(&mut self, number: u32, list: &str, vcpus: u32) -> (Pod, Qemu) {
        let pod = self.pod(number, list);
        self.register(&pod).await.unwrap();
        let qemu = self.started(&pod, vcpus).await;
        assert_eq!(self.phase(&pod), Some("isolated"));
        (pod, qemu)
    }

    fn assert_on(&self, pod: &Pod, qemu: &Qemu, list: &str) {
        let view = self.handle.view();
        let shown = &view.instances[&pod.uid];
        assert_eq!(
            (shown.state.name(), &shown.exclusive),
            ("isolated", &cpus(list)),
            "{:?}",
            shown.degraded
        );
        for vcpu in &qemu.vcpus {
            assert_eq!(self.model.cgroup(*vcpu).unwrap().name(), "vcpu");
            assert!(self.model.affinity(*vcpu).unwrap().is_subset(&cpus(list)));
        }
    }
}

#[rstest]
#[case::moved("2-3", 2, "4-5", "2-3")]
#[case::shrunk("2-5", 2, "2-3", "4-5")]
#[case::shrunk_below_its_vcpus("2-5", 4, "4-5", "2-3")]
#[case::grown_elsewhere("2-3", 2, "3-5", "2")]
#[case::kept_one("2-3", 2, "3-4", "2")]
#[tokio::test]
async fn a_vm_ends_on_its_new_cpus_whoever_has_its_former_ones(
    #[case] before: &str,
    #[case] vcpus: u32,
    #[case] after: &str,
    #[case] web: &str,
    #[values(TreeHome::Slice, TreeHome::InPlace)] tree: TreeHome,
    #[values(true, false)] runs: bool,
) {
    let mut node = Node::home(tree).await;
    let (pod, qemu) = node.with_vcpus(1, before, vcpus).await;
    if !runs {
        node.stop().await;
    }
    node.reassign(&[(&pod, after)], Some(web));
    if !runs {
        node.start();
    }
    node.settle(&[(&pod, after)]).await;
    node.assert_on(&pod, &qemu, after);
    node.check().await;
    // The other pod's CPUs are its alone: it may become a VM.
    let other = node.plain_pod(WEB, web);
    node.register(&other).await.unwrap();
    let second = node.model.add_qemu(other.init, cpus(web).len() as u32).unwrap();
    node.attach(&other, &second).await.unwrap();
    node.assert_on(&other, &second, web);
    node.check().await;
}

impl Node {
    /// A VM with 4 vCPUs on CPUs 2-5 whose container is resized to CPUs 2-3.
    async fn shrunk(&mut self) -> (Pod, Qemu) {
        self.waits_for_vcpus().await;
        let (pod, qemu) = self.with_vcpus(1, "2-5", 4).await;
        self.reassign(&[(&pod, "2-3")], None);
        self.catch_up().await;
        (pod, qemu)
    }

    /// VMs wait for their vCPUs to be unplugged, as by default.
    pub(super) async fn waits_for_vcpus(&mut self) {
        self.settings.unplug_timeout = Settings::default().unplug_timeout;
        self.handle.reload(self.settings.clone()).await.unwrap();
    }

    fn pending(&self, pod: &Pod) -> Option<(u32, u32)> {
        let resize = self.handle.view().instances[&pod.uid].pending_resize?;
        assert!(resize.deadline_us > 0);
        Some((resize.from, resize.to))
    }
}

#[tokio::test]
async fn a_vm_that_shrinks_keeps_its_cpus_until_its_vcpus_are_unplugged() {
    let mut node = Node::new();
    let (pod, qemu) = node.shrunk().await;
    node.assert_on(&pod, &qemu, "2-5");
    assert_eq!(node.pending(&pod), Some((4, 2)));
    assert_eq!(node.handle.view().instances[&pod.uid].degraded, []);
    // The runner attaches the vCPUs that are left.
    for ended in &qemu.vcpus[2..] {
        node.model.end(*ended).unwrap();
    }
    let left = Qemu {
        vcpus: qemu.vcpus[..2].to_vec(),
        ..qemu
    };
    node.attach(&pod, &left).await.unwrap();
    node.quiet().await;
    node.assert_on(&pod, &left, "2-3");
    assert_eq!(node.pending(&pod), None);
    node.check().await;
}

/// The guest agent takes vCPUs offline first, and then their threads end almost at once.
#[tokio::test]
async fn a_vm_whose_vcpus_end_before_the_rest_is_attached_keeps_a_cpu_for_each() {
    let mut node = Node::new();
    let (pod, qemu) = node.shrunk().await;
    for ended in [qemu.vcpus[0], qemu.vcpus[2]] {
        node.model.end(ended).unwrap();
    }
    node.catch_up().await;
    let left = Qemu {
        vcpus: vec![qemu.vcpus[1], qemu.vcpus[3]],
        ..qemu
    };
    node.assert_on(&pod, &left, "2-3");
    let pinned: Vec<CpuSet> = left
        .vcpus
        .iter()
        .map(|vcpu| node.model.affinity(*vcpu).unwrap())
        .collect();
    assert_eq!(pinned, [cpus("2"), cpus("3")]);
    assert_eq!(node.handle.view().instances[&pod.uid].degraded, []);
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "isolated");
    node.check().await;
}

#[tokio::test]
async fn a_daemon_that_starts_meanwhile_waits_no_longer() {
    let mut node = Node::new();
    let (pod, qemu) = node.shrunk().await;
    node.stop().await;
    node.start();
    node.settle(&[(&pod, "2-3")]).await;
    node.assert_on(&pod, &qemu, "2-3");
    node.check().await;
}

#[tokio::test]
async fn cpus_that_another_pod_is_given_meanwhile_are_left_at_once() {
    let mut node = Node::new();
    let (pod, qemu) = node.shrunk().await;
    node.checkpoint.admit(&uid(WEB), "web", &cpus("5")).unwrap();
    node.settle(&[(&pod, "2-3")]).await;
    node.assert_on(&pod, &qemu, "2-3");
    assert_eq!(node.pending(&pod), None);
    node.check().await;
}

#[tokio::test]
async fn a_guest_that_keeps_its_vcpus_shares_the_cpus_that_are_left_and_that_is_said() {
    let mut node = Node::new();
    let (pod, qemu) = node.with_vcpus(1, "2-5", 4).await;
    node.reassign(&[(&pod, "2-3")], None);
    node.settle(&[(&pod, "2-3")]).await;
    node.assert_on(&pod, &qemu, "2-3");
    let degraded = node.handle.view().instances[&pod.uid].degraded.clone();
    assert!(degraded[0].text.contains("guest did not give"), "{degraded:?}");
    // Given back, each vCPU has a CPU of its own again.
    node.reassign(&[(&pod, "2-5")], None);
    node.settle(&[(&pod, "2-5")]).await;
    node.assert_on(&pod, &qemu, "2-5");
    assert_eq!(node.handle.view().instances[&pod.uid].degraded, []);
    node.check().await;
}

#[rstest]
#[tokio::test]
async fn vms_that_exchange_their_cpus_end_on_each_others(
    #[values(TreeHome::Slice, TreeHome::InPlace)] tree: TreeHome,
    #[values(true, false)] runs: bool,
    #[values(2, 3)] count: u32,
) {
    let lists = ["1-2", "3-4", "5-6"];
    let mut node = Node::home(tree).await;
    let mut vms = Vec::new();
    for number in 0..count {
        vms.push(node.with_vcpus(number, lists[number as usize], 2).await);
    }
    if !runs {
        node.stop().await;
    }
    let to: Vec<(&Pod, &str)> = (1..=count as usize)
        .zip(&vms)
        .map(|(next, (pod, _))| (pod, lists[next % count as usize]))
        .collect();
    node.reassign(&to, None);
    if !runs {
        node.start();
    }
    node.settle(&to).await;
    for ((pod, qemu), (_, list)) in vms.iter().zip(&to) {
        node.assert_on(pod, qemu, list);
    }
    node.check().await;
}

#[tokio::test]
async fn a_vm_that_kubelet_moves_is_followed_where_steliad_chooses_cpus_too() {
    let mut node = Node::new();
    node.settings.policies.allocator.source = CpuSource::Steliad;
    node.handle.reload(node.settings.clone()).await.unwrap();
    let (pod, qemu) = node.with_vcpus(1, "2-3", 2).await;
    node.reassign(&[(&pod, "4-5")], Some("2-3"));
    node.settle(&[(&pod, "4-5")]).await;
    node.assert_on(&pod, &qemu, "4-5");
    node.check().await;
}

#[tokio::test]
async fn a_vm_that_floats_or_is_not_attached_yet_is_followed_too() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    node.reassign(&[(&pod, "4-5")], Some("2-3"));
    node.settle(&[(&pod, "4-5")]).await;
    let qemu = node.started(&pod, 2).await;
    node.assert_on(&pod, &qemu, "4-5");
    node.check().await;
    // It loses its CPUs without being given others, and is given others later.
    node.checkpoint.release(&pod.uid).unwrap();
    node.checkpoint.admit(&uid(8), "web", &cpus("5")).unwrap();
    node.settle(&[]).await;
    assert_eq!(node.phase(&pod), Some("evicted"));
    node.reassign(&[(&pod, "1,6")], None);
    node.settle(&[(&pod, "1,6")]).await;
    node.assert_on(&pod, &qemu, "1,6");
    node.check().await;
}

/// Until kubelet's file is free of the contradiction nothing is taken from either.
#[tokio::test]
async fn a_vm_that_kubelet_moves_onto_another_vm_stays_where_it_is_and_says_so() {
    let mut node = Node::new();
    let (first, qemu) = node.with_vcpus(1, "2-3", 2).await;
    let (second, other) = node.with_vcpus(2, "4-5", 2).await;
    node.reassign(&[(&first, "4-5")], None);
    node.settle(&[]).await;
    node.assert_on(&second, &other, "4-5");
    let view = node.handle.view();
    let shown = &view.instances[&first.uid];
    assert_eq!(shown.state, State::Waiting);
    assert!(
        shown.degraded.iter().any(|reason| reason.code == ReasonCode::CpusInUse),
        "{:?}",
        shown.degraded
    );
    for vcpu in &qemu.vcpus {
        assert!(node.model.affinity(*vcpu).unwrap().is_disjoint(&cpus("4-5")));
    }
    // The other one ends.
    node.model.kill_pod(&second).unwrap();
    node.checkpoint.release(&second.uid).unwrap();
    node.reassign(&[(&first, "4-5")], None);
    node.settle(&[(&first, "4-5")]).await;
    node.assert_on(&first, &qemu, "4-5");
    node.check().await;
}

/// A vCPU a CPU needs no scheduler that balances them.
#[tokio::test]
async fn a_vm_that_has_as_many_cpus_as_vcpus_again_has_an_isolated_partition_again() {
    let mut node = Node::new();
    let (pod, qemu) = node.with_vcpus(1, "2-3", 2).await;
    node.reassign(&[(&pod, "3")], None);
    node.settle(&[(&pod, "3")]).await;
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "root");
    node.reassign(&[(&pod, "3-4")], None);
    node.settle(&[(&pod, "3-4")]).await;
    assert_eq!(node.read(&vcpu(&pod), File::Partition), "isolated");
    node.assert_on(&pod, &qemu, "3-4");
    node.check().await;
}

#[tokio::test]
async fn a_pod_that_is_given_what_a_vm_has_still_to_give_up_registers_as_soon_as_it_has() {
    let mut node = Node::new();
    let (pod, _) = node.shrunk().await;
    assert_eq!(node.pending(&pod), Some((4, 2)));
    node.checkpoint.admit(&uid(WEB), "vm", &cpus("4-5")).unwrap();
    let other = node.plain_pod(WEB, "4-5");
    // It is not tried again because its time is nearly over.
    let request = RegisterRequest {
        timeout: Duration::from_secs(3600),
        ..node.request(&other)
    };
    let registered = tokio::time::timeout(Duration::from_secs(60), node.handle.register(request));
    registered.await.unwrap().unwrap();
    node.check().await;
}
