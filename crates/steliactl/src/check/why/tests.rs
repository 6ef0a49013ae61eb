use std::sync::Arc;

use stelia_api::{Reason, ReasonCode, State};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::locality::{Locality, NodeMemory};
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::{FloatReason, PinnedReason, PinnedThread};

use super::pod::{PodExplained, gather};
use super::*;
use crate::shared::daemon::Description;
use crate::shared::daemon::node::testing::{PODS, allocated, instance_mut, node};
use crate::shared::output::{Render, TextStyle};
use crate::tests::fixtures::{columns, says};

/// Two minutes after the VMs registered, in these tests.
const NOW: u64 = 1_735_689_720_000_000;
const REGISTERED: u64 = NOW - 120_000_000;

/// The node, with all that a daemon tells of its VMs.
fn told() -> Description {
    let mut node = node();
    node.node.cpu_source = CpuSource::Kubelet;
    for instance in node.node.instances.values_mut() {
        let instance = Arc::make_mut(instance);
        instance.registered_us = REGISTERED;
        instance.float_reason = FloatReason::Near;
    }
    let first = instance_mut(&mut node, PODS[0]);
    first.pod_name = PodName::new("team-a", "vm");
    first.isolated_us = NOW - 60_000_000;
    first.partition = "root".to_owned();
    for vcpu in &mut first.vcpus {
        vcpu.guest_node = Some(0);
    }
    let second = instance_mut(&mut node, PODS[1]);
    second.degraded.clear();
    second.float_reason = FloatReason::TooFewNear;
    let memory = |anon| NodeMemory {
        anon,
        ..NodeMemory::default()
    };
    let locality = Locality {
        nodes: [1].into(),
        memory: [(0, memory(1 << 30)), (1, memory(1 << 30))].into(),
        ..Locality::default()
    };
    node.locality.instances = [(PODS[0].to_owned(), locality)].into();
    node
}

fn story(description: &Description, pod: usize) -> PodExplained {
    gather(description, PODS[pod], NOW).unwrap()
}

fn text(description: &Description, pod: usize) -> String {
    story(description, pod).text(TextStyle::from(true))
}

#[test]
fn a_number_is_a_cpu_and_anything_else_a_pod() {
    assert_eq!(["17", "cpu17"].map(cpu_number), [Some(17); 2]);
    // A static pod's UID is 32 hexadecimal digits, which may all be decimal.
    assert_eq!(["17a", "17171717171717171717171717171717"].map(cpu_number), [None; 2]);
}

