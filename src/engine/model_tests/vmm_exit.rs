//! The end of a VM whose container's own cgroup is the partition, and lives on.

use super::in_place::{kubepods, pod_of};
use super::kubevirt::kubevirt;
use super::*;

#[tokio::test]
async fn its_cpus_are_given_back_without_an_audit_also_by_a_daemon_that_started_meanwhile() {
    for is_restarted in [false, true] {
        let mut node = Node::new();
        node.settings.audit_interval = Duration::from_secs(3600);
        node.settings.policies.adopt = vec![kubevirt()];
        node.restart().await;
        node.adopt();
        let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
        node.look().await;
        node.until("the VM is adopted", |node| node.phase(&pod) == Some("isolated"))
            .await;
        if is_restarted {
            node.restart().await;
            node.until("it is known again", |node| node.phase(&pod) == Some("isolated"))
                .await;
        }
        node.quiet().await;
        let audits = node.handle.audits();
        // Another process of the container.
        let shell = node.model.spawn(pod.init, "sh").unwrap();
        node.model.end(shell).unwrap();
        node.quiet().await;
        assert_eq!(node.phase(&pod), Some("isolated"));
        node.model.end(qemu.pid).unwrap();
        node.until("its CPUs are given back", |node| node.known(&pod).is_none())
            .await;
        node.quiet().await;
        assert_eq!(node.read(&pod.origin, File::Partition), "member");
        node.assert_nothing_claimed(&[kubepods(), pod_of(&pod)]);
        assert!(!audits.has_changed().unwrap(), "an audit ran");
        node.check().await;
    }
}

/// A guest that restarts has new vCPU threads, of the same process.
#[tokio::test]
async fn a_vmm_is_watched_by_the_threads_that_it_has_now() {
    let mut node = Node::adopting(vec![kubevirt()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.look().await;
    node.until("the VM is adopted", |node| node.phase(&pod) == Some("isolated"))
        .await;
    for (index, old) in qemu.vcpus.iter().enumerate() {
        let new = node.model.spawn_thread(qemu.pid, &format!("CPU {index}/KVM")).unwrap();
        node.model.pin(new, &cpus(["2", "3"][index])).unwrap();
        node.model.end(*old).unwrap();
    }
    let is_new = |node: &Node| {
        let known = node.known(&pod)?;
        let is_old = |task: i32| qemu.vcpus.contains(&task);
        Some(known.vcpus.iter().all(|vcpu| !is_old(vcpu.thread.task.id)))
    };
    node.look().await;
    node.until("its new threads are attached", |node| is_new(node) == Some(true))
        .await;
    node.quiet().await;
    let audits = node.handle.audits();
    node.model.end(qemu.pid).unwrap();
    node.until("its CPUs are given back", |node| node.known(&pod).is_none())
        .await;
    assert!(!audits.has_changed().unwrap(), "an audit ran");
    node.check().await;
}
