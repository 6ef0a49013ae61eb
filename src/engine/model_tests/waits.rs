//! What an instance waits for, where nothing is about to end the wait.

use stelia_koordinator::allocator::Qos;

use super::in_place::kubepods;
use super::*;

/// A VM that is to have CPUs 2 and 4 instead of 2-3, of which another program has 4.
async fn stuck(node: &mut Node) -> Pod {
    let (pod, _) = node.isolated(1, "2-3").await;
    node.claim_elsewhere("4");
    node.assign(&pod, "2,4");
    if node.settings.policies.tree == TreeChoice::InPlace {
        node.model.meddle(&pod.origin, File::Cpus, "2,4").unwrap();
    }
    node.catch_up().await;
    pod
}

/// It rests for at least 4 s between two attempts.
async fn rests_long(node: &Node) {
    for _ in 0..3 {
        node.reconcile().await;
    }
    node.quiet().await;
}

/// A valid partition takes no CPU that comes into the list above it later: its own list waits for that.
#[tokio::test]
async fn a_vm_follows_a_resize_once_the_list_above_can_have_its_cpus_and_a_neighbour_gives_cpus_up_meanwhile() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    let neighbour = node.pod(2, "5-6");
    node.register(&neighbour).await.unwrap();
    node.started(&neighbour, 1).await;
    node.claim_elsewhere("4");
    node.assign(&pod, "2,4");
    node.reconcile().await;
    // Meanwhile the neighbour gives a CPU up.
    node.assign(&neighbour, "5");
    node.catch_up().await;
    let has = |node: &Node, pod: &Pod| node.read(&vcpu(pod), File::CpusExclusive);
    assert_eq!(has(&node, &neighbour), "5");
    assert_eq!(has(&node, &pod), "2-3");
    rests_long(&node).await;
    let failed = |node: &Node| {
        let shown = node.handle.view().instances[&pod.uid].degraded.clone();
        shown.into_iter().find(|reason| reason.code == ReasonCode::StepFailed)
    };
    let reason = failed(&node).expect("a reason").text;
    assert!(reason.contains("does not have its CPUs 4 yet"), "{reason}");
    node.claim_elsewhere("");
    node.reconcile().await;
    assert_eq!(has(&node, &pod), "2,4");
    assert_eq!(failed(&node), None);
    node.check().await;
}

/// The list above all is extended for each VM by itself.
#[tokio::test]
async fn a_cpu_that_another_program_has_keeps_one_vm_pinned_and_no_other() {
    let mut node = Node::new();
    let pods = [node.pod(1, "2-3"), node.pod(2, "5-6")];
    for pod in &pods {
        node.register(pod).await.unwrap();
    }
    node.claim_elsewhere("3");
    for pod in &pods {
        node.started(pod, 2).await;
    }
    let state = |node: &Node, pod: &Pod| node.handle.view().instances[&pod.uid].state;
    assert_eq!(state(&node, &pods[0]), State::Pinned);
    assert_eq!(state(&node, &pods[1]), State::Isolated);
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "5-6");
    node.claim_elsewhere("");
    node.reconcile().await;
    assert_eq!(state(&node, &pods[0]), State::Isolated);
    node.check().await;
}

#[tokio::test]
async fn in_place_a_cpu_that_another_program_has_keeps_no_other_vm_from_its_cpus_either() {
    let mut node = Node::in_place().await;
    let pod = stuck(&mut node).await;
    let (neighbour, _) = node.isolated(2, "5-6").await;
    assert_eq!(node.phase(&neighbour), Some("isolated"));
    assert_eq!(node.lists(&neighbour), ["2-3,5-6", "5-6", "5-6"]);
    // Nor do CPUs that are given back stay in kubepods' list.
    node.deregister(&neighbour).await;
    assert_eq!(node.read(&kubepods(), File::CpusExclusive), "2-3");
    node.model.kill_pod(&neighbour).unwrap();
    node.checkpoint.release(&neighbour.uid).unwrap();
    node.settings.policies.tree = TreeChoice::Slice;
    node.handle.reload(node.settings.clone()).await.unwrap();
    let (in_slice, _) = node.isolated(3, "5-6").await;
    assert_eq!(node.phase(&in_slice), Some("isolated"));
    node.claim_elsewhere("");
    node.catch_up().await;
    assert_eq!(node.lists(&pod), ["2,4", "2,4", "2,4"]);
    node.check().await;
}

/// A daemon that is cut off while it adds CPUs has recorded more than it added.
#[tokio::test]
async fn what_was_recorded_and_never_added_keeps_no_other_vm_from_its_cpus() {
    let mut node = Node::in_place().await;
    let pod = stuck(&mut node).await;
    node.stop().await;
    let recorded = [("exclusive-cpus-added", "2-4")];
    for (name, value) in recorded {
        node.model.set_attribute(&kubepods(), name, value).unwrap();
    }
    node.start();
    node.catch_up().await;
    let (neighbour, _) = node.isolated(2, "5-6").await;
    assert_eq!(node.phase(&neighbour), Some("isolated"));
    node.claim_elsewhere("");
    node.catch_up().await;
    assert_eq!(node.lists(&pod)[0], "2,4-6");
    node.check().await;
}

