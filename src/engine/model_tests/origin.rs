//! What stays in the container's own cgroup of an instance in stelia.slice.

use stelia_settings::{AdoptRule, TreeChoice};

use super::adopt::rule;
use super::*;

fn in_slice() -> AdoptRule {
    AdoptRule {
        tree: TreeChoice::Slice,
        ..rule()
    }
}

/// The anchor of an adopted instance is a running program.
#[tokio::test]
async fn the_first_process_of_an_adopted_container_runs_where_the_vm_floats() {
    let mut node = Node::adopting(vec![in_slice()]).await;
    node.checkpoint.admit(&uid(7), "web", &cpus("6-7")).unwrap();
    let (pod, _) = node.launched(1, "2-3", &[2, 3]);
    let helper = node.model.spawn_thread(pod.init, "helper").unwrap();
    node.until_adopted(&pod).await;
    assert_eq!(node.model.cgroup(pod.init).unwrap(), pod.origin);
    for tid in [pod.init, helper] {
        assert_eq!(node.model.affinity(tid).unwrap(), cpus("0-1,4-5"));
    }
    // What it makes later inherits that; what is exec'd into the container is found by the next pass.
    let late = node.model.spawn_thread(helper, "late").unwrap();
    let shell = node.model.spawn(pod.init, "sh").unwrap();
    node.model.pin(shell, &cpus("0-7")).unwrap();
    node.reconcile().await;
    for tid in [late, shell] {
        assert_eq!(node.model.affinity(tid).unwrap(), cpus("0-1,4-5"));
    }
    node.check().await;
    // It follows float, to fewer CPUs and to more.
    node.checkpoint.admit(&uid(8), "web", &cpus("4")).unwrap();
    node.reconcile().await;
    assert_eq!(node.model.affinity(helper).unwrap(), cpus("0-1,5"));
    node.checkpoint.release(&uid(7)).unwrap();
    node.reconcile().await;
    assert_eq!(node.model.affinity(helper).unwrap(), cpus("0-1,5-7"));
    node.check().await;
    // And a restarted daemon has nothing to do.
    let changes = node.model.changes();
    node.restart().await;
    node.reconcile().await;
    assert_eq!(node.model.changes(), changes);
}

#[tokio::test]
async fn it_runs_wherever_its_cpuset_allows_once_the_instance_is_none_any_more() {
    let mut node = Node::adopting(vec![in_slice()]).await;
    node.checkpoint.admit(&uid(7), "web", &cpus("6-7")).unwrap();
    let (pod, _) = node.launched(1, "2-3", &[2, 3]);
    node.until_adopted(&pod).await;
    assert_eq!(node.model.mask(pod.init), cpus("0-1,4-5"));
    // No rule is of it any more, or it would be adopted again.
    node.settings.policies.adopt.clear();
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.deregister(&pod).await;
    assert_eq!(node.model.mask(pod.init), cpus("0-7"));
    assert_eq!(node.model.affinity(pod.init).unwrap(), cpus("2-3"));
    node.check().await;
}

/// Its cpuset has none of float's CPUs: the kernel would refuse it.
#[tokio::test]
async fn while_the_container_has_cpus_of_its_own_nothing_is_confined() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    node.reconcile().await;
    assert_eq!(node.model.affinity(pod.anchor).unwrap(), cpus("2-3"));
    assert_eq!(node.model.mask(pod.anchor), cpus("0-7"));
    node.check().await;
}

/// A container that has a cgroup namespace of its own could make some there, and threads in them would be in no list.
#[tokio::test]
async fn no_cgroup_can_be_made_below_those_of_the_threads() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    node.reconcile().await;
    let inner = CgroupPath::slice().child(&pod.uid.scope()).child("instance");
    for leaf in ["float", "vcpu"] {
        let hidden = inner.child(leaf).child("hidden");
        assert!(node.model.create(&hidden).is_err(), "{hidden}");
    }
    node.check().await;
}
