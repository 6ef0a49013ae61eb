//! A partition that the kernel refused, and what becomes of it once the cause is gone.

use stelia_settings::{AdoptRule, TreeChoice};

use super::adopt::rule;
use super::*;

fn elsewhere() -> CgroupPath {
    CgroupPath::root().child("system.slice")
}

impl Node {
    /// Another program's exclusive list has these CPUs: the kernel gives them to no other tree.
    pub(super) fn claim_elsewhere(&self, list: &str) {
        self.model.meddle(&elsewhere(), File::CpusExclusive, list).unwrap();
    }

    async fn pinned(&mut self) -> (Pod, Qemu) {
        self.claim_elsewhere("2");
        let (pod, qemu) = self.isolated(1, "2-3").await;
        assert_eq!(self.phase(&pod), Some("pinned"));
        assert_eq!(
            self.read(&CgroupPath::root().child("init.scope"), File::Cpus),
            "0-1,4-7"
        );
        (pod, qemu)
    }

    fn recorded(&self, pod: &Pod, attribute: &str) -> Option<String> {
        self.model.attributes(&scope(pod)).unwrap().remove(attribute)
    }

    /// As many audits as a first pause takes, and more.
    async fn audits(&self) {
        for _ in 0..3 {
            self.catch_up().await;
        }
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
    let (pod, _) = node.pinned().await;
    node.claim_elsewhere("");
    node.audits().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn one_that_was_refused_under_a_former_daemon_is_isolated_by_an_audit_too() {
    let mut node = Node::new();
    let (pod, _) = node.pinned().await;
    assert_eq!(node.recorded(&pod, "refused").as_deref(), Some("yes"));
    node.restart().await;
    node.audits().await;
    assert_eq!(node.phase(&pod), Some("pinned"), "the cause is there");
    node.restart().await;
    node.claim_elsewhere("");
    node.audits().await;
    node.assert_isolated_after_all(&pod);
    assert_eq!(node.recorded(&pod, "refused"), None);
    node.check().await;
}

/// Nobody attaches the vCPUs of such a VM a second time.
async fn an_adopted_vm_that_was_refused_under_a_former_daemon_is_isolated_by_an_audit(tree: TreeChoice) {
    let rule = AdoptRule { tree, ..rule() };
    let mut node = Node::adopting(vec![rule]).await;
    node.claim_elsewhere("2");
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.look().await;
    node.until("the VM is pinned", |node| node.phase(&pod) == Some("pinned"))
        .await;
    node.quiet().await;
    // No adoption runs beside this daemon.
    node.restart().await;
    node.audits().await;
    assert_eq!(node.phase(&pod), Some("pinned"), "the cause is there");
    node.claim_elsewhere("");
    node.restart().await;
    node.audits().await;
    assert_eq!(node.phase(&pod), Some("isolated"));
    assert_eq!(node.pins(&qemu), ["2", "3"]);
    node.check().await;
}

#[tokio::test]
async fn an_adopted_vm_in_a_scope_is_isolated_after_a_restart() {
    an_adopted_vm_that_was_refused_under_a_former_daemon_is_isolated_by_an_audit(TreeChoice::Slice).await;
}

#[tokio::test]
async fn an_adopted_vm_in_place_is_isolated_after_a_restart() {
    an_adopted_vm_that_was_refused_under_a_former_daemon_is_isolated_by_an_audit(TreeChoice::InPlace).await;
}

#[tokio::test]
async fn one_that_the_setting_of_a_former_daemon_contained_is_isolated_only_when_its_vcpus_are_attached_again() {
    let mut node = Node::new();
    node.settings.policies.partition = Some(Partition::Member);
    node.restart().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.recorded(&pod, "refused"), None);
    node.settings.policies.partition = None;
    node.restart().await;
    node.audits().await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.recorded(&pod, "partition").as_deref(), Some("member"));
    node.attach(&pod, &qemu).await.unwrap();
    node.quiet().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn a_partition_that_the_setting_forbids_by_now_is_not_made_although_the_kernel_was_to_be_asked_again() {
    let mut node = Node::new();
    let (pod, _) = node.pinned().await;
    node.claim_elsewhere("");
    node.stop().await;
    // The former daemon recorded this and came no further.
    node.model.set_attribute(&scope(&pod), "partition", "isolated").unwrap();
    node.settings.policies.partition = Some(Partition::Member);
    node.start();
    node.audits().await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    assert_eq!(node.recorded(&pod, "partition").as_deref(), Some("member"));
    assert_ne!(node.read(&vcpu(&pod), File::Partition), "isolated");
    node.check().await;
    // It is still one that the kernel refused.
    node.settings.policies.partition = None;
    node.restart().await;
    node.audits().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn a_contained_vm_whose_vcpus_are_attached_again_is_isolated_then() {
    let mut node = Node::new();
    let (pod, qemu) = node.pinned().await;
    // As long as the cause is there the answer is the same.
    node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(node.phase(&pod), Some("pinned"));
    node.claim_elsewhere("");
    node.attach(&pod, &qemu).await.unwrap();
    node.quiet().await;
    node.assert_isolated_after_all(&pod);
    node.check().await;
}

#[tokio::test]
async fn while_the_cause_is_there_it_stays_contained_and_is_tried_ever_more_rarely() {
    let mut node = Node::new();
    let (pod, qemu) = node.pinned().await;
    let mut views = node.handle.watch();
    let unit = CgroupPath::root().child("init.scope");
    let mut tried = Vec::new();
    for audit in 1..=40 {
        let before = node.model.changes();
        node.catch_up().await;
        if node.model.changes() != before {
            tried.push(audit);
        }
        // Neither its state nor what keeps others off its CPUs is given up meanwhile.
        assert_eq!(views.borrow_and_update().instances[&pod.uid].state, State::Pinned);
        assert_eq!(node.read(&unit, File::Cpus), "0-1,4-7");
        assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
    }
    assert!((1..=6).contains(&tried.len()), "{tried:?}");
}
