use std::path::Path;
use std::sync::Arc;

use rstest::rstest;
use serde_json::json;
use stelia_kernel::cgroup::CgroupPath;
use stelia_koordinator::allocator::Qos;
use stelia_model::PendingResize;
use tempfile::TempDir;

use super::*;
use crate::shared::daemon::node::testing::{PODS, allocation, instance_mut, node};
use crate::shared::output::{Render, TextStyle};
use crate::tests::fixtures::{columns, holds, pod, says, text, write};

/// Two minutes after the second VM registered.
const NOW: u64 = 120_000_001;
const VCPU: &str = "sys/fs/cgroup/stelia.slice/a.scope/instance/vcpu";
const FLOAT: &str = "sys/fs/cgroup/stelia.slice/a.scope/instance/float/cpuset.cpus";

/// A VM that is isolated and one that waits, on a node where nothing is wrong.
fn described() -> Description {
    let mut node = node();
    let first = instance_mut(&mut node, PODS[0]);
    first.scope = CgroupPath::slice().child("a.scope");
    first.partition = "isolated".to_owned();
    let second = instance_mut(&mut node, PODS[1]);
    second.degraded.clear();
    second.scope = CgroupPath::slice().child("b.scope");
    second.state_since_us = 1;
    second.not_isolated = Some(Reason::of_node(ReasonCode::NoVcpus, "waiting for vCPU threads"));
    node
}

/// The kernel of this node.
fn kernel() -> TempDir {
    let root = TempDir::new().unwrap();
    let file = |path: &str, text: &str| write(root.path(), path, text);
    for (path, text) in [
        ("cpuset.cpus", "4-5"),
        ("cpuset.cpus.effective", "4-5"),
        ("cpuset.cpus.partition", "isolated"),
        ("cgroup.threads", "70\n71"),
    ] {
        file(&format!("{VCPU}/{path}"), &format!("{text}\n"));
    }
    file(FLOAT, "0-1,3,7\n");
    file(&FLOAT.replace("a.scope", "b.scope"), "0-1,3,7\n");
    file("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-3,6-7\n");
    file("sys/fs/cgroup/system.slice/cgroup.threads", "9\n");
    file("sys/devices/virtual/workqueue/cpumask", "cf\n");
    file("proc/1/task/1/stat", &stat(1, 0));
    for (tid, cpu) in [(70, "4"), (71, "5")] {
        file(&format!("proc/{tid}/status"), &status(cpu));
        file(&format!("proc/{tid}/task/{tid}/stat"), &stat(tid, 0));
        let cgroup = VCPU.trim_start_matches("sys/fs/cgroup");
        file(&format!("proc/{tid}/task/{tid}/cgroup"), &format!("0::{cgroup}\n"));
    }
    root
}

fn stat(tid: i32, flags: u32) -> String {
    format!("{tid} (CPU) S 1 1 1 0 -1 {flags} 0 0 0 0 1 1 0 0 20 0 1 0 1 0\n")
}

fn status(cpus: &str) -> String {
    format!("Tgid:\t70\nCpus_allowed_list:\t{cpus}\n")
}

/// The codes of what the kernel has otherwise of the first VM.
fn codes(described: &Description, root: &Path) -> Vec<&'static str> {
    let checked = kernel::check(described, &Roots::below(root));
    let found = checked[PODS[0]].clone().unwrap_or_else(|cause| panic!("{cause}"));
    found.into_iter().map(|(code, _)| code).collect()
}

#[test]
fn a_kernel_that_is_as_described_has_no_difference() {
    let root = kernel();
    assert_eq!(codes(&described(), root.path()), [""; 0]);
}

