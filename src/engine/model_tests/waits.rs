//! What an instance waits for, where nothing is about to end the wait.

use super::*;

/// Another program has the CPU among its exclusive ones, so the kernel refuses it to stelia.slice.
fn taken_by_another(node: &Node, cpu: &str) {
    let other = CgroupPath::root().child("system.slice");
    node.model.meddle(&other, File::CpusExclusive, cpu).unwrap();
}

const LACKS: &str = "cpuset.cpus.exclusive of stelia.slice lacks the VM's CPUs";

#[tokio::test]
async fn a_vm_that_cannot_follow_kubelets_resize_is_degraded_for_it_and_nobody_else_is() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let (neighbour, _) = node.isolated(2, "5-6").await;
    taken_by_another(&node, "4");
    node.assign(&pod, "2,4");
    let degraded = |node: &Node, pod: &Pod| node.handle.view().instances[&pod.uid].degraded.clone();
    let says = |node: &Node| degraded(node, &pod).iter().any(|reason| reason.text == LACKS);
    node.until("the wait is shown", says).await;
    assert_eq!(degraded(&node, &neighbour), []);
    taken_by_another(&node, "");
    node.reconcile().await;
    assert!(!says(&node), "{:?}", degraded(&node, &pod));
    node.check().await;
}

/// The call looks at the VM before the turn that would, and finds that its cgroup is gone.
#[tokio::test]
async fn a_vm_that_an_attach_finds_gone_is_shown_no_more() {
    let mut node = Node::new();
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let request = node.attach_request(&pod, &qemu);
    node.model.kill_pod(&pod).unwrap();
    let refusal = node.handle.attach(request).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NoSuchInstance);
    node.quiet().await;
    assert_eq!(node.phase(&pod), None);
}
