//! Instances whose cgroups are in their container's own.

use stelia_testnode::Runtime;

use super::crash::killed;
use super::*;

pub(super) fn kubepods() -> CgroupPath {
    CgroupPath::root().child("kubepods.slice")
}

/// The cgroup of the pod of a container that runc or crun made.
pub(super) fn pod_of(pod: &Pod) -> CgroupPath {
    stelia_kernel::containers::container_scope(&pod.origin)
        .parent()
        .unwrap()
}

impl Node {
    /// The lists of kubepods, the pod and the container.
    pub(super) fn lists(&self, pod: &Pod) -> [String; 3] {
        [kubepods(), pod_of(pod), pod.origin.clone()].map(|level| self.read(&level, File::CpusExclusive))
    }

    /// The container is as the runtime made it, and nothing is left of its instance.
    pub(super) fn assert_as_before(&self, pod: &Pod) {
        assert_eq!(self.read(&pod.origin, File::Type), "domain");
        assert_eq!(self.read(&pod.origin, File::SubtreeControl), "");
        assert_eq!(self.model.children(&pod.origin).unwrap(), Vec::<String>::new());
        assert!(self.model.attributes(&pod.origin).unwrap().is_empty());
    }

    pub(super) fn assert_nothing_claimed(&self, levels: &[CgroupPath]) {
        for level in levels {
            assert_eq!(self.read(level, File::CpusExclusive), "", "{level}");
            assert!(self.model.attributes(level).unwrap().is_empty(), "{level}");
        }
    }
}

#[tokio::test]
async fn a_vm_is_isolated_where_it_is_and_given_back() {
    for runtime in [Runtime::Runc, Runtime::Crun] {
        let mut node = Node::in_place().await;
        let (pod, qemu) = node.isolated_by(runtime, 1, "2-3").await;
        assert_eq!(node.phase(&pod), Some("isolated"));
        assert!(!node.model.exists(&scope(&pod)), "no scope is made");
        assert_eq!(node.lists(&pod), ["2-3", "2-3", "2-3"]);
        for pid in [pod.init, pod.anchor, pod.other, qemu.pid] {
            assert_eq!(node.model.cgroup(pid).unwrap(), pod.origin.child("housekeeping"));
        }
        assert_eq!(node.model.affinity(qemu.vcpus[1]).unwrap(), cpus("3"));
        node.check().await;
        // What is exec'd into the container would run on every CPU in no partition.
        let shell = node.model.spawn(pod.init, "sh").unwrap();
        node.model.write(&pod.origin, File::Procs, &shell.to_string()).unwrap();
        node.reconcile().await;
        assert_eq!(node.model.cgroup(shell).unwrap(), pod.origin.child("housekeeping"));
        node.check().await;
        // A daemon that starts anew knows it again by its record.
        node.restart().await;
        node.check().await;
        assert_eq!(node.phase(&pod), Some("isolated"));

        node.deregister(&pod).await;
        for tid in [pod.init, pod.anchor, pod.other, qemu.pid, qemu.vcpus[1], shell] {
            assert_eq!(node.model.cgroup(tid).unwrap(), pod.origin);
            assert_eq!(node.model.affinity(tid).unwrap(), cpus("2-3"));
        }
        node.assert_as_before(&pod);
        node.assert_nothing_claimed(&[kubepods(), pod_of(&pod)]);
        node.check().await;
        node.register(&pod).await.unwrap();
    }
}

#[tokio::test]
async fn a_container_that_ends_leaves_nothing_on_the_levels_above() {
    for without_daemon in [false, true] {
        let mut node = Node::in_place().await;
        let (first, _) = node.isolated(1, "2-3").await;
        let (second, _) = node.isolated(2, "4-5").await;
        // The pod lives on.
        node.add_container(&first, "0-1");
        if without_daemon {
            node.stop().await;
        }
        node.model.end(first.init).unwrap();
        if without_daemon {
            node.start();
        }
        node.catch_up().await;
        assert_eq!(node.phase(&first), None);
        assert!(!node.model.exists(&first.origin));
        node.assert_nothing_claimed(&[pod_of(&first)]);
        assert_eq!(node.lists(&second), ["4-5", "4-5", "4-5"]);
        node.check().await;
        // The container starts anew.
        let again = node.add_container(&first, "2-3");
        node.register(&again).await.unwrap();
        node.started(&again, 2).await;
        assert_eq!(node.lists(&again), ["2-5", "2-3", "2-3"]);
        node.check().await;
    }
}

#[tokio::test]
async fn what_others_added_to_the_lists_above_stays() {
    let mut node = Node::in_place().await;
    node.model.meddle(&kubepods(), File::CpusExclusive, "7").unwrap();
    let (pod, _) = node.isolated(1, "2-3").await;
    assert_eq!(node.lists(&pod)[0], "2-3,7");
    node.check().await;
    node.deregister(&pod).await;
    assert_eq!(node.read(&kubepods(), File::CpusExclusive), "7");
}

#[tokio::test]
async fn a_resize_in_place_moves_the_partition_and_the_lists_above() {
    let mut node = Node::in_place().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    node.assign(&pod, "4-5");
    node.model.meddle(&pod.origin, File::Cpus, "4-5").unwrap();
    node.catch_up().await;
    assert_eq!(node.lists(&pod), ["4-5", "4-5", "4-5"]);
    node.check().await;
}

