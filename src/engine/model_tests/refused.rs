//! A partition that the kernel refused, and what becomes of it once the cause is gone.

use super::*;

fn elsewhere() -> CgroupPath {
    CgroupPath::root().child("system.slice")
}

impl Node {
    /// Another program's exclusive list has these CPUs: the kernel gives them to no other tree.
    fn claim_elsewhere(&self, list: &str) {
        self.model.meddle(&elsewhere(), File::CpusExclusive, list).unwrap();
    }

    async fn contained(&mut self) -> (Pod, Qemu) {
        self.claim_elsewhere("2");
        let (pod, qemu) = self.isolated(1, "2-3").await;
        assert_eq!(self.phase(&pod), Some("contained"));
        assert_eq!(
            self.read(&CgroupPath::root().child("init.scope"), File::Cpus),
            "0-1,4-7"
        );
        (pod, qemu)
    }

    fn assert_isolated_after_all(&self, pod: &Pod) {
        assert_eq!(self.phase(pod), Some("isolated"));
        assert_eq!(self.read(&vcpu(pod), File::Partition), "isolated");
        // The units outside have their CPUs back.
        assert_eq!(
            self.read(&CgroupPath::root().child("init.scope"), File::CpusEffective),
            "0-1,4-7"
        );
        assert_eq!(self.model.attributes(&CgroupPath::slice()).unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_contained_vm_is_isolated_by_an_audit_once_the_kernel_gives_the_partition() {
    let mut node = Node::new();
    let (pod, _) = node.contained().await;
    node.claim_elsewhere("");
    for _ in 0..3 {
        node.reconcile().await;
        node.quiet().await;
    }
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

/// It may be so by a setting of the former daemon's. Its runner hands the vCPUs over again once a daemon is there.
#[tokio::test]
async fn one_that_a_former_daemon_left_as_contained_is_isolated_when_its_vcpus_are_attached_again() {
    let mut node = Node::new();
    let (pod, qemu) = node.contained().await;
    node.claim_elsewhere("");
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.phase(&pod), Some("contained"));
    node.attach(&pod, &qemu).await.unwrap();
    node.quiet().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn a_contained_vm_whose_vcpus_are_attached_again_is_isolated_then() {
    let mut node = Node::new();
    let (pod, qemu) = node.contained().await;
    // As long as the cause is there the answer is the same.
    node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(node.phase(&pod), Some("contained"));
    node.claim_elsewhere("");
    node.attach(&pod, &qemu).await.unwrap();
    node.quiet().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn while_the_cause_is_there_it_stays_contained_and_is_tried_ever_more_rarely() {
    let mut node = Node::new();
    let (pod, qemu) = node.contained().await;
    let mut views = node.handle.watch();
    let unit = CgroupPath::root().child("init.scope");
    let mut tried = Vec::new();
    for audit in 1..=40 {
        let before = node.model.changes();
        node.reconcile().await;
        node.quiet().await;
        if node.model.changes() != before {
            tried.push(audit);
        }
        // Neither its state nor what keeps others off its CPUs is given up meanwhile.
        assert_eq!(views.borrow_and_update().instances[&pod.uid].state, "contained");
        assert_eq!(node.read(&unit, File::Cpus), "0-1,4-7");
        assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    }
    assert!((1..=6).contains(&tried.len()), "{tried:?}");
}
