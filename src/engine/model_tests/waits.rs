//! What an instance waits for, where nothing is about to end the wait.

use super::*;

/// A valid partition takes no CPU that comes into the list above it later: its own list waits for that.
#[tokio::test]
async fn a_vm_follows_a_resize_once_the_list_above_can_have_its_cpus_and_a_neighbour_gives_cpus_up_meanwhile() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let neighbour = node.pod(2, "5-6");
    node.register(&neighbour).await.unwrap();
    node.started(&neighbour, 1).await;
    node.claim_elsewhere("4");
    node.assign(&pod, "2,4");
    node.reconcile().await;
    // Meanwhile the neighbour gives a CPU up.
    node.assign(&neighbour, "5");
    node.catch_up().await;
    let has = |node: &Node, pod: &Pod| node.read(&vcpu(pod), File::CpusExclusive);
    assert_eq!(has(&node, &neighbour), "5");
    assert_eq!(has(&node, &pod), "2-3");
    node.claim_elsewhere("");
    node.reconcile().await;
    assert_eq!(has(&node, &pod), "2,4");
    node.check().await;
}

/// The list above all is extended for each VM by itself.
#[tokio::test]
async fn a_cpu_that_another_program_has_keeps_one_vm_pinned_and_no_other() {
    let mut node = Node::new();
    let pods = [node.pod(1, "2-3"), node.pod(2, "5-6")];
    for pod in &pods {
        node.register(pod).await.unwrap();
    }
    node.claim_elsewhere("3");
    for pod in &pods {
        node.started(pod, 2).await;
    }
    let state = |node: &Node, pod: &Pod| node.handle.view().instances[&pod.uid].state;
    assert_eq!(state(&node, &pods[0]), State::Pinned);
    assert_eq!(state(&node, &pods[1]), State::Isolated);
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "5-6");
    node.claim_elsewhere("");
    node.reconcile().await;
    assert_eq!(state(&node, &pods[0]), State::Isolated);
    node.check().await;
}