/// The runtime writes the smaller list soon, which the partition must be within.
#[tokio::test]
async fn a_vm_in_place_leaves_cpus_at_once_whatever_its_guest_has() {
    let mut node = Node::in_place().await;
    node.waits_for_vcpus().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    node.assign(&pod, "2");
    node.catch_up().await;
    let view = node.handle.view();
    assert_eq!(view.instances[&pod.uid].pending_resize, None);
    assert_eq!(view.instances[&pod.uid].exclusive, cpus("2"));
    node.model.meddle(&pod.origin, File::Cpus, "2").unwrap();
    node.check().await;
}

#[tokio::test]
async fn scopes_and_instances_in_place_live_side_by_side() {
    let mut node = Node::new();
    let (in_slice, _) = node.isolated(1, "2-3").await;
    node.settings.policies.tree = TreeChoice::Auto;
    node.restart().await;
    let (in_place, _) = node.isolated(2, "4-5").await;
    node.check().await;
    assert!(node.model.exists(&scope(&in_slice)) && !node.model.exists(&scope(&in_place)));
    // Each stays where it is.
    node.settings.policies.tree = TreeChoice::Slice;
    node.restart().await;
    node.check().await;
    assert_eq!([&in_slice, &in_place].map(|pod| node.phase(pod)), [Some("isolated"); 2]);
}

#[test]
fn a_registration_and_an_attach_cut_off_anywhere_can_be_asked_for_again() {
    // Each in a runtime of its own: looks for late threads keep a daemon's inotify instance for a while.
    let cut = |changes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(cut_off_after(changes))
    };
    let last = (0..).find(|changes| cut(*changes)).unwrap();
    assert!(last > 30, "all of it in {last} changes");
}

/// Whether both calls went through.
async fn cut_off_after(changes: u32) -> bool {
    let mut node = Node::in_place().await;
    let pod = node.pod(1, "2-3");
    node.model.pin(pod.other, &cpus("2")).unwrap();
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    let (request, attach) = (node.request(&pod), node.attach_request(&pod, &qemu));
    let handle = node.handle.clone();
    let call = async move {
        handle.register(request).await?;
        handle.attach(attach).await
    };
    let done = killed(&mut node, changes, call).await;
    node.register(&pod).await.unwrap();
    node.attach(&pod, &qemu).await.unwrap();
    assert_eq!(node.phase(&pod), Some("isolated"), "cut after {changes}");
    assert_eq!(node.lists(&pod), ["2-3", "2-3", "2-3"], "cut after {changes}");
    let other = node.model.cgroup(pod.other).unwrap();
    assert_eq!(other, pod.origin.child("housekeeping"), "cut after {changes}");
    node.check().await;
    done
}

#[tokio::test]
async fn a_deregistration_cut_off_anywhere_ends_by_itself() {
    for changes in 0.. {
        let mut node = Node::in_place().await;
        let (pod, qemu) = node.isolated(1, "2-3").await;
        let handle = node.handle.clone();
        let call = handle.deregister(pod.uid.clone());
        let done = killed(&mut node, changes, call).await;
        node.quiet().await;
        if changes > 0 {
            node.assert_as_before(&pod);
            node.assert_nothing_claimed(&[kubepods(), pod_of(&pod)]);
            assert_eq!(
                node.model.cgroup(qemu.vcpus[0]).unwrap(),
                pod.origin,
                "cut after {changes}"
            );
            assert_eq!(node.model.mask(qemu.vcpus[0]), cpus("0-7"), "cut after {changes}");
        }
        node.stop().await;
        if done {
            assert!(changes > 8, "all of it in {changes} changes");
            break;
        }
    }
}

#[tokio::test]
async fn what_the_daemon_leaves_behind_when_it_is_removed_is_what_live_vms_have() {
    let mut node = Node::in_place().await;
    let (first, _) = node.isolated(1, "2-3").await;
    let (second, _) = node.isolated(2, "4-5").await;
    node.add_container(&first, "0-1");
    node.stop().await;
    node.model.end(first.init).unwrap();
    let released = crate::engine::release_host(node.model.system()).await.unwrap();
    assert!(released.contains(&pod_of(&first).to_string()), "{released:?}");
    node.assert_nothing_claimed(&[pod_of(&first)]);
    assert_eq!(node.lists(&second), ["4-5", "4-5", "4-5"]);
    node.model.end(second.init).unwrap();
    crate::engine::release_host(node.model.system()).await.unwrap();
    node.assert_nothing_claimed(&[kubepods()]);
    node.start();
}

#[tokio::test]
async fn where_the_runtime_does_not_cope_the_scope_is_made() {
    let mut node = Node::in_place().await;
    node.model.set_copes(false);
    let (pod, _) = node.isolated(1, "2-3").await;
    assert!(node.model.exists(&scope(&pod)));
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.assert_nothing_claimed(&[kubepods(), pod_of(&pod)]);
    node.check().await;
}

#[tokio::test]
async fn a_list_above_that_another_program_empties_is_drift_and_is_repaired() {
    let mut node = Node::in_place().await;
    let (pod, _) = node.isolated(1, "2-3").await;
    for level in [kubepods(), pod_of(&pod)] {
        node.model.meddle(&level, File::CpusExclusive, "").unwrap();
        node.catch_up().await;
        assert_eq!(node.lists(&pod), ["2-3", "2-3", "2-3"], "{level}");
        node.check().await;
    }
    assert!(node.handle.view().counters.drift_found > 0);
}