#[test]
fn an_isolated_vm_of_kubelets_has_its_whole_story() {
    insta::assert_snapshot!(text(&told(), 0), @"
    team-a/vm (aaaaaaaa-0000-4000-8000-000000000000), container vm: isolated

    CPUs
    who chooses CPUs on this node: kubelet, by its static policy  steliad's settings
    kubelet gave container vm the CPUs 4-5                        cpu_manager_state
    CPUs 4-5 are on NUMA node 1                                   /sys/devices/system

    State
    registered 2 min ago, at 2025-01-01T00:00:00.000000Z  the instance's scope
    isolated 60 s ago, at 2025-01-01T00:01:00.000000Z     the instance's scope
    now isolated                                          steliad
    the partition of its vCPUs is of kind root            cpuset.cpus.partition

    Everything but its vCPUs
    runs on 0-1,3,7                                                             the kernel's cgroup files
    float-policy is pod or numa: the shared pool on the NUMA nodes of its CPUs  steliad's settings

    The guest
    guest node 0: vCPUs 0-1 on CPUs 4-5 of NUMA node 1  the vCPUs' properties, as attached
    ");
}

#[test]
fn a_vm_that_waits_says_since_when_and_for_whom() {
    insta::assert_snapshot!(text(&told(), 1), @"
    bbbbbbbb-0000-4000-8000-000000000000, container vm: floating

    CPUs
    who chooses CPUs on this node: kubelet, by its static policy  steliad's settings
    kubelet gave container vm the CPUs 2                          cpu_manager_state
    CPUs 2 are on NUMA node 0                                     /sys/devices/system
    CPUs 3 share cores with them and are not its own              /sys/devices/system

    State
    registered 2 min ago, at 2025-01-01T00:00:00.000000Z                                                          the instance's scope
    floating: vCPUs not attached for 2 min                                                                        steliad
    it waits for AttachVcpus, which its container's runner calls                                                  steliad
    to do: the container's log: the runner attaches the vCPUs once the VMM's socket answers, and tries every 5 s  steliad

    Everything but its vCPUs
    runs on 0-1,3,7                                                                                         the kernel's cgroup files
    the shared pool has fewer than float-min-cpus CPUs on the NUMA nodes of its CPUs: it is the whole pool  steliad's settings
    ");
}

#[test]
fn what_steliad_chose_is_told_line_by_line_and_a_contained_vm_says_why() {
    let mut node = allocated();
    let second = instance_mut(&mut node, PODS[1]);
    second.pinned_reason = Some(PinnedReason::Class);
    insta::assert_snapshot!(text(&node, 0) + "\n" + &text(&node, 1), @"
    aaaaaaaa-0000-4000-8000-000000000000, container vm: isolated

    CPUs
    who chooses CPUs on this node: steliad                                                                                     steliad's settings
    class LSE: exclusive CPUs; nothing else runs there                                                                         the instance's scope
    asked for 2 CPUs: bind policy FullPCPUs, exclusive policy NUMANodeLevel, strategy MostAllocated, alignment SingleNUMANode  the instance's scope
    was given the CPUs 4-5                                                                                                     the instance's scope
    exclusive policy downgraded: to PCPULevel: a NUMA node is shared with an instance of the same policy, no core is           the instance's scope
    2 CPUs wanted, FullPCPUs                                                                                                   steliad's allocator
    NUMA node 1 is shared: PCPULevel                                                                                           steliad's allocator
    CPUs 4-5 are on NUMA node 1                                                                                                /sys/devices/system

    State
    now isolated  steliad

    Everything but its vCPUs
    runs on 7                                                                   the kernel's cgroup files
    float-policy is pod or numa: the shared pool on the NUMA nodes of its CPUs  steliad's settings

    bbbbbbbb-0000-4000-8000-000000000000, container vm: pinned

    CPUs
    who chooses CPUs on this node: steliad                                                                     steliad's settings
    class LSR: CPUs of its own; BE may run there                                                               the instance's scope
    asked for 1 CPU: bind policy SpreadByPCPUs, exclusive policy None, strategy MostAllocated, alignment None  the instance's scope
    was given the CPUs 2                                                                                       the instance's scope
    exclusive policy not-asked: no exclusive policy was asked for                                              the instance's scope
    1 CPUs wanted                                                                                              steliad's allocator
    CPUs 2 are on NUMA node 0                                                                                  /sys/devices/system
    CPUs 3 share cores with them and are not its own                                                           /sys/devices/system

    State
    pinned: class LSR: BE may run on its CPUs  steliad
    to do: none, or --qos=LSE of the runner       steliad

    Everything but its vCPUs
    runs on 0-1,3                                                               the kernel's cgroup files
    float-policy is pod or numa: the shared pool on the NUMA nodes of its CPUs  steliad's settings
    ");
    // An LS instance has no exclusive CPUs; its texts steer no terminal.
    let ls = text(&node, 2);
    says(
        &ls,
        &[
            "class LS: no exclusive CPUs",
            "CPU limit is 2.5 CPUs",
            "NUMA node 1?[2J",
        ],
    );
}

#[test]
fn a_reason_of_degradation_has_its_cure() {
    let mut node = told();
    let reason = |node: &mut Description, reason: Reason| instance_mut(node, PODS[0]).degraded = vec![reason];
    let pod = PodUid::parse(PODS[0]).unwrap();
    reason(
        &mut node,
        Reason::of(&pod, ReasonCode::CpusOffline, "CPUs 4 are offline"),
    );
    let known = text(&node, 0);
    says(&known, &["to do: echo 1 > /sys/devices/system/cpu/cpu4/online"]);
}

#[test]
fn kubelets_file_may_say_something_else_or_nothing() {
    let mut node = told();
    let entries = Arc::make_mut(&mut node.node.entries);
    let entry = entries.get_mut(PODS[0]).unwrap();
    entry.insert("vm".to_owned(), "4-6".parse().unwrap());
    let text_now = text(&node, 0);
    says(&text_now, &["gives container vm the CPUs 4-6", "its own are 4-5"]);
    Arc::make_mut(&mut node.node.entries).clear();
    assert!(text(&node, 0).contains("kubelet has no entry for container vm"));
    node.node.kubelet_problem = Some("no file".to_owned());
    assert!(text(&node, 0).contains("kubelet's file cannot be used: no file"));
}

#[test]
fn what_is_no_instance_has_its_exit_code() {
    assert_eq!(gather(&told(), PODS[2], NOW).unwrap_err().exit_code(), 3);
}

#[test]
fn programs_get_the_story_too() {
    let json = serde_json::to_value(story(&told(), 0)).unwrap();
    assert_eq!(
        (&json["pod_name"], &json["exclusive_cpus"]),
        (&"vm".into(), &"4-5".into())
    );
    assert_eq!(json["guest_nodes"][0]["host_nodes"], "1");
    assert_eq!(json["story"][0]["heading"], "CPUs");
    assert_eq!(json["why"], serde_json::Value::Null);
    let json = serde_json::to_value(story(&allocated(), 0)).unwrap();
    assert_eq!(json["allocation"]["explanation"][0], "2 CPUs wanted, FullPCPUs");
}

/// Readings of the first VM at two moments a second apart, by what is written in between.
fn measured(description: &Description, write: impl FnOnce(&Path)) -> String {
    let root = tempfile::tempdir().unwrap();
    let roots = Roots::below(root.path());
    files(root.path(), [100, 10, 0, 0]);
    let before = slow::Reading::take(description, PODS[0], &roots, slow::MEASURE_INTERVAL);
    write(root.path());
    let after = slow::Reading::take(description, PODS[0], &roots, slow::MEASURE_INTERVAL * 2);
    let whole = story(description, 0)
        .measured(description, (&before, &after))
        .text(TextStyle::from(true));
    whole.split_once("What may slow it down\n").unwrap().1.to_owned()
}

/// A vCPU's run delay and cron's run time in milliseconds, how often it was throttled, and the ticks that CPU 0 was busy.
fn files(root: &Path, [delay, cron, throttled, busy]: [u64; 4]) {
    let write = |path: &str, text: String| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let stat = |tid: u64, name: &str, cpu: u32| {
        let middle = ["0"; 12].join(" ");
        let end = ["0"; 16].join(" ");
        format!("{tid} ({name}) S 1 1 1 0 -1 0 {middle} 1 {end} {cpu} 0\n")
    };
    for (tid, name, cpu, schedstat) in [
        (70, "CPU 0/KVM", 4, format!("0 {} 1\n", delay * 1_000_000)),
        (80, "cron", 4, format!("{} 0 1\n", cron * 1_000_000)),
    ] {
        let task = format!("proc/{tid}/task/{tid}");
        write(&format!("{task}/stat"), stat(tid, name, cpu));
        write(&format!("{task}/schedstat"), schedstat);
        write(&format!("{task}/status"), "nonvoluntary_ctxt_switches:\t0\n".to_owned());
        write(&format!("{task}/sched"), "core_forceidle_sum : 5.000000\n".to_owned());
    }
    let text = format!("nr_throttled {throttled}\nthrottled_usec {}\n", throttled * 100_000);
    write("sys/fs/cgroup/a.scope/cpu.stat", text);
    let cpu = |cpu: u32, busy: u64| format!("cpu{cpu} {busy} 0 0 1000 0 0 0 0 0 0\n");
    write("proc/stat", cpu(0, busy) + &cpu(4, 0));
}

/// The node with one VM that has nothing to be said of.
fn quiet() -> Description {
    let mut node = told();
    node.locality.instances.clear();
    let first = instance_mut(&mut node, PODS[0]);
    first.scope = CgroupPath::root().child("a.scope");
    node
}

#[test]
fn a_vm_that_nothing_disturbs_hears_that() {
    let text = measured(&quiet(), |_| {});
    assert_eq!(text, "steliad found nothing that slows it down.\n");
}

#[test]
fn at_eighty_columns_what_slows_a_vm_down_and_its_cure_are_whole() {
    let line = slow::Line {
        measured: "core scheduling kept siblings of its CPUs idle, 12.5 % of one CPU, while its vCPUs ran".to_owned(),
        much: true,
        cure: "whole cores for it (full-pcpus-only of kubelet, FullPCPUs of steliad), or Cloud Hypervisor's --cpus core_scheduling=off"
            .to_owned(),
    };
    let style = columns(80);
    let text = slow::text(std::slice::from_ref(&line), style);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('…'), "{text}");
    for word in line.measured.split(' ').chain(line.cure.split(' ')) {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_was_measured_is_told_with_whether_it_is_much_and_what_to_do() {
    let text = measured(&quiet(), |root| files(root, [125, 40, 3, 950]));
    says(
        &text,
        &[
            "vCPU 0 waited 2.5 % of the time for a CPU",
            "other tasks ran on its CPUs, 3.0 % of one CPU: cron (80) on 4",
            "the whole VM was throttled 3 times, 30.0 % of the time",
            "0-1,3,7, were 100 % busy",
            "steliactl verify",
        ],
    );
    assert!(!text.contains("steliad found nothing"), "{text}");
    let little = measured(&quiet(), |root| files(root, [101, 11, 0, 0]));
    says(&little, &["waited 0.1 %", "steliad found nothing"]);
}

#[test]
fn what_is_known_without_a_measurement_is_told_beside_it() {
    let mut node = told();
    let first = instance_mut(&mut node, PODS[0]);
    first.state = State::Pinned;
    first.pinned_reason = Some(PinnedReason::NoPartitions);
    first.exclusive = "3-4".parse().unwrap();
    first.vcpus = vec![PinnedThread::default()];
    let text = measured(&node, |_| {});
    says(
        &text,
        &[
            "pinned: unbound kernel workers",
            "Linux 6.7 or later",
            "a NUMA node of the guest is spread",
            "CPUs 2 share cores with its own",
            " of its memory is remote from its CPUs",
        ],
    );
}

#[test]
fn core_scheduling_and_numa_balancing_are_told_where_they_cost_a_vm_something() {
    let mut node = quiet();
    let across = Locality {
        nodes: [0, 1].into(),
        ..Locality::default()
    };
    node.locality.instances.insert(PODS[0].to_owned(), across);
    let disturbed = |root: &Path| {
        std::fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/numa_balancing"), "1\n").unwrap();
        std::fs::write(root.join("proc/70/task/70/sched"), "core_forceidle_sum : 45.000000\n").unwrap();
    };
    let text = measured(&node, disturbed);
    says(
        &text,
        &[
            "core scheduling kept siblings of its CPUs idle, 4.0 % of one CPU",
            "core_scheduling=off",
            "kernel.numa_balancing",
        ],
    );
    let text = measured(&quiet(), disturbed);
    assert!(!text.contains("numa_balancing"), "{text}");
}