#[rstest]
#[case::cpus(VCPU, "cpuset.cpus", "4", &["cpuset"])]
#[case::effective(VCPU, "cpuset.cpus.effective", "0-5", &["cpuset"])]
#[case::partition(VCPU, "cpuset.cpus.partition", "member", &["partition-changed"])]
#[case::invalid(VCPU, "cpuset.cpus.partition", "isolated invalid (Cpu list in cpuset.cpus not exclusive)", &["partition-changed"])]
#[case::other_type(VCPU, "cpuset.cpus.partition", "root", &["partition-changed"])]
#[case::stranger(VCPU, "cgroup.threads", "70\n71\n72", &["other-threads"])]
#[case::float("", FLOAT, "0-7", &["float-cpuset"])]
#[case::others("sys/fs/cgroup/system.slice", "cpuset.cpus.effective", "0-7", &["others"])]
#[case::workers("sys/devices/virtual/workqueue", "cpumask", "ff", &["workers"])]
#[case::affinity("proc/70", "status", "Tgid:\t70\nCpus_allowed_list:\t4-5", &["affinity"])]
#[case::other_thread("proc/71/task/71", "stat", "71 (x) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 2 0", &["thread-ended"])]
fn each_file_that_was_changed_is_found(
    #[case] folder: &str,
    #[case] file: &str,
    #[case] text: &str,
    #[case] expected: &[&str],
) {
    let root = kernel();
    write(
        root.path(),
        format!("{folder}/{file}").trim_start_matches('/'),
        format!("{text}\n"),
    );
    assert_eq!(codes(&described(), root.path()), expected);
}

#[test]
fn a_thread_that_was_moved_is_found_and_one_that_others_pin_may_be_on_any_cpu_of_the_vm() {
    let root = kernel();
    write(root.path(), &format!("{VCPU}/cgroup.threads"), "70\n");
    write(root.path(), "proc/71/task/71/cgroup", "0::/elsewhere\n");
    assert_eq!(codes(&described(), root.path()), ["thread-moved"]);
    let root = kernel();
    write(root.path(), "proc/70/status", status("5"));
    let mut kept = described();
    instance_mut(&mut kept, PODS[0]).placement = stelia_settings::AdoptPlacement::Keep;
    assert_eq!(codes(&kept, root.path()), [""; 0]);
}

#[test]
fn what_is_no_partition_is_not_held_to_one_and_what_cannot_be_read_is_not_checked() {
    let root = kernel();
    for (file, text) in [("cpuset.cpus.partition", "member"), ("cgroup.threads", "70\n71")] {
        write(root.path(), &format!("{VCPU}/{file}"), text);
    }
    write(root.path(), "sys/devices/virtual/workqueue/cpumask", "ff\n");
    let mut pinned = described();
    instance_mut(&mut pinned, PODS[0]).state = State::Pinned;
    assert_eq!(codes(&pinned, root.path()), [""; 0]);
    // A thread that its cgroup lists and /proc does not show has not ended: it may not be seen.
    std::fs::remove_dir_all(root.path().join("proc/70")).unwrap();
    let hidden = kernel::check(&pinned, &Roots::below(root.path()));
    assert!(hidden[PODS[0]].is_err());
    write(root.path(), &format!("{VCPU}/cpuset.cpus"), "no list\n");
    let checked = kernel::check(&pinned, &Roots::below(root.path()));
    assert!(checked[PODS[0]].is_err() && checked[PODS[1]].is_ok());
}

#[test]
fn others_are_found_in_cgroups_without_a_list_and_in_the_root() {
    let root = kernel();
    let file = |path: &str, text: &str| write(root.path(), &format!("sys/fs/cgroup/{path}"), text);
    file("cpuset.cpus.effective", "0-7\n");
    // The kernel's own threads.
    file("cgroup.threads", "2\n");
    write(root.path(), "proc/2/task/2/stat", stat(2, 0x0420_8040));
    assert_eq!(codes(&described(), root.path()), [""; 0]);
    file("cgroup.threads", "2\n3\n");
    write(root.path(), "proc/3/task/3/stat", stat(3, 0));
    assert_eq!(codes(&described(), root.path()), ["others"]);
    file("cgroup.threads", "2\n");
    file("system.slice/cgroup.threads", "\n");
    file("system.slice/a.service/b/cgroup.threads", "9\n");
    assert_eq!(codes(&described(), root.path()), [""; 0]);
    file("system.slice/cpuset.cpus.effective", "0-7\n");
    assert_eq!(codes(&described(), root.path()), ["others"]);
}

