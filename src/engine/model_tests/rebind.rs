//! Rebind jobs: running VMs move to better CPUs, and a daemon that dies in the middle leaves every one whole.

use stelia_cpus::NodeSet;
use stelia_koordinator::allocator::{AllocationRequest, CpuBindPolicy, Qos};
use stelia_model as model;

use super::*;
use crate::engine::RebindRequest;

impl Node {
    /// What is left when others ended: a VM whose two CPUs lie on two NUMA nodes.
    async fn fragmented(&mut self) -> (Pod, Qemu) {
        let vm = self.fill_up(3, 2).await;
        self.ask(&vm, full()).await.unwrap();
        let qemu = self.started(&vm, 2).await;
        self.end_fillers().await;
        (vm, qemu)
    }

    /// Others take all CPUs but one of each NUMA node. Returns a pod with this number and limit.
    async fn fill_up(&mut self, number: u32, limit: u32) -> Pod {
        self.settings.rebind_interval = Duration::ZERO;
        self.handle.reload(self.settings.clone()).await.unwrap();
        // 0 is reserved: three CPUs of node 0 and four of node 1.
        for (number, limit) in [(1, 2), (2, 3)] {
            let pod = self.limited(number, limit);
            self.ask(&pod, full()).await.unwrap();
        }
        self.limited(number, limit)
    }

    async fn end_fillers(&self) {
        for number in [1, 2] {
            self.handle.deregister(uid(number)).await.unwrap();
        }
    }

    async fn begin(&self, dry_run: bool) -> Result<crate::engine::calls::rebind::RebindAnswer, Error> {
        self.handle
            .rebind(RebindRequest {
                scope: "node".into(),
                deadline_s: 0,
                dry_run,
            })
            .await
    }

