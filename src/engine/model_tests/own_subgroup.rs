//! A container of runc that may write below its own cgroup, and makes a subgroup there with the name of crun's. What it writes in that
//! gives it nothing.

use stelia_koordinator::allocator::{AllocationRequest, CpuSource, Qos};

use super::*;

/// The tenant moves all of its container's processes into a subgroup of its own, in which it writes these files.
fn hides(node: &Node, pod: &Pod, files: &[(File, &str)]) -> Pod {
    let subgroup = pod.origin.child("container");
    let model = &node.model;
    model.create(&subgroup).unwrap();
    for pid in [pod.init, pod.anchor, pod.other] {
        model.meddle(&subgroup, File::Procs, &pid.to_string()).unwrap();
    }
    model.meddle(&pod.origin, File::SubtreeControl, "+cpuset").unwrap();
    for (file, value) in files {
        model.meddle(&subgroup, *file, value).unwrap();
    }
    Pod {
        origin: subgroup,
        ..pod.clone()
    }
}

/// A Guaranteed pod with a limit of two CPUs and none from kubelet, whose tenant wrote these into a subgroup of its own.
fn attacker(node: &Node, list: &str) -> Pod {
    let pod = node.limited(9, 2);
    hides(node, &pod, &[(File::Cpus, list)])
}

/// kubelet's policy is none, and CPU 0 is reserved.
async fn node() -> Node {
    allocator::node().await
}

async fn as_lse(node: &Node, pod: &Pod) -> Result<(PodUid, CgroupPath), Error> {
    let request = AllocationRequest {
        qos: Some(Qos::Lse),
        ..AllocationRequest::default()
    };
    node.ask(pod, request).await
}

#[tokio::test]
async fn a_list_that_a_container_wrote_takes_no_vms_cpus() {
    let mut node = node().await;
    let victim = node.registered(1, 2, Qos::Lse).await;
    node.started(&victim, 2).await;
    let own = node.exclusive(&victim);
    let attacker = attacker(&node, &own.to_string());
    node.reconcile().await;
    let refusal = node.register(&attacker).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotPermitted);
    node.reconcile().await;
    assert_eq!((node.phase(&victim), node.exclusive(&victim)), (Some("isolated"), own));
    assert!(node.handle.view().instances[&victim.uid].degraded.is_empty());
    // Nor where an administrator asks for it: the scope has no list.
    let request = RegisterRequest {
        claim: Claim {
            pod: attacker.uid.to_string(),
            ..Claim::default()
        },
        caller: None,
        ..node.request(&attacker)
    };
    assert_eq!(
        node.handle.register(request).await.unwrap_err().kind,
        ErrorKind::NoAnchor
    );
    node.check().await;
    node.restart().await;
    node.check().await;
}

#[tokio::test]
async fn a_list_that_a_container_wrote_takes_no_reserved_cpus() {
    let node = node().await;
    let attacker = attacker(&node, "0-1");
    node.reconcile().await;
    assert_eq!(
        node.register(&attacker).await.unwrap_err().kind,
        ErrorKind::NotPermitted
    );
    node.check().await;
}

#[tokio::test]
async fn a_list_that_a_container_wrote_gives_away_no_other_pods_cpus() {
    let node = node().await;
    // kubelet left these to it.
    let third = node.plain_pod(3, "4-5");
    node.model.meddle(&third.origin, File::CpuMax, "200000 100000").unwrap();
    attacker(&node, "4-5");
    node.reconcile().await;
    for number in [1, 2] {
        let vm = node.limited(number, 2);
        if as_lse(&node, &vm).await.is_ok() {
            assert!(node.exclusive(&vm).is_disjoint(&cpus("4-5")), "{}", node.exclusive(&vm));
        }
    }
    node.check().await;
}

#[tokio::test]
async fn a_list_that_a_container_wrote_keeps_no_vm_from_free_cpus() {
    let mut node = node().await;
    attacker(&node, "4-5");
    node.restart().await;
    let free = |node: &Node| {
        let system = node.handle.system();
        let mut kubelet = KubeletRoot::new();
        kubelet.find(&node.settings.kubelet_root, system.root());
        Picture::read(system, &node.settings, kubelet)
            .ok()
            .unwrap()
            .snapshot
            .leftover
    };
    assert_eq!(free(&node), CpuSet::new());
    let mut given = CpuSet::new();
    // Cores: 2-3, 4-5 and 6-7; CPU 0 is reserved.
    for number in [1, 2, 3] {
        let vm = node.limited(number, 2);
        as_lse(&node, &vm).await.unwrap();
        given = given.union(&node.exclusive(&vm));
    }
    assert!(cpus("4-5").is_subset(&given), "{given}");
    node.check().await;
}

#[tokio::test]
async fn numa_nodes_that_a_container_wrote_are_in_no_record() {
    for source in [CpuSource::Kubelet, CpuSource::Steliad] {
        let mut node = match source {
            CpuSource::Kubelet => Node::new(),
            CpuSource::Steliad => node().await,
        };
        let pod = match source {
            CpuSource::Kubelet => node.pod(1, "2-3"),
            CpuSource::Steliad => node.limited(1, 2),
        };
        // The Memory Manager bound it to node 0.
        node.model.meddle(&pod.origin, File::Mems, "0").unwrap();
        let hidden = hides(&node, &pod, &[(File::Mems, "1")]);
        assert_eq!(node.register(&hidden).await.unwrap_err().kind, ErrorKind::NotPermitted);
        assert!(!node.handle.view().instances.contains_key(&pod.uid), "{source:?}");
    }
}

/// Of crun's own subgroup, which the container may own too.
#[tokio::test]
async fn what_is_written_in_cruns_subgroup_gives_nothing_either() {
    let mut node = Node::new();
    let pod = node.pod_by(Runtime::Crun, 1, "2-3");
    let scope = pod.origin.parent().unwrap();
    node.model.meddle(&scope, File::Mems, "0").unwrap();
    node.model.meddle(&pod.origin, File::Mems, "1").unwrap();
    node.model.meddle(&pod.origin, File::Cpus, "4-5").unwrap();
    node.register(&pod).await.unwrap();
    let inner = super::scope(&pod).child("instance");
    assert_eq!(node.read(&inner, File::Mems), "0");
    assert_eq!(node.exclusive(&pod), cpus("2-3"));
    node.check().await;
}

/// An NRI plugin wrote the list, into a file that is root's.
#[tokio::test]
async fn cpus_that_others_have_are_not_left_behind_whoever_wrote_the_list() {
    let node = node().await;
    let vm = node.registered(1, 2, Qos::Lse).await;
    let own = node.exclusive(&vm);
    for list in [own.to_string(), "0-1".to_owned()] {
        let pod = node.limited(2, 2);
        node.model.meddle(&pod.origin, File::Cpus, &list).unwrap();
        node.reconcile().await;
        if as_lse(&node, &pod).await.is_ok() {
            assert!(node.exclusive(&pod).is_disjoint(&own.union(&cpus("0"))), "{list}");
        }
        assert_eq!(node.exclusive(&vm), own);
        node.reconcile().await;
        node.check().await;
        let _ = node.handle.deregister(pod.uid.clone()).await;
        node.model.kill_pod(&pod).unwrap();
        node.reconcile().await;
    }
}
