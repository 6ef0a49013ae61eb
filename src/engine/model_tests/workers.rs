//! A kernel on which an isolated partition could stop the node: its VMs get root partitions, and the kernel's unbound workers are told to
//! stay away.

use stelia_kernel::workqueue;

use super::*;

impl Node {
    fn older() -> Self {
        let node = Self::new();
        node.model.set_kernel("6.12.107+deb13-amd64");
        node
    }

    /// What stelia.slice's attribute says is withheld.
    fn withheld(&self) -> Option<String> {
        let system = self.handle.system();
        system.cgroups.attribute(&CgroupPath::slice(), "worker-cpus").unwrap()
    }
}

#[tokio::test]
async fn workers_leave_with_the_partition_and_come_back_when_it_is_gone() {
    let mut node = Node::older();
    node.restart().await;
    let (first, _) = node.isolated(0, "2-3").await;
    assert_eq!(
        (node.phase(&first), node.read(&vcpu(&first), File::Partition)),
        (Some("isolated"), "root".into())
    );
    assert_eq!((node.workers(), node.withheld()), (cpus("0-1,4-7"), Some("2-3".into())));
    let (second, _) = node.isolated(1, "6").await;
    assert_eq!(
        (node.workers(), node.withheld()),
        (cpus("0-1,4-5,7"), Some("2-3,6".into()))
    );
    node.check().await;
    node.model.kill_pod(&first).unwrap();
    node.checkpoint.release(&first.uid).unwrap();
    node.quiet().await;
    node.check().await;
    assert_eq!((node.workers(), node.withheld()), (cpus("0-5,7"), Some("6".into())));
    node.deregister(&second).await;
    assert_eq!((node.workers(), node.withheld()), (cpus("0-7"), None));
}

#[tokio::test]
async fn a_daemon_that_comes_back_gives_workers_what_a_vm_left_meanwhile() {
    let mut node = Node::older();
    node.restart().await;
    let (pod, _) = node.isolated(0, "2-3").await;
    let changes = node.model.changes();
    node.restart().await;
    node.check().await;
    assert_eq!((node.workers(), node.model.changes()), (cpus("0-1,4-7"), changes));
    node.stop().await;
    node.model.kill_pod(&pod).unwrap();
    node.checkpoint.release(&pod.uid).unwrap();
    node.start();
    node.reconcile().await;
    node.check().await;
    assert_eq!((node.workers(), node.withheld()), (cpus("0-7"), None));
}

#[tokio::test]
async fn workers_that_somebody_lets_in_again_are_drift_and_an_unwritable_mask_is_told() {
    let mut node = Node::older();
    node.restart().await;
    let (pod, _) = node.isolated(0, "2-3").await;
    node.quiet().await;
    let sys = node.model.system_files();
    workqueue::allow(&sys, &cpus("0-7")).unwrap();
    let report = node.reconcile().await;
    assert_eq!(
        (report.did.repaired, node.workers()),
        (1, cpus("0-1,4-7")),
        "{report:?}"
    );
    node.check().await;
    // A mask cannot be written to a directory.
    workqueue::allow(&sys, &cpus("0-7")).unwrap();
    let file = sys.join("devices/virtual/workqueue/cpumask");
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    std::fs::create_dir(&file).unwrap();
    let degraded = node.reconcile().await.degraded;
    assert!(
        degraded.iter().any(|reason| reason.1.text.contains("cpumask")),
        "{degraded:?}"
    );
    std::fs::remove_dir(&file).unwrap();
    std::fs::rename(file.with_extension("away"), &file).unwrap();
    node.reconcile().await;
    node.check().await;
    assert_eq!(node.phase(&pod), Some("isolated"));
}

#[tokio::test]
async fn an_isolated_partition_that_is_there_already_stays_and_one_that_is_asked_for_is_made() {
    let mut node = Node::new();
    let (first, _) = node.isolated(0, "2-3").await;
    node.model.set_kernel("6.12.107");
    node.restart().await;
    let (second, _) = node.isolated(1, "6").await;
    node.check().await;
    let partitions = |pod| node.read(&vcpu(pod), File::Partition);
    assert_eq!(
        (partitions(&first), partitions(&second)),
        ("isolated".into(), "root".into())
    );
    let mut node = Node::older();
    node.settings.policies.partition = Some(Partition::Isolated);
    node.restart().await;
    let (asked, _) = node.isolated(0, "2-3").await;
    assert_eq!(
        (node.read(&vcpu(&asked), File::Partition), node.workers()),
        ("isolated".into(), cpus("0-7"))
    );
    node.check().await;
}

#[tokio::test]
async fn workers_stay_away_from_vcpus_that_share_cpus() {
    let mut node = Node::new();
    let pod = node.pod(0, "2-3");
    node.register(&pod).await.unwrap();
    node.started(&pod, 3).await;
    assert_eq!(
        (node.read(&vcpu(&pod), File::Partition), node.workers()),
        ("root".into(), cpus("0-1,4-7"))
    );
}

#[tokio::test]
async fn what_is_withheld_from_workers_is_known_after_the_slice_was_stopped() {
    let mut node = Node::older();
    node.settings.policies.tree = TreeChoice::InPlace;
    node.restart().await;
    let (first, _) = node.isolated(0, "2-3").await;
    assert_eq!((node.workers(), node.withheld()), (cpus("0-1,4-7"), Some("2-3".into())));
    node.quiet().await;
    // Without a scope in it, that is all that `systemctl stop stelia.slice` does.
    let slice = CgroupPath::slice();
    for _ in 0..2 {
        node.model.remove(&slice).unwrap();
        node.until("it is recorded again", |node| {
            node.model.exists(&slice) && node.withheld().as_deref() == Some("2-3")
        })
        .await;
        node.quiet().await;
    }
    let (second, _) = node.isolated(1, "6").await;
    assert_eq!(node.withheld(), Some("2-3,6".into()));
    node.restart().await;
    for pod in [first, second] {
        node.handle.deregister(pod.uid.clone()).await.unwrap();
    }
    node.quiet().await;
    assert_eq!((node.workers(), node.withheld()), (cpus("0-7"), None));
    // The first one that starts without a slice.
    node.model.remove(&slice).unwrap();
    let (third, _) = node.isolated(3, "5").await;
    assert_eq!(
        (node.phase(&third), node.withheld()),
        (Some("isolated"), Some("5".into()))
    );
}
