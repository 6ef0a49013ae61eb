//! Pods with CPUs of their own: the VM's container has some for itself, and a sidecar shares the rest.

use super::*;

/// What runc 1.1 makes of the shares of so many CPUs.
fn weight(cpus: u64) -> Limits {
    Limits {
        cpu_weight: Some(1 + (1024 * cpus - 2) * 9999 / 262_142),
        ..Limits::default()
    }
}

impl Node {
    /// A node on which floats go where they go by themselves.
    fn by_itself() -> Self {
        let mut node = Self::new();
        node.settings.policies.float = FloatPolicy::Pod;
        node
    }

    /// A pod of CPUs 1-3 whose container `vm` has 2-3 for itself and whose `side`, which does not run yet, has CPU 1.
    async fn pod_of_three(&mut self) -> (Pod, Qemu) {
        self.restart().await;
        let containers = [("vm", &cpus("2-3")), ("side", &cpus("1"))];
        self.checkpoint.admit_pod(&uid(1), &cpus("1-3"), &containers).unwrap();
        let pod = self.model.add_pod(&uid(1), &cpus("2-3"), &weight(2)).unwrap();
        self.register(&pod).await.unwrap();
        let qemu = self.started(&pod, 2).await;
        (pod, qemu)
    }

    fn side(&self, pod: &Pod, requests: u64) -> Pod {
        self.model.add_container(pod, &cpus("1"), &weight(requests)).unwrap()
    }

    fn floats_on(&self, pod: &Pod) -> String {
        self.read(&float(pod), File::Cpus)
    }
}

#[tokio::test]
async fn the_float_goes_to_the_pods_pool_when_the_sidecar_tells_that_it_shares_and_stays_there() {
    let mut node = Node::by_itself();
    let (pod, qemu) = node.pod_of_three().await;
    let seats = |node: &Node| [0, 1].map(|vcpu: usize| node.model.affinity(qemu.vcpus[vcpu]).unwrap());
    let before = seats(&node);
    // CPU 1 might be the sidecar's alone. Of the VM's NUMA node only CPU 0 is left then: too little.
    assert_eq!(node.floats_on(&pod), "0,4-7");
    node.check().await;

    // It asks for nothing, so it has the weight of the pod's whole limit.
    let side = node.side(&pod, 3);
    node.reconcile().await;
    assert_eq!(node.floats_on(&pod), "1");
    node.check().await;

    // The sidecar is restarted, and the daemon too: nothing moves.
    node.model.end(side.init).unwrap();
    node.reconcile().await;
    assert_eq!(node.floats_on(&pod), "1");
    node.restart().await;
    node.check().await;
    assert_eq!(node.floats_on(&pod), "1");
    node.side(&pod, 3);
    node.check().await;
    assert_eq!((node.floats_on(&pod).as_str(), seats(&node)), ("1", before));
}

#[tokio::test]
async fn a_sidecar_with_a_cpu_of_its_own_keeps_it() {
    let mut node = Node::by_itself();
    let (pod, _) = node.pod_of_three().await;
    node.side(&pod, 1);
    node.reconcile().await;
    assert_eq!(node.floats_on(&pod), "0,4-7");
    node.check().await;
}

#[tokio::test]
async fn a_sidecar_on_its_pods_pool_cannot_be_an_instance() {
    let mut node = Node::by_itself();
    node.restart().await;
    let containers = [("vm", &cpus("2-3")), ("side", &cpus("1"))];
    node.checkpoint.admit_pod(&uid(1), &cpus("1-3"), &containers).unwrap();
    let pod = node.model.add_pod(&uid(1), &cpus("2-3"), &weight(2)).unwrap();
    let side = node.side(&pod, 3);
    let refusal = node.register(&side).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotGuaranteed);
    assert!(refusal.text.contains("shared pool"), "{refusal}");
    // The VM's container floats on the pool from the first moment.
    node.register(&pod).await.unwrap();
    assert_eq!(node.floats_on(&pod), "1");
    node.check().await;
    // Nor beside it.
    assert_eq!(kind(node.register(&side).await), ErrorKind::NotGuaranteed);
}

#[tokio::test]
async fn numa_and_node_stay_what_they_say() {
    for (policy, expected) in [(FloatPolicy::Numa, "0,4-7"), (FloatPolicy::Node, "0,4-7")] {
        let mut node = Node::by_itself();
        node.settings.policies.float = policy;
        let (pod, _) = node.pod_of_three().await;
        node.side(&pod, 3);
        node.reconcile().await;
        assert_eq!(node.floats_on(&pod), expected, "{policy:?}");
    }
}