    async fn ended(&self, id: u32) -> model::Job {
        loop {
            let view = self.handle.view();
            let job = view.jobs.iter().find(|job| job.id == id).unwrap();
            if job.phase != model::JobPhase::Pending {
                return job.clone();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn nodes(&self, pod: &Pod) -> usize {
        let nodes: NodeSet = self.exclusive(pod).iter().map(|cpu| cpu / 4).collect();
        nodes.len()
    }
}

fn full() -> AllocationRequest {
    AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::FullPcpus),
        ..AllocationRequest::default()
    }
}

#[tokio::test]
async fn a_running_vm_moves_to_one_numa_node_and_nothing_else_is_touched() {
    let mut node = allocator::node().await;
    let (vm, qemu) = node.fragmented().await;
    assert_eq!(node.nodes(&vm), 2, "{}", node.exclusive(&vm));
    let bystander = node.registered(7, 1, Qos::Ls).await;
    let changes = node.model.changes();
    let (none, planned) = node.begin(true).await.unwrap();
    assert_eq!((none, node.model.changes()), (None, changes), "a dry run");
    assert!(planned[0].gain.contains("NUMA nodes: 2 -> 1"), "{planned:?}");
    let (id, _) = node.begin(false).await.unwrap();
    let job = node.ended(id.unwrap()).await;
    assert_eq!(
        (&job.phase, &job.moves),
        (&model::JobPhase::Succeed, &planned),
        "{job:?}"
    );
    assert_eq!(node.nodes(&vm), 1);
    assert_eq!(node.phase(&vm), Some("isolated"));
    for tid in &qemu.vcpus {
        assert!(node.model.affinity(*tid).unwrap().is_subset(&node.exclusive(&vm)));
    }
    let rest = cpus("0-7").difference(&node.exclusive(&vm));
    assert_eq!(node.floats(&bystander), rest);
    node.check().await;
    let told = &node.handle.view().instances[&vm.uid]
        .allocation
        .clone()
        .unwrap()
        .explanation;
    assert!(told.last().unwrap().starts_with("rebound from"), "{told:?}");
    // Nothing is left to gain.
    let (id, planned) = node.begin(false).await.unwrap();
    assert_eq!(planned, []);
    assert_eq!(node.ended(id.unwrap()).await.phase, model::JobPhase::Succeed);
}

#[tokio::test]
async fn a_whole_container_moves_with_its_partition() {
    let mut node = allocator::node().await.allowing_containers().await;
    let pod = node.fill_up(3, 2).await;
    node.register_container(&pod).await.unwrap();
    node.end_fillers().await;
    assert_eq!(node.nodes(&pod), 2, "{}", node.exclusive(&pod));
    let (id, planned) = node.begin(false).await.unwrap();
    assert_eq!(planned.len(), 1, "{planned:?}");
    let job = node.ended(id.unwrap()).await;
    assert_eq!(job.phase, model::JobPhase::Succeed, "{job:?}");
    assert_eq!(node.nodes(&pod), 1);
    assert_eq!(node.phase(&pod), Some("isolated"));
    assert_eq!(
        node.read(&pod.origin, File::CpusEffective),
        node.exclusive(&pod).to_string()
    );
    node.check().await;
}

#[tokio::test]
async fn a_move_that_does_not_hold_is_taken_back() {
    let mut node = allocator::node().await;
    let (vm, _) = node.fragmented().await;
    let before = node.handle.view().instances[&vm.uid].clone();
    let (_, planned) = node.begin(true).await.unwrap();
    // Somebody outside holds the first CPU it would go to as a partition of his own.
    let taken = planned[0].to.iter().next().into_iter().collect::<CpuSet>();
    let other = CgroupPath::root().child("system.slice");
    node.model
        .meddle(&other, File::CpusExclusive, &taken.to_string())
        .unwrap();
    node.model.meddle(&other, File::Partition, "root").unwrap();
    let (id, _) = node.begin(false).await.unwrap();
    let job = node.ended(id.unwrap()).await;
    assert_eq!(job.phase, model::JobPhase::Failed, "{job:?}");
    assert!(job.reason.contains("stays on"), "{job:?}");
    let after = node.handle.view().instances[&vm.uid].clone();
    assert_eq!(
        (&after.exclusive, &after.vcpus, after.state.name()),
        (&before.exclusive, &before.vcpus, "isolated")
    );
}

#[tokio::test]
async fn one_job_at_a_time_and_not_too_often() {
    let mut node = allocator::node().await;
    let (_, _) = node.fragmented().await;
    node.settings.rebind_interval = Duration::from_secs(3600);
    node.handle.reload(node.settings.clone()).await.unwrap();
    let (id, _) = node.begin(false).await.unwrap();
    node.ended(id.unwrap()).await;
    assert_eq!(kind(node.begin(false).await), ErrorKind::Busy);
    assert!(node.begin(true).await.is_ok(), "a dry run costs nothing");
    let stranger = RebindRequest {
        scope: "some-pod".into(),
        deadline_s: 0,
        dry_run: false,
    };
    assert_eq!(kind(node.handle.rebind(stranger).await), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn no_job_begins_where_kubelet_chooses() {
    let mut node = Node::new();
    node.isolated(1, "2-3").await;
    assert_eq!(kind(node.begin(false).await), ErrorKind::InvalidArgument);
    assert_eq!(node.handle.view().jobs, []);
}

#[tokio::test]
async fn a_daemon_that_dies_in_the_middle_leaves_every_vm_whole() {
    for changes in 0.. {
        let mut node = allocator::node().await;
        let (vm, _) = node.fragmented().await;
        let model = node.model.clone();
        model.cut_after(changes);
        let cut = async {
            while !model.is_cut() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let done = tokio::select! {
            job = async { node.ended(node.begin(false).await.ok()?.0?).await.into() } => Option::<model::Job>::is_some(&job),
            () = cut => false,
        };
        // It may have been cut off while it wrote that it was done.
        let done = done && !model.is_cut();
        node.running.abort();
        let _ = (&mut node.running).await;
        (node.handle, node.cancel, node.running) = start(&node.model, &node.settings);
        node.reconcile().await;
        node.check().await;
        assert_eq!(node.phase(&vm), Some("isolated"), "after {changes} changes");
        assert_eq!(node.exclusive(&vm).len(), 2);
        let phases: Vec<_> = node.handle.view().jobs.iter().map(|job| job.phase).collect();
        assert!(!phases.contains(&model::JobPhase::Pending), "{phases:?}");
        if done {
            assert_eq!(phases, [model::JobPhase::Succeed]);
            return;
        }
        assert!(
            phases.iter().all(|phase| *phase == model::JobPhase::Unknown),
            "{phases:?} after {changes}"
        );
    }
}
