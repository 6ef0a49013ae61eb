//! A container in place that may write below its own cgroup: it makes the cgroups of its instance's threads before it registers, or others
//! below them.

use super::in_place::pod_of;
use super::*;

impl Node {
    fn tenant_writes(&self, pod: &Pod, cgroup: &CgroupPath, file: File, value: &str) {
        self.model.write_as(&pod.uid, cgroup, file, value).unwrap();
    }
}

#[tokio::test]
async fn a_leaf_that_is_there_before_the_registration_is_refused_by_name() {
    for leaf in ["vcpu", "housekeeping"] {
        let mut node = Node::in_place().await;
        let pod = node.pod(1, "2-3");
        let leaf = pod.origin.child(leaf);
        node.model.create(&leaf).unwrap();
        let changes = node.model.changes();
        let refusal = node.register(&pod).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
        assert!(refusal.text.contains(leaf.as_str()), "{}", refusal.text);
        assert_eq!(node.model.changes(), changes);
        node.model.remove(&leaf).unwrap();
        node.register(&pod).await.unwrap();
        node.check().await;
    }
}

#[tokio::test]
async fn what_a_container_makes_below_its_leaves_is_undone_and_counted() {
    let mut node = Node::in_place().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let [vcpu, housekeeping] = ["vcpu", "housekeeping"].map(|leaf| pod.origin.child(leaf));
    for leaf in [&vcpu, &housekeeping] {
        assert_eq!(node.read(leaf, File::MaxDescendants), "0");
        assert!(node.model.create(&leaf.child("x")).is_err());
        node.tenant_writes(&pod, leaf, File::MaxDescendants, "max");
        for below in [leaf.child("x"), leaf.child("x").child("y"), leaf.child("z")] {
            node.model.create(&below).unwrap();
            node.tenant_writes(&pod, &below, File::Type, "threaded");
        }
    }
    let hidden = [vcpu.child("x").child("y"), housekeeping.child("z")].map(|below| {
        let thread = node.model.spawn_thread(qemu.pid, "worker").unwrap();
        node.tenant_writes(&pod, &below, File::Threads, &thread.to_string());
        thread
    });
    // And one of the vCPUs.
    node.tenant_writes(&pod, &vcpu.child("z"), File::Threads, &qemu.vcpus[0].to_string());
    let before = node.handle.view().counters.drift_found;
    node.catch_up().await;
    assert!(
        node.handle.view().counters.drift_found >= before + 4,
        "both files, and what is below"
    );
    for thread in hidden {
        assert_eq!(node.model.cgroup(thread).unwrap(), housekeeping);
    }
    for leaf in [&vcpu, &housekeeping] {
        assert_eq!(node.read(leaf, File::MaxDescendants), "0");
        assert_eq!(node.model.children(leaf).unwrap(), [""; 0]);
    }
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
}

#[tokio::test]
async fn threads_in_cgroups_that_a_container_makes_beside_its_leaves_are_gathered() {
    let mut node = Node::in_place().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let beside = pod.origin.child("x");
    node.model.create(&beside).unwrap();
    node.tenant_writes(&pod, &beside, File::Type, "threaded");
    let hidden = node.model.spawn_thread(qemu.pid, "worker").unwrap();
    node.tenant_writes(&pod, &beside, File::Threads, &hidden.to_string());
    node.catch_up().await;
    assert_eq!(node.model.cgroup(hidden).unwrap(), pod.origin.child("housekeeping"));
    node.check().await;
}

#[tokio::test]
async fn an_instance_whose_container_hides_threads_below_vcpu_ends() {
    let mut node = Node::in_place().await;
    let (pod, qemu) = node.isolated(1, "2-3").await;
    let vcpu = pod.origin.child("vcpu");
    node.tenant_writes(&pod, &vcpu, File::MaxDescendants, "max");
    let below = [vcpu.child("x"), vcpu.child("x").child("y")];
    for cgroup in &below {
        node.model.create(cgroup).unwrap();
        node.tenant_writes(&pod, cgroup, File::Type, "threaded");
    }
    let hidden = node.model.spawn_thread(qemu.pid, "worker").unwrap();
    node.tenant_writes(&pod, &below[1], File::Threads, &hidden.to_string());
    node.deregister(&pod).await;
    assert_eq!(node.model.cgroup(hidden).unwrap(), pod.origin);
    node.assert_as_before(&pod);
    node.assert_nothing_claimed(&[in_place::kubepods(), pod_of(&pod)]);
    node.check().await;
}

/// The lists of `vcpu` are the container's to write in place: nobody else is to leave what they name.
#[tokio::test]
async fn a_list_that_a_container_writes_into_its_leaf_closes_no_cpus() {
    let mut node = Node::in_place().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    let other = node.pod(2, "4-5");
    node.register(&other).await.unwrap();
    let vcpu = pod.origin.child("vcpu");
    node.stop().await;
    node.tenant_writes(&pod, &vcpu, File::Partition, "member");
    node.tenant_writes(&pod, &vcpu, File::CpusExclusive, "2-5");
    node.model.record_calls(true);
    node.start();
    node.catch_up().await;
    let calls = node.model.calls();
    let claims = calls
        .iter()
        .filter(|call| call.starts_with("write") && call.contains("kubepods.slice/cpuset.cpus.exclusive"));
    assert_eq!(claims.collect::<Vec<_>>(), [""; 0]);
    assert_eq!(node.read(&vcpu, File::CpusExclusive), "2-3");
    node.check().await;
}
