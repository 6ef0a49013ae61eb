//! A container that may write its cgroup makes any number of cgroups in it.

use super::*;

impl Node {
    /// How often the daemon asked the model about a cgroup that the container made.
    fn about_made(&self) -> usize {
        self.model.calls().iter().filter(|call| call.contains("/x")).count()
    }
}

#[tokio::test]
async fn a_registration_reads_a_bounded_number_of_cgroups() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    for number in 0..2_000 {
        node.model.create(&pod.origin.child(&format!("x{number}"))).unwrap();
    }
    node.model.record_calls(true);
    let refusal = node.register(&pod).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    assert!(refusal.text.contains("has more than 256 cgroups"), "{refusal}");
    assert_eq!(node.about_made(), 0, "{:?}", node.model.calls());
}

#[tokio::test]
async fn what_a_container_made_below_a_leaf_is_removed_between_other_pods_turns() {
    let mut node = Node::in_place().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    let other = node.pod(2, "4-5");
    let vcpu = pod.origin.child("vcpu");
    node.model.meddle(&vcpu, File::MaxDescendants, "max").unwrap();
    for number in 0..3_000 {
        node.model.create(&vcpu.child(&format!("x{number}"))).unwrap();
    }
    let mut inner = vcpu.child("x0");
    for _ in 0..20 {
        inner = inner.child("xx");
        node.model.create(&inner).unwrap();
    }
    node.model.record_calls(true);
    let (handle, uid) = (node.handle.clone(), pod.uid.clone());
    let leaves = tokio::spawn(async move { handle.deregister(uid).await });
    node.until("the first are removed", |node| node.about_made() > 0).await;
    node.register(&other).await.unwrap();
    leaves.await.unwrap().unwrap();
    let calls = node.model.calls();
    let made = |call: &String| call.starts_with("remove") && call.contains("/vcpu/x");
    let (first, last) = (calls.iter().position(made), calls.iter().rposition(made));
    let between = &calls[first.unwrap()..last.unwrap()];
    let others = between.iter().filter(|call| call.contains(other.origin.name()));
    assert!(others.count() > 0, "the other pod waited for all of it");
    assert!(!node.model.exists(&vcpu));
    node.check().await;
}
