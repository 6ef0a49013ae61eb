use std::fs;
use std::sync::Arc;

use stelia_api::{Reason, ReasonCode, State};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::locality::{Locality, NodeMemory};
use stelia_kubelet::PodName;
use stelia_model::{FloatReason, PinnedReason, PinnedThread};

use super::*;
use crate::shared::daemon::node::testing::{PODS, allocated, instance_mut, node};
use crate::shared::kernel::interrupts::Fired;
use crate::tests::fixtures::{columns as terminal, holds, never_says, pod, says, text, write};

/// Two minutes after the VMs registered.
const NOW: u64 = 1_735_689_720_000_000;

/// The node, with all that a daemon tells of its VMs.
fn told() -> Description {
    let mut node = node();
    for instance in node.node.instances.values_mut() {
        let instance = Arc::make_mut(instance);
        instance.registered_us = NOW - 120_000_000;
        instance.state_since_us = NOW - 60_000_000;
        instance.float_reason = FloatReason::Near;
    }
    let first = instance_mut(&mut node, PODS[0]);
    first.pod_name = PodName::new("team-a", "vm");
    first.scope = CgroupPath::root().child("a.scope");
    first.isolated_us = NOW - 60_000_000;
    first.partition = "isolated".to_owned();
    for vcpu in &mut first.vcpus {
        vcpu.guest_node = Some(0);
    }
    let second = instance_mut(&mut node, PODS[1]);
    second.degraded.clear();
    second.pod_name = PodName::new("team-a", "new");
    let waits = Reason::of_node(ReasonCode::NoVcpus, "waiting for the runner to attach vCPU threads");
    second.not_isolated = Some(waits.with_fix("kubectl logs -n team-a new -c vm".to_owned()));
    let memory = NodeMemory {
        anon: 1 << 30,
        ..NodeMemory::default()
    };
    let locality = Locality {
        nodes: [1].into(),
        cpus: [(1, 2)].into(),
        memory: [(1, memory)].into(),
        ..Locality::default()
    };
    node.locality.instances = [(PODS[0].to_owned(), locality)].into();
    node
}

/// The kernel's counters: a vCPU's run delay in milliseconds, how often the VM was throttled, and the ticks that CPU 0 was busy.
fn files(root: &Path, [delay, throttled, busy]: [u64; 3]) {
    let (middle, end) = (["0"; 12].join(" "), ["0"; 16].join(" "));
    for (thread, delay) in [(70, delay), (71, 0)] {
        let file = |name: &str, text: &str| write(root, &format!("proc/{thread}/task/{thread}/{name}"), text);
        file(
            "stat",
            &format!("{thread} (CPU 0/KVM) S 1 1 1 0 -1 0 {middle} 1 {end} 4 0\n"),
        );
        file("schedstat", &format!("0 {} 1\n", delay * 1_000_000));
        file("status", "nonvoluntary_ctxt_switches:\t0\n");
        file("sched", "core_forceidle_sum : 5.000000\n");
    }
    write(root, "proc/interrupts", "CPU0 CPU4\n");
    let throttled = format!("nr_throttled {throttled}\nthrottled_usec {}\n", throttled * 100_000);
    write(root, "sys/fs/cgroup/a.scope/cpu.stat", throttled);
    let cpu = |cpu: u32, busy: u64| format!("cpu{cpu} {busy} 0 0 1000 0 0 0 0 0 0\n");
    write(root, "proc/stat", cpu(0, busy) + &cpu(4, 0));
}

/// The answer about a VM, with readings a second apart of which the second follows what is written in between.
fn measured(description: &Description, at: usize, between: impl FnOnce(&Path)) -> Answer {
    let root = tempfile::tempdir().unwrap();
    let roots = Roots::below(root.path());
    let take = |seconds| slow::Reading::take(description, PODS[at], &roots, MEASURE_INTERVAL * seconds);
    files(root.path(), [100, 0, 0]);
    let before = take(1);
    between(root.path());
    vm::answer(description, PODS[at], NOW, (&before, &take(2))).unwrap()
}