#[test]
fn too_many_cgroups_are_one_finding_of_the_node_and_those_of_a_container_do_not_count() {
    let root = kernel();
    let cgroups = root.path().join("sys/fs/cgroup");
    let file = |path: &str, text: &str| write(root.path(), &format!("sys/fs/cgroup/{path}"), text);
    file("cpuset.cpus.effective", "0-7\n");
    let pod = "kubepods.slice/kubepods-podcccccccc_0000_4000_8000_000000000000.slice";
    let container = format!("{pod}/cri-containerd-{}.scope", "ab".repeat(32));
    file(&format!("{container}/cgroup.events"), "populated 1\nfrozen 0\n");
    let fill = |parent: &str| {
        for number in 0..=10_000 {
            std::fs::create_dir_all(cgroups.join(format!("{parent}/{number}"))).unwrap();
        }
    };
    fill(&container);
    let checked = kernel::check(&described(), &Roots::below(root.path()));
    assert_eq!((checked.len(), checked[PODS[0]].as_ref().unwrap()[0].0), (2, "others"));
    fill(pod);
    std::fs::remove_file(cgroups.join(&container).join("cgroup.events")).unwrap();
    let checked = kernel::check(&described(), &Roots::below(root.path()));
    assert_eq!(checked[PODS[0]], Ok(Vec::new()));
    let checked = checked.iter().map(|(pod, one)| (pod.as_str(), one.clone())).collect();
    let all = found(&described(), checked, &preview(&[], &[]), Demands::default());
    assert_eq!(reported(&all), [(Kind::Unread, "not-checked", true), WAITS]);
    says(&all.findings[0].text, &["more than 10000 cgroups"]);
    assert_eq!(
        (all.findings[0].pod.pod_uid.as_str(), all.instances[0].verified),
        ("-", false)
    );
}

#[test]
fn the_hosts_units_are_kept_off_the_cpus_of_a_pinned_vm_unless_its_class_is_lsr() {
    let root = kernel();
    write(root.path(), &format!("{VCPU}/cpuset.cpus.partition"), "member\n");
    let mut pinned = described();
    instance_mut(&mut pinned, PODS[0]).state = State::Pinned;
    assert_eq!(codes(&pinned, root.path()), [""; 0]);
    write(root.path(), "sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-7\n");
    assert_eq!(codes(&pinned, root.path()), ["others"]);
    instance_mut(&mut pinned, PODS[0]).allocation = Some(allocation(Qos::Lsr));
    assert_eq!(codes(&pinned, root.path()), [""; 0]);
}

#[test]
fn a_pinned_container_has_its_cpus_and_a_thread_that_may_be_hidden_has_not_ended() {
    let root = kernel();
    let file = |name: &str, text: &str| write(root.path(), &format!("sys/fs/cgroup/c.scope/{name}"), text);
    file("cpuset.cpus.effective", "4-5\n");
    file("cgroup.threads", "70\n71\n");
    let mut node = described();
    let vm = instance_mut(&mut node, PODS[0]);
    (vm.state, vm.isolation) = (State::Pinned, stelia_settings::Isolation::Container);
    vm.scope = CgroupPath::root().child("c.scope");
    assert_eq!(codes(&node, root.path()), [""; 0]);
    file("cpuset.cpus.effective", "4-6\n");
    assert_eq!(codes(&node, root.path()), ["cpuset"]);
    // It may be in a cgroup below.
    file("cgroup.threads", "70\n");
    std::fs::remove_dir_all(root.path().join("proc/71")).unwrap();
    assert_eq!(codes(&node, root.path()), ["cpuset", "thread-ended"]);
    std::fs::remove_dir_all(root.path().join("proc/1")).unwrap();
    assert!(kernel::check(&node, &Roots::below(root.path()))[PODS[0]].is_err());
}

/// The daemon's answer: what it would do, and its reasons.
fn preview(plan: &[String], reasons: &[[&str; 4]]) -> Map<String, Value> {
    let preview = json!({ "plan": plan, "reasons": reasons });
    preview.as_object().cloned().unwrap()
}

