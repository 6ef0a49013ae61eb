//! Where a VM floats before its vCPUs are attached: on the NUMA nodes of its own CPUs, which stand idle until then.

use super::*;

/// A node of two NUMA nodes, 0-3 and 4-7, whose floats stay near.
async fn near() -> Node {
    let mut node = Node::new();
    let mut settings = node.settings.clone();
    settings.policies.float = FloatPolicy::Numa;
    node.handle.reload(settings.clone()).await.unwrap();
    node.settings = settings;
    node
}

impl Node {
    fn floating(&self, pod: &Pod) -> (String, &'static str) {
        let view = self.handle.view();
        let reason = view.instances[&pod.uid].float_reason.name();
        (self.read(&float(pod), File::Cpus), reason)
    }

    /// The NUMA node's CPUs.
    fn numa(&self, node: u32) -> CpuSet {
        let topology = topology(2, 2, 2);
        let of_node = topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
        of_node.map(|(cpu, _)| *cpu).collect()
    }
}

#[tokio::test]
async fn a_vm_has_its_idle_cpus_until_the_attach_and_its_partition_afterwards() {
    let mut node = near().await;
    // All CPUs of its node but one are its own.
    let first = node.numa(0);
    let rest = first.iter().last().unwrap();
    let own = first.difference(&[rest].into_iter().collect());
    let pod = node.pod(1, &own.to_string());
    node.register(&pod).await.unwrap();
    assert_eq!(node.floating(&pod), (first.to_string(), "until-attached"));
    node.check().await;
    let qemu = node.started(&pod, own.len() as u32).await;
    let shared = topology(2, 2, 2).online().difference(&own);
    assert_eq!(node.floating(&pod), (shared.to_string(), "too-few-near"));
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
    // Neither a restart nor a new list of vCPUs brings them back.
    node.restart().await;
    node.check().await;
    node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(node.floating(&pod).0, shared.to_string());
    node.check().await;
}

#[tokio::test]
async fn an_attach_moves_no_other_vms_float() {
    let mut node = near().await;
    let other = node.numa(1);
    let of_other: CpuSet = other.iter().take(2).collect();
    let (bystander, _) = node.isolated(2, &of_other.to_string()).await;
    let of_bystander = node.floating(&bystander);
    let first = node.numa(0);
    let own: CpuSet = first.iter().take(3).collect();
    let pod = node.pod(1, &own.to_string());
    node.register(&pod).await.unwrap();
    assert_eq!(node.floating(&pod).1, "until-attached");
    node.quiet().await;
    let before = node.model.changes();
    let registered = node.floating(&bystander);
    node.started(&pod, 3).await;
    assert!(node.model.changes() > before);
    // What the bystander floats on follows from the registration alone.
    assert_eq!(node.floating(&bystander), registered);
    assert_eq!(registered.0, of_bystander.0);
    node.check().await;
}

#[tokio::test]
async fn cpus_that_kubelet_takes_before_the_attach_are_left() {
    let mut node = near().await;
    let first = node.numa(0);
    let own: CpuSet = first.iter().take(3).collect();
    let pod = node.pod(1, &own.to_string());
    node.register(&pod).await.unwrap();
    assert_eq!(node.floating(&pod).1, "until-attached");
    let taken: CpuSet = own.iter().take(1).collect();
    node.checkpoint.release(&pod.uid).unwrap();
    node.checkpoint.admit(&uid(9), "web", &taken).unwrap();
    node.reconcile().await;
    let (floats, _) = node.floating(&pod);
    assert!(cpus(&floats).is_disjoint(&taken), "{floats}");
    // And while kubelet's file cannot be read it keeps what it has, its own CPUs included.
    let mut node = near().await;
    let pod = node.pod(1, &own.to_string());
    node.register(&pod).await.unwrap();
    let before = node.floating(&pod).0;
    node.checkpoint.write_bytes(b"{}").unwrap();
    node.reconcile().await;
    assert_eq!(node.floating(&pod).0, before);
    node.checkpoint.write().unwrap();
    node.reconcile().await;
    node.check().await;
}

#[tokio::test]
async fn while_its_guest_is_shut_down_a_vmm_floats_near_the_vms_cpus() {
    let mut node = near().await;
    let first = node.numa(0);
    let own: CpuSet = first.iter().take(3).collect();
    let rest = first.difference(&own);
    let (pod, qemu) = node.isolated(1, &own.to_string()).await;
    assert_eq!(node.floating(&pod).1, "too-few-near");
    for vcpu in &qemu.vcpus {
        node.model.end(*vcpu).unwrap();
    }
    node.reconcile().await;
    assert_eq!(node.floating(&pod), (rest.to_string(), "until-attached"));
    node.check().await;
    // The next boot has new threads.
    node.started(&pod, 3).await;
    assert_eq!(node.floating(&pod).1, "too-few-near");
    node.check().await;
}

#[tokio::test]
async fn registered_again_it_floats_near_its_cpus_again() {
    let mut node = near().await;
    let first = node.numa(0);
    let own: CpuSet = first.iter().take(3).collect();
    let pod = node.pod(1, &own.to_string());
    node.register(&pod).await.unwrap();
    node.started(&pod, 3).await;
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node.check().await;
    node.register(&pod).await.unwrap();
    assert_eq!(node.floating(&pod), (first.to_string(), "until-attached"));
    node.check().await;
}
