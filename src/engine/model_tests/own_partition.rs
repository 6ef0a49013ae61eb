//! Containers that may make a partition of their own below the one that steliad makes of their cgroup.

use super::*;

/// A kernel on which an `isolated` partition can stop the node.
const FLAWED: &str = "6.12.0";

impl Node {
    async fn on_kernel(mut self, release: &str) -> Self {
        self.model.set_kernel(release);
        self.restart().await;
        self
    }

    /// As `steliactl` asks.
    fn by_an_administrator(&self, pod: &Pod) -> RegisterRequest {
        RegisterRequest {
            claim: Claim {
                pod: pod.uid.to_string(),
                isolation: Isolation::Container,
                ..Claim::default()
            },
            caller: None,
            anchor: None,
            ..self.request(pod)
        }
    }
}

/// What makes its cgroup writable to a container.
type Grant = fn(&Node, &Pod);

const GRANTS: [Grant; 3] = [
    |node, pod| node.model.chown(&pod.origin, 100_000).unwrap(),
    |node, pod| {
        let mount = r#"{"type":"cgroup","source":"cgroup","options":["rw"]}"#;
        node.model
            .configure(pod, &format!(r#"{{"mounts":[{mount}]}}"#))
            .unwrap();
    },
    |node, pod| {
        let config = r#"{"process":{"capabilities":{"bounding":["CAP_SYS_ADMIN"]}}}"#;
        node.model.configure(pod, config).unwrap();
    },
];

#[tokio::test]
async fn a_pod_asks_for_its_whole_container_only_where_the_node_allows_it() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    let changes = node.model.changes();
    let refusal = node.register_container(&pod).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotPermitted);
    assert!(refusal.text.contains("isolation-allowed"), "{}", refusal.text);
    assert_eq!(node.model.changes(), changes);
    // An administrator is not a pod.
    node.handle.register(node.by_an_administrator(&pod)).await.unwrap();
    // Nothing is given to it that it does not have.
    node.register_container(&pod).await.unwrap();
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node = node.allowing_containers().await;
    node.register_container(&pod).await.unwrap();
    node.check().await;
}

#[tokio::test]
async fn no_container_that_could_stop_the_node_becomes_a_partition() {
    for grant in GRANTS {
        let mut node = Node::new().on_kernel(FLAWED).await;
        let pod = node.pod(1, "2-3");
        grant(&node, &pod);
        let asked = node.handle.register(node.by_an_administrator(&pod)).await;
        assert_eq!(kind(asked), ErrorKind::NotPermitted);
        assert_eq!(node.read(&pod.origin, File::Partition), "member");
        // A kernel without that flaw, also by the administrator's word, or a node without partitions.
        for partition in [Partition::Isolated, Partition::Member] {
            node.settings.policies.partition = Some(partition);
            node.handle.reload(node.settings.clone()).await.unwrap();
            node.handle.register(node.by_an_administrator(&pod)).await.unwrap();
            node.deregister(&pod).await;
        }
        node.settings.policies.partition = None;
        node = node.on_kernel("7.2.0").await;
        node.handle.register(node.by_an_administrator(&pod)).await.unwrap();
        node.check().await;
    }
}

#[tokio::test]
async fn a_vm_that_could_stop_the_node_in_place_is_in_the_slice() {
    for grant in GRANTS {
        let mut node = Node::in_place().await.on_kernel(FLAWED).await;
        let (pod, honest) = (node.pod(1, "2-3"), node.pod(2, "4-5"));
        grant(&node, &pod);
        for pod in [&pod, &honest] {
            node.register(pod).await.unwrap();
            node.started(pod, 2).await;
        }
        assert!(node.model.exists(&scope(&pod)) && !node.model.exists(&scope(&honest)));
        assert!(!node.model.exists(&pod.origin.child("vcpu")));
        node.check().await;
    }
}
