//! What Kubernetes' users call a pod, by the container runtime's configuration.

use stelia_kubelet::PodName;

use super::*;

impl Node {
    fn shown(&self, pod: &Pod) -> Option<String> {
        let view = self.handle.view();
        view.instances[&pod.uid].pod_name.as_ref().map(PodName::to_string)
    }
}

#[tokio::test]
async fn an_instance_has_its_pods_name_also_after_a_restart_and_when_the_configuration_is_gone() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.name(&pod, "vm");
    node.register(&pod).await.unwrap();
    assert_eq!(node.shown(&pod).as_deref(), Some("team-a/vm"));
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.shown(&pod).as_deref(), Some("team-a/vm"));
    std::fs::remove_dir_all(node.directory.path().join("run/containerd")).unwrap();
    node.reconcile().await;
    assert_eq!(node.shown(&pod).as_deref(), Some("team-a/vm"));
}

#[tokio::test]
async fn without_the_runtimes_configuration_an_instance_is_the_same_without_a_name() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    assert_eq!(node.shown(&pod), None);
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.shown(&pod), None);
    assert_eq!(node.phase(&pod), Some("waiting"));
}