fn quiet(description: &Description, at: usize) -> Answer {
    measured(description, at, |_| {})
}

#[test]
fn a_number_is_a_cpu_and_anything_else_a_vm() {
    assert_eq!(["17", "cpu17"].map(cpu_number), [Some(17); 2]);
    // A static pod's UID is 32 hexadecimal digits, which may all be decimal.
    assert_eq!(["17a", "17171717171717171717171717171717"].map(cpu_number), [None; 2]);
}

#[test]
fn each_screen_fits_a_terminal() {
    let mut trouble = told();
    let reason = |code, text: &str| Reason::of_node(code, text);
    instance_mut(&mut trouble, PODS[0]).degraded = vec![reason(
        ReasonCode::CpusetChanged,
        "container cpuset is 4, kubelet assigned 4-5",
    )];
    trouble.node.kubelet_policy = None;
    trouble.problems = vec![reason(
        ReasonCode::KubeletUnusable,
        "checksum mismatch (stored 1, computed 14413152)",
    )];
    let disturbed = |root: &Path| files(root, [125, 3, 950]);
    let pods = Pods::of(&trouble);
    let device = Fired {
        irq: 130,
        name: "nvme0q3\x1b".to_owned(),
        per_second: vec![(2, 7), (4, 12)],
    };
    let cpu = |at, fired: &[Fired]| cpu::answer(&trouble, &pods, at, Some(fired), NOW).unwrap();
    for (name, screen) in [
        ("isolated", quiet(&told(), 0)),
        ("waiting", quiet(&told(), 1)),
        ("disturbed", measured(&trouble, 0, disturbed)),
        ("chosen_by_steliad", quiet(&allocated(), 0)),
        (
            "cpu",
            cpu::answer(&told(), &Pods::of(&told()), 4, Some(&[]), NOW).unwrap(),
        ),
        ("cpu_interrupted", cpu(4, &[device])),
        ("cpu_shared", cpu(3, &[])),
        ("node", of_node(&trouble, "node-1")),
        ("node_well", of_node(&told(), "node-1")),
    ]
    .map(|(name, answer)| (name, answer.text(terminal(80))))
    {
        assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
        assert!(screen.lines().count() <= 25, "{screen}");
        insta::assert_snapshot!(name, screen);
    }
}

#[test]
fn programs_get_the_facts() {
    let json = serde_json::to_value(quiet(&told(), 0)).unwrap();
    holds(
        &json,
        serde_json::json!({
            "/pod_name": "vm", "/state": "isolated",
            "/facts/1": {"label": "CPUs", "text": "4-5 on NUMA 1, assigned by kubelet; partition type isolated"},
        }),
    );
    // Others' texts steer no terminal.
    says(&text(&quiet(&allocated(), 2)), &["NUMA node 1?[2J", "CPU limit 2.5"]);
}

