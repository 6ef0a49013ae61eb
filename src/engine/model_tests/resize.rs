//! Another number of CPUs for VMs whose CPUs steliad chose.

use stelia_koordinator::allocator::{AllocationRequest, CpuBindPolicy};

use super::*;
use crate::engine::ResizeRequest;

impl Node {
    /// A VM that has so many CPUs by steliad, and as many vCPUs.
    async fn chosen(&mut self, number: u32, cpus: u32) -> (Pod, Qemu) {
        let pod = self.limited(number, cpus);
        let request = AllocationRequest {
            cpu_bind_policy: Some(CpuBindPolicy::FullPcpus),
            ..AllocationRequest::default()
        };
        self.ask(&pod, request).await.unwrap();
        let qemu = self.started(&pod, cpus).await;
        (pod, qemu)
    }

    async fn resize_to(&self, pod: &Pod, cpus: u32, dry_run: bool) -> Result<(CpuSet, bool), Error> {
        let request = ResizeRequest {
            pod: pod.uid.clone(),
            cpus,
            dry_run,
        };
        let answer = self.handle.resize(request).await?;
        self.quiet().await;
        Ok((answer.cpus, answer.waits))
    }
}

#[tokio::test]
async fn a_vm_grows_on_the_cpus_that_it_has_and_more() {
    let mut node = allocator::node().await;
    let (pod, _) = node.chosen(1, 2).await;
    let before = node.exclusive(&pod);
    let changes = node.model.changes();
    let planned = node.resize_to(&pod, 4, true).await.unwrap();
    assert_eq!(
        (node.exclusive(&pod), node.model.changes()),
        (before.clone(), changes),
        "a dry run"
    );
    assert_eq!(node.resize_to(&pod, 4, false).await.unwrap(), planned);
    let (after, waits) = planned;
    assert!(
        before.is_subset(&after) && after.len() == 4 && !waits,
        "{before} {after}"
    );
    assert_eq!(node.exclusive(&pod), after);
    let allocation = node.handle.view().instances[&pod.uid].allocation.clone().unwrap();
    assert!(allocation.explanation.iter().any(|line| line.starts_with("resized")));
    node.check().await;
}

#[tokio::test]
async fn a_vm_shrinks_when_its_vcpus_are_unplugged_and_keeps_its_cpus_when_they_are_not() {
    let mut node = allocator::node().await;
    node.waits_for_vcpus().await;
    let (pod, qemu) = node.chosen(1, 4).await;
    let all = node.exclusive(&pod);
    let (left, waits) = node.resize_to(&pod, 2, false).await.unwrap();
    assert!(waits && left.is_subset(&all) && left.len() == 2, "{all} {left}");
    let view = node.handle.view();
    let shown = &view.instances[&pod.uid];
    assert_eq!((&shown.exclusive, shown.degraded.len()), (&all, 0));
    let pending = shown.pending_resize.unwrap();
    assert_eq!((pending.from, pending.to), (4, 2));
    for ended in &qemu.vcpus[2..] {
        node.model.end(*ended).unwrap();
    }
    let vcpus = qemu.vcpus[..2].to_vec();
    let qemu = Qemu { vcpus, ..qemu };
    node.attach(&pod, &qemu).await.unwrap();
    node.quiet().await;
    assert_eq!(node.exclusive(&pod), left);
    assert_eq!(node.handle.view().instances[&pod.uid].pending_resize, None);
    node.check().await;

    // This guest gives up none.
    node.settings.unplug_timeout = Duration::from_millis(50);
    node.handle.reload(node.settings.clone()).await.unwrap();
    assert!(node.resize_to(&pod, 1, false).await.unwrap().1);
    while node.handle.view().instances[&pod.uid].pending_resize.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It is over, and nothing waits again.
    for _ in 0..3 {
        node.catch_up().await;
        assert_eq!(node.handle.view().instances[&pod.uid].pending_resize, None);
    }
    let view = node.handle.view();
    let shown = &view.instances[&pod.uid];
    assert_eq!(
        (&shown.exclusive, shown.pending_resize, shown.degraded.len()),
        (&left, None, 0)
    );
    node.check().await;
}