fn found(
    described: &Description,
    checked: Vec<(&str, kernel::Checked)>,
    preview: &Map<String, Value>,
    demands: Demands,
) -> Verified {
    let checked = checked
        .into_iter()
        .map(|(pod, checked)| (pod.to_owned(), checked))
        .collect();
    Verified::of(
        described,
        one_reading(described, &checked, preview, demands, NOW),
        demands,
        NOW,
    )
}

fn difference(code: &'static str) -> kernel::Checked {
    Ok(vec![(code, format!("{code} differs"))])
}

/// Kind, code and whether it fails, of each finding.
fn reported(verified: &Verified) -> Vec<(Kind, &str, bool)> {
    let findings = verified.findings.iter();
    findings.map(|one| (one.kind, one.code.as_str(), one.fails)).collect()
}

const WAITS: (Kind, &str, bool) = (Kind::Waiting, "no-vcpus", true);

#[test]
fn a_vm_that_waits_fails_after_a_minute_unless_that_is_allowed() {
    let none = preview(&[], &[]);
    let plain = found(&described(), Vec::new(), &none, Demands::default());
    insta::assert_snapshot!(text(&plain), @"
    FAIL  bbbbbbbb-0000-4000-8000-000000000000: waiting for vCPU threads (2m)
          effect  all threads run on shared CPUs
          fix     read the container's log: has the VMM's socket answered? The runner tries every 5 s

    1 of 2 VMs verified in the kernel. Failed: 1 VM.
    ");
    assert_eq!(plain.failure().as_deref(), Some("failed: 1 VM"));
    holds(
        &serde_json::to_value(&plain).unwrap(),
        json!({"/findings/0/kind": "waiting", "/findings/0/since_us": 1, "/instances/0/verified": true, "/instances/1/verified": false}),
    );
    let allowing = Demands {
        allow_waiting: true,
        require: Some(State::Isolated),
        now: false,
    };
    let allowed = found(&described(), Vec::new(), &none, allowing);
    assert_eq!((allowed.failure(), allowed.failing().len()), (None, 0));
    says(&text(&allowed), &["WAIT  bbbb", "(2m)", ". 1 waiting."]);
    // It may have been registered long ago: a VM waits in a resize too.
    let mut young = described();
    instance_mut(&mut young, PODS[1]).state_since_us = NOW - 59_000_000;
    let young = found(&young, Vec::new(), &none, Demands::default());
    assert_eq!(young.failure(), None);
    assert!(plain.findings[0].may_be_transient() && !young.findings[0].may_be_transient());
    says(&text(&young), &["WAIT  bbbb", "(59s; fails after 60s)"]);
}

#[test]
fn a_difference_is_told_once_whoever_found_it() {
    let [a, b, _] = PODS;
    let mut described = described();
    let steps = [
        format!("{a}: write x"),
        format!("{b}: pin thread 7 to CPU 4"),
        format!("{b}: move thread 7"),
    ];
    // The dry run finds it too, and would repair it.
    let same = preview(
        &steps[..1],
        &[[a, "partition-changed", "reads member", "find what claims it"]],
    );
    let one = found(
        &described,
        vec![(a, difference("partition-changed"))],
        &same,
        Demands::default(),
    );
    assert_eq!(reported(&one), [(Kind::Daemon, "partition-changed", true), WAITS]);
    assert_eq!(
        one.findings[0].fix,
        "steliactl reconcile; if it returns: find what claims it"
    );
    says(&one.findings[0].text, &["not seen this yet"]);
    // The daemon shows it already.
    let shown = Reason::of_node(ReasonCode::PartitionChanged, "reads member");
    instance_mut(&mut described, a).degraded.push(shown);
    let seen = found(&described, vec![(a, difference("affinity"))], &same, Demands::default());
    assert!(seen.findings[0].fix.starts_with("find what else claims"));
    assert_eq!(seen.findings[1].code, "affinity");
    assert!(seen.findings[1].fix.starts_with(REPAIR) && !seen.findings[0].text.contains("yet"));
    // Only the kernel has it, or only the dry run.
    let untouched = tests::described();
    let plan = preview(&steps[1..], &[]);
    let both = found(&untouched, vec![(a, difference("affinity"))], &plan, Demands::default());
    let expected = [(Kind::Daemon, "differs", true), (Kind::Kernel, "affinity", true), WAITS];
    assert_eq!(reported(&both), expected);
    says(&both.findings[0].text, &["pin thread 7 to CPU 4; move thread 7"]);
    // Only what the dry run would change is repaired.
    let fixes = both.findings[..2].iter().map(|one| one.fix.starts_with(REPAIR));
    assert_eq!(fixes.collect::<Vec<_>>(), [true, false]);
    let unrepaired = found(
        &untouched,
        vec![(a, difference("thread-moved"))],
        &preview(&[], &[[a, "evicted", "taken", "restart"]]),
        Demands::default(),
    );
    assert_eq!(unrepaired.findings[0].fix, "restart");
    assert!(unrepaired.findings[1].fix.starts_with("move the process back"));
    // What it would do for all VMs is told whatever is found of one.
    let for_all = preview(&["-: set AllowedCPUs=0-3 of system.slice".to_owned()], &[]);
    let all = found(
        &untouched,
        vec![(a, difference("affinity"))],
        &for_all,
        Demands::default(),
    );
    assert_eq!(reported(&all), expected);
    assert_eq!(all.findings[0].pod.pod_uid, "-");
    // What only the daemon shows.
    let mut node = tests::described();
    let shown = [ReasonCode::NotQuiet, ReasonCode::CpusOffline].map(|code| Reason::of_node(code, "shown"));
    instance_mut(&mut node, a).degraded.extend(shown);
    let rows = preview(&[], &[[a, "cpus-offline", "CPU 5 is offline", "online it"]]);
    let all = found(&node, Vec::new(), &rows, Demands::default());
    let daemon = |code| (Kind::Daemon, code, true);
    assert_eq!(reported(&all), [daemon("not-quiet"), daemon("cpus-offline"), WAITS]);
    assert!(!all.instances[0].verified);
    // The threads of unplugged vCPUs, while the VM gives up CPUs.
    let ended = preview(&[], &[[a, "thread-ended", "7 ended", "none"]]);
    let mut node = tests::described();
    for expected in [vec![daemon("thread-ended"), WAITS], vec![WAITS]] {
        let all = found(&node, vec![(a, difference("thread-ended"))], &ended, Demands::default());
        assert_eq!(reported(&all), expected);
        instance_mut(&mut node, a).pending_resize = Some(PendingResize::default());
    }
}

#[test]
fn a_problem_of_the_node_is_one_finding_with_effect_and_fix() {
    let mut described = described();
    described.problems = vec![Reason::of_node(
        ReasonCode::KubeletUnusable,
        "checksum mismatch (stored 1, computed 2)",
    )];
    let rows = [[
        "-",
        "kubelet-unusable",
        "checksum mismatch (stored 1, computed 2)",
        "drain",
    ]];
    let all = found(&described, Vec::new(), &preview(&[], &rows), Demands::default());
    assert_eq!(reported(&all), [(Kind::Node, "kubelet-unusable", true), WAITS]);
    says(
        &all.text(columns(60)),
        &[
            "FAIL  node: checksum",
            "\n      effect  no new VMs;",
            "\n      fix     drain the node,",
        ],
    );
    assert!(all.text(columns(60)).lines().all(|line| line.chars().count() <= 60));
    // It is no matter of the VMs.
    assert!(all.instances[0].verified);
}

#[test]
fn a_pinned_vm_fails_where_isolation_is_required_or_the_kernel_refused_it() {
    let with = |why: PinnedReason, require: Option<State>| {
        let mut node = described();
        let second = instance_mut(&mut node, PODS[1]);
        (second.state, second.pinned_reason) = (State::Pinned, Some(why));
        second.not_isolated = Some(Reason::of_node(ReasonCode::PartitionRefused, "refused twice"));
        let demands = Demands {
            require,
            ..Demands::default()
        };
        found(&node, Vec::new(), &preview(&[], &[]), demands)
    };
    let wanted = with(PinnedReason::Setting, Some(State::Pinned));
    assert_eq!((wanted.failure(), reported(&wanted)), (None, Vec::new()));
    assert_eq!(
        text(&wanted),
        "2 of 2 VMs verified in the kernel (1 isolated, 1 pinned).\n"
    );
    for below in [
        with(PinnedReason::Refused, None),
        with(PinnedReason::Setting, Some(State::Isolated)),
    ] {
        assert_eq!(reported(&below)[0].0, Kind::State);
        assert_eq!(below.failure().as_deref(), Some("failed: 1 VM"));
    }
}

#[test]
fn what_may_pass_counts_only_if_it_was_there_at_the_reading_before_and_a_newer_daemons_code_is_kept() {
    let rows = preview(&[], &[[PODS[0], "of-a-newer-daemon", "so", "do"]]);
    let read = |rows| {
        let checked = [(PODS[1].to_owned(), Err("denied".to_owned()))].into();
        one_reading(&described(), &checked, rows, Demands::default(), NOW)
    };
    let codes = |readings: Vec<Vec<Finding>>| {
        let mut before = BTreeSet::new();
        let ended = readings
            .into_iter()
            .zip(1..)
            .find_map(|(mut reading, number)| is_last_reading(&mut reading, &mut before, number).then_some(reading));
        let codes = ended.unwrap().into_iter().map(|one| one.code);
        codes.collect::<Vec<_>>()
    };
    let all = ["of-a-newer-daemon", "not-checked", "no-vcpus"];
    assert_eq!(codes(vec![read(&rows); 3]), all);
    // What comes meanwhile and stays; what comes and goes. What could not be read is not verified.
    let calm = preview(&[], &[]);
    assert_eq!(codes(vec![read(&calm), read(&rows), read(&rows)]), all);
    let comes_and_goes = [&rows, &calm, &rows, &calm, &rows].map(read);
    assert_eq!(codes(comes_and_goes.to_vec()), all[1..]);
    // The kernel has it, and the daemon comes to see it.
    let (differs, mut seen) = (ReasonCode::CpusetChanged, described());
    let kernels = [(PODS[0].to_owned(), Ok(vec![(differs.name(), "0-1".to_owned())]))].into();
    let first = one_reading(&seen, &kernels, &calm, Demands::default(), NOW);
    instance_mut(&mut seen, PODS[0]).degraded = vec![Reason::of_node(differs, "0-1")];
    let later = one_reading(&seen, &BTreeMap::new(), &calm, Demands::default(), NOW);
    assert!(codes(vec![first, later.clone(), later]).contains(&differs.name().to_owned()));
    let mut all = found(&described(), Vec::new(), &rows, Demands::default());
    all.not_checked = "the last 24 hours".to_owned();
    says(&text(&all), &["Not checked: the last 24 hours.\n"]);
}

#[test]
fn what_was_not_read_fails_and_counts_as_no_verified_vm() {
    let unread = found(
        &described(),
        vec![(PODS[0], Err("Permission denied".to_owned()))],
        &preview(&[], &[]),
        Demands::default(),
    );
    assert_eq!(reported(&unread), [(Kind::Unread, "not-checked", true), WAITS]);
    says(
        &text(&unread),
        &["not checked: Permission denied", "run as root", "0 of 2 VMs verified"],
    );
}

#[test]
fn an_account_above_its_guarantee_fails_unless_only_now_counts() {
    let device = || vec![(pod(PODS[0], ""), "3 device interrupts".to_owned())];
    let with = |accounts: Result<Vec<(Pod, String)>, Failure>, now: bool| {
        let demands = Demands {
            now,
            allow_waiting: true,
            ..Demands::default()
        };
        let findings = [
            one_reading(&described(), &[].into(), &preview(&[], &[]), demands, NOW),
            of_ledger(accounts, demands),
        ];
        Verified::of(&described(), findings.concat(), demands, NOW)
    };
    assert_eq!(with(Ok(Vec::new()), false).failure(), None);
    let above = with(Ok(device()), false);
    assert_eq!(
        (above.failure().as_deref(), above.instances[0].verified),
        (Some("failed: 1 VM"), true)
    );
    let past = with(Ok(device()), true);
    assert_eq!(past.failure(), None);
    says(&text(&past), &["NOTE  aaaaaaaa"]);
    let unread = with(Err(Failure::Other("damaged".to_owned())), false);
    assert_eq!(reported(&unread)[0], (Kind::Ledger, "ledger", true));
}

#[test]
fn remote_memory_is_a_finding_with_its_fix_while_the_cpus_are_those() {
    let memory = json!({"anon": 1 << 30, "file": 4096, "shmem": 0, "huge": 0});
    let read = |own: &[u32]| {
        let vm = json!({"nodes": own, "cpus": {}, "allowed": "", "memory": {"0": memory, "1": memory}, "devices": [], "pci": [], "memory_only": {}});
        serde_json::from_value(json!({"devices_unknown": null, "instances": {PODS[0]: vm}})).unwrap()
    };
    let mut node = described();
    let codes = |node: &Description| {
        let all = found(node, Vec::new(), &preview(&[], &[]), Demands::default());
        all.findings.iter().map(|one| one.code.clone()).collect::<Vec<_>>()
    };
    node.locality = read(&[1]);
    assert_eq!(codes(&node), ["remote-memory", "no-vcpus"]);
    // Read while the VM had CPUs of another NUMA node.
    node.locality = read(&[0]);
    assert_eq!(codes(&node), ["no-vcpus"]);
}

#[test]
fn many_vms_with_the_same_are_one_line_and_with_o_wide_one_each() {
    let mut node = described();
    let waits = node.node.instances[PODS[1]].clone();
    for number in 0..40 {
        let mut vm = waits.clone();
        Arc::make_mut(&mut vm).state_since_us = 2;
        let uid = PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        node.node.instances.insert(uid, vm);
    }
    let all = found(&node, Vec::new(), &preview(&[], &[]), Demands::default());
    let folded = all.text(columns(80));
    assert_eq!(folded.matches("FAIL").count(), 1, "{folded}");
    says(
        &folded,
        &[
            "FAIL  41 VMs (",
            ", …):",
            "1 of 42 VMs verified in the kernel. Failed: 41 VMs.",
        ],
    );
    let wide = TextStyle {
        wide: true,
        ..TextStyle::from(true)
    };
    assert_eq!(all.text(wide).matches("FAIL").count(), 41);
    assert_eq!(all.failing().len(), 41);
    // In a pipe all are named.
    says(&text(&all), &["4000-8000-000000000017", "4000-8000-000000000039"]);
    // Each has its own words.
    let mut own = all;
    for (number, finding) in own.findings.iter_mut().enumerate() {
        finding.text = format!("thread {number}");
    }
    let first = own.findings[0].pod.clone();
    says(
        &text(&own),
        &["FAIL  41 VMs (", &format!("): {first} thread 0; "), "; and 38 more"],
    );
    // Of one VM they are several of a kind.
    for finding in &mut own.findings {
        finding.pod = first.clone();
    }
    says(
        &text(&own),
        &[&format!("FAIL  {first}: thread 0; thread 1; thread 2; and 38 more")],
    );
}

#[test]
fn without_a_vm_nothing_is_verified() {
    let mut node = described();
    node.node.instances.clear();
    let empty = found(&node, Vec::new(), &preview(&[], &[]), Demands::default());
    assert_eq!((text(&empty).as_str(), empty.failure()), ("No VMs.\n", None));
    // Those that were released are less than any state.
    let with = |require| {
        let demands = Demands {
            require,
            ..Demands::default()
        };
        let former = vec![(pod(PODS[0], "team-a/web"), 1)];
        Verified::of(&node, of_former(&node, former, &[], demands).collect(), demands, NOW)
    };
    let (any, isolated) = (with(None), with(Some(State::Isolated)));
    assert_eq!(any.failure(), None);
    says(
        &text(&any),
        &[
            "NOTE  team-a/web: released",
            "(2m ago)",
            "recreate the pod: kubectl delete pod -n team-a web",
            "0 of 1 VM verified in the kernel. 1 released.\n",
        ],
    );
    assert_eq!(isolated.failure().as_deref(), Some("failed: 1 VM"));
    says(
        &text(&isolated),
        &[
            "FAIL  team-a/web: isolated is required: released",
            "0 of 1 VM verified in the kernel. Failed: 1 VM. 1 released.\n",
        ],
    );
}