#[test]
fn what_slows_a_vm_down_is_told_once_with_its_fix() {
    let mut node = told();
    let first = instance_mut(&mut node, PODS[0]);
    first.state = State::Pinned;
    first.pinned_reason = Some(PinnedReason::NoPartitions);
    first.not_isolated = Some(Reason::of_node(
        ReasonCode::NoPartitions,
        "this kernel has no partitions",
    ));
    first.exclusive = "3-4".parse().unwrap();
    first.vcpus = vec![PinnedThread::default()];
    let memory = NodeMemory {
        anon: 1 << 30,
        ..NodeMemory::default()
    };
    node.locality
        .instances
        .get_mut(PODS[0])
        .unwrap()
        .memory
        .insert(0, memory);
    let all = text(&quiet(&node, 0));
    for once in [
        "Linux 6.7 or later",
        "a NUMA node of the guest is spread",
        "CPUs 2,5, which are not its own",
        "is remote",
    ] {
        assert_eq!(all.matches(once).count(), 1, "{once}: {all}");
    }
    let idle = |root: &Path| {
        write(root, "proc/70/task/70/sched", "core_forceidle_sum : 45.000000\n");
    };
    let mut across = told();
    across.locality.instances.get_mut(PODS[0]).unwrap().nodes = [0, 1].into();
    says(
        &text(&measured(&across, 0, idle)),
        &["siblings idle 4 %", "core_scheduling=off"],
    );
    // What is little is not said.
    let little = text(&measured(&told(), 0, |root| files(root, [101, 0, 0])));
    says(&little, &["nothing slows it down"]);
    // What cannot be read is not called calm.
    let unread = text(&measured(&told(), 0, |root| {
        fs::remove_file(root.join("proc/interrupts")).unwrap()
    }));
    says(&unread, &["not all that may slow it down was measured", NOT_COUNTED]);
    let mut degraded = told();
    instance_mut(&mut degraded, PODS[0]).degraded = vec![Reason::of_node(ReasonCode::CpusetChanged, "x")];
    never_says(&text(&quiet(&degraded, 0)), &["nothing slows", "measured"]);
    let waits = text(&quiet(&told(), 1));
    says(&waits, &["waiting for the runner"]);
    never_says(&waits, &["nothing slows"]);
}

#[test]
fn what_is_no_vm_or_no_cpu_has_its_exit_code() {
    let none = (&slow::Reading::default(), &slow::Reading::default());
    assert_eq!(vm::answer(&told(), PODS[2], NOW, none).unwrap_err().exit_code(), 3);
    let failure = cpu::answer(&told(), &Pods::default(), 8, None, NOW).unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    says(&failure.to_string(), &["online are 0-7"]);
}

#[test]
fn a_cpu_names_its_owner_its_pools_and_who_else_runs_there() {
    let others: Pods = [pod(PODS[2], "team-a/db-0")].into_iter().collect();
    let of = |description: &Description, cpu: u32| {
        let mut pods = Pods::of(description);
        pods.add(others.clone());
        text(&cpu::answer(description, &pods, cpu, None, NOW).unwrap())
    };
    let was = || {
        let mut node = told();
        let former = stelia_model::FormerVm {
            pod: stelia_kubelet::PodUid::parse(PODS[2]).unwrap(),
            cpus: "6".parse().unwrap(),
            ended_us: NOW - 120_000_000,
            ..Default::default()
        };
        node.node.former = vec![former].into();
        node
    };
    for (node, cpu, expected) in [
        (told(), 4, &["vCPU 0 (tid 70)", "sibling CPU 5 (team-a/vm)"][..]),
        (
            told(),
            2,
            &["team-a/new (waiting)", "sibling CPU 3 (shared)", "kubectl logs"],
        ),
        (
            told(),
            6,
            &["team-a/db-0, container db (CPUs 6), assigned by kubelet; not a VM"],
        ),
        // It is no VM any more.
        (
            was(),
            6,
            &["not a VM", "Before", "released or ended 2m ago", "not isolated"],
        ),
        (
            told(),
            0,
            &[
                "reserved for the system",
                "non-vCPU threads of team-a/vm",
                "all threads of team-a/new",
            ],
        ),
        (allocated(), 4, &["Class", "LSE", "assigned by steliad"]),
        (allocated(), 2, &["LSR", "BE pool"]),
        (
            allocated(),
            7,
            &[
                "free for the next LSE or LSR",
                "shared pool of NUMA 1",
                "still held by kubelet",
            ],
        ),
    ] {
        says(&of(&node, cpu), expected);
    }
    let mut offline = told();
    let shape = stelia_cpus::testing::Shape {
        nodes: 1,
        cores: 4,
        threads: 1,
        interleaved: false,
    };
    offline.node.topology = shape.topology().into();
    offline.node.offline = "4-7".parse().unwrap();
    says(
        &of(&offline, 4),
        &[
            "CPU 4 is offline",
            "team-a/vm",
            "echo 1 > /sys/devices/system/cpu/cpu4/online",
        ],
    );
}