#[tokio::test]
async fn cpus_that_are_given_back_leave_the_slices_list_while_another_vms_are_not_to_be_had() {
    let mut node = Node::new();
    let (neighbour, _) = node.isolated(2, "5-6").await;
    stuck(&mut node).await;
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "2-3,5-6");
    node.deregister(&neighbour).await;
    assert_eq!(node.read(&CgroupPath::slice(), File::CpusExclusive), "2-3");
}

/// The list above all has every VM's CPUs.
#[tokio::test]
async fn a_pod_whose_cpus_the_list_above_does_not_take_learns_of_no_other_pods() {
    let mut node = Node::new();
    node.isolated(2, "5-6").await;
    let pod = stuck(&mut node).await;
    let handle = node.handle.on_behalf_of(&pod.uid);
    let report = handle.audit(pod.uid.clone()).await.unwrap();
    let failed = report.degraded.iter().map(|(_, reason)| &reason.text);
    let failed: Vec<&String> = failed
        .filter(|text| text.contains("stelia.slice/cpuset.cpus.exclusive"))
        .collect();
    assert!(!failed.is_empty(), "{report:?}");
    assert!(failed.iter().all(|text| !text.contains('6')), "{failed:?}");
}

/// Nothing but the list of its float keeps it off the CPUs of a VM that is pinned.
#[tokio::test]
async fn the_float_of_a_vm_that_rests_leaves_the_cpus_of_another() {
    let node = allocator::node().await;
    let first = node.registered(1, 2, Qos::Lse).await;
    node.started(&first, 2).await;
    let one = node.exclusive(&first).iter().next().unwrap();
    node.model
        .meddle(&CgroupPath::slice(), File::CpusExclusive, "")
        .unwrap();
    node.claim_elsewhere(&one.to_string());
    rests_long(&node).await;
    let second = node.registered(2, 2, Qos::Lse).await;
    let other = node.exclusive(&second).iter().next().unwrap();
    node.claim_elsewhere(&format!("{one},{other}"));
    node.started(&second, 2).await;
    assert_eq!(node.phase(&second), Some("pinned"));
    node.quiet().await;
    let (float, exclusive) = (node.floats(&first), node.exclusive(&second));
    assert!(float.is_disjoint(&exclusive), "{float} has some of {exclusive}");
}

#[tokio::test]
async fn a_vm_gets_a_cpu_that_another_gives_up_whose_remaining_cpu_another_program_has() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    node.model
        .meddle(&CgroupPath::slice(), File::CpusExclusive, "3")
        .unwrap();
    node.claim_elsewhere("2");
    node.assign(&pod, "2");
    node.catch_up().await;
    let (other, _) = node.isolated(2, "3").await;
    assert_eq!(node.phase(&other), Some("isolated"));
}

#[tokio::test]
async fn a_vm_that_lost_a_cpu_to_another_program_has_it_again_once_that_gives_it_back() {
    let mut node = Node::new();
    let (pod, _) = node.isolated(1, "2-3").await;
    node.model
        .meddle(&CgroupPath::slice(), File::CpusExclusive, "3")
        .unwrap();
    node.claim_elsewhere("2");
    node.catch_up().await;
    node.claim_elsewhere("");
    node.catch_up().await;
    assert_eq!(node.read(&CgroupPath::root(), File::CpusIsolated), "2-3");
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
}

/// A container can have the kernel drop events all the time, and a broken file be broken for days.
#[tokio::test]
async fn a_look_that_comes_early_because_something_could_not_be_read_ends_no_rest() {
    let mut node = Node::new();
    node.settings.audit_interval = Duration::from_secs(3600);
    node.restart().await;
    let pod = stuck(&mut node).await;
    node.model.record_calls(true);
    rests_long(&node).await;
    // A look reads both files once, an attempt the list once more.
    let attempts = |node: &Node| {
        let calls = node.model.calls();
        let reads = |file: &str| {
            calls
                .iter()
                .filter(|call| **call == format!("read /stelia.slice/{file}"))
                .count()
        };
        reads("cpuset.cpus.exclusive") - reads("cpu.weight")
    };
    assert_ne!(attempts(&node), 0, "an audit ends a rest");
    let online = node.model.system().sys.join("devices/system/cpu/online");
    std::fs::remove_file(&online).unwrap();
    node.catch_up().await;
    node.model.record_calls(true);
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let list = format!("read {}/cgroup.events", scope(&pod));
    let calls = node.model.calls();
    assert!(calls.contains(&list), "no early look: {calls:?}");
    assert_eq!(attempts(&node), 0, "{calls:?}");
}
