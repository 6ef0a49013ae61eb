//! What an instance waits for, where nothing is about to end the wait.

use super::*;

/// Another program has the CPU among its exclusive ones, so the kernel refuses it to stelia.slice.
fn taken_by_another(node: &Node, cpu: &str) {
    let other = CgroupPath::root().child("system.slice");
    node.model.meddle(&other, File::CpusExclusive, cpu).unwrap();
}

/// A valid partition takes no CPU that comes into the list above it later: its own list waits for that.
#[tokio::test]
async fn a_vm_follows_a_resize_once_the_list_above_can_have_its_cpus_and_a_neighbour_gives_cpus_up_meanwhile() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let neighbour = node.pod(2, "5-6");
    node.register(&neighbour).await.unwrap();
    node.started(&neighbour, 1).await;
    taken_by_another(&node, "4");
    node.assign(&pod, "2,4");
    node.reconcile().await;
    // Meanwhile the neighbour gives a CPU up.
    node.assign(&neighbour, "5");
    node.catch_up().await;
    let has = |node: &Node, pod: &Pod| node.read(&vcpu(pod), File::CpusExclusive);
    assert_eq!(has(&node, &neighbour), "5");
    assert_eq!(has(&node, &pod), "2-3");
    taken_by_another(&node, "");
    node.reconcile().await;
    assert_eq!(has(&node, &pod), "2,4");
    node.check().await;
}