#[tokio::test]
async fn without_time_for_the_guest_fewer_cpus_than_vcpus_are_refused() {
    let mut node = allocator::node().await;
    let (pod, _) = node.chosen(1, 4).await;
    let all = node.exclusive(&pod);
    for dry_run in [true, false] {
        let refused = node.resize_to(&pod, 2, dry_run).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
        assert!(refused.text.contains("unplug-timeout-s is 0"), "{refused}");
    }
    assert_eq!(node.exclusive(&pod), all);
    node.check().await;
}

#[tokio::test]
async fn a_vm_with_more_vcpus_than_cpus_is_given_more_at_once() {
    let mut node = allocator::node().await;
    node.waits_for_vcpus().await;
    let pod = node.limited(1, 2);
    node.ask(&pod, AllocationRequest::default()).await.unwrap();
    node.started(&pod, 4).await;
    let before = node.exclusive(&pod);
    assert_eq!(node.resize_to(&pod, 2, false).await.unwrap(), (before.clone(), false));
    let (after, waits) = node.resize_to(&pod, 3, false).await.unwrap();
    assert!(
        !waits && before.is_subset(&after) && after.len() == 3,
        "{before} {after}"
    );
    assert_eq!(node.exclusive(&pod), after);
    node.check().await;
}

#[tokio::test]
async fn what_steliad_did_not_choose_or_does_not_have_is_refused() {
    let mut node = allocator::node().await;
    let (pod, _) = node.chosen(1, 2).await;
    for (cpus, kind) in [(0, ErrorKind::InvalidArgument), (64, ErrorKind::NotAllocated)] {
        assert_eq!(
            node.resize_to(&pod, cpus, false).await.unwrap_err().kind,
            kind,
            "{cpus}"
        );
    }
    let stranger = ResizeRequest {
        pod: uid(9),
        cpus: 2,
        dry_run: false,
    };
    let refused = node.handle.resize(stranger).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSuchInstance);
    let mut kubelets = Node::new();
    let (pod, _) = kubelets.isolated(1, "2-3").await;
    let refused = kubelets.resize_to(&pod, 4, false).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    assert!(refused.text.contains("kubelet chose its CPUs"), "{refused}");
    node.check().await;
}

#[tokio::test]
async fn a_new_resize_has_a_time_of_its_own() {
    let mut node = allocator::node().await;
    node.waits_for_vcpus().await;
    let (pod, _) = node.chosen(1, 4).await;
    node.resize_to(&pod, 2, false).await.unwrap();
    let deadline = |node: &Node| {
        node.handle.view().instances[&pod.uid]
            .pending_resize
            .unwrap()
            .deadline_us
    };
    let first = deadline(&node);
    tokio::time::sleep(Duration::from_millis(10)).await;
    node.resize_to(&pod, 1, false).await.unwrap();
    assert!(deadline(&node) > first);
    node.check().await;
}

#[tokio::test]
async fn a_vm_with_more_vcpus_than_cpus_waits_again_after_a_refusal() {
    let mut node = allocator::node().await;
    node.settings.unplug_timeout = Duration::from_millis(50);
    node.handle.reload(node.settings.clone()).await.unwrap();
    let pod = node.limited(1, 3);
    node.ask(&pod, AllocationRequest::default()).await.unwrap();
    node.started(&pod, 4).await;
    node.resize_to(&pod, 2, false).await.unwrap();
    while node.handle.view().instances[&pod.uid].pending_resize.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.waits_for_vcpus().await;
    node.resize_to(&pod, 2, false).await.unwrap();
    let pending = node.handle.view().instances[&pod.uid].pending_resize;
    assert_eq!(pending.map(|pending| (pending.from, pending.to)), Some((3, 2)));
    node.check().await;
}

#[tokio::test]
async fn a_container_that_registers_again_after_a_resize_keeps_its_instance() {
    let node = allocator::node().await;
    let pod = node.limited(1, 2);
    let request = AllocationRequest {
        cpus: Some(2),
        ..AllocationRequest::default()
    };
    node.ask(&pod, request.clone()).await.unwrap();
    node.started(&pod, 2).await;
    node.resize_to(&pod, 4, false).await.unwrap();
    node.ask(&pod, request).await.unwrap();
    assert_eq!(node.exclusive(&pod).len(), 4);
    node.check().await;
}
