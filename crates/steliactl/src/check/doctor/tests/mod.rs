mod kubelet;
mod services;
mod state_file;
mod vms;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use stelia_api::{Reason, ReasonCode};
use stelia_cpus::testing::Shape;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::{Locality, NodeMemory};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_koordinator::report::numa::KernelNumaNode;
use stelia_kubelet::config::{ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::Schema;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_node_plan::machine;

use super::*;
use crate::shared::files::{KubeletFiles, UnusableState};
use crate::shared::output::{Form, OutputOptions};
use crate::tests::fixtures::{block_on, columns, folder, holds, says, write};

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

type Change = fn(&mut Observed);

fn shape(nodes: u32, cores: u32, threads: u32) -> Topology {
    let shape = Shape {
        nodes,
        cores,
        threads,
        interleaved: true,
    };
    shape.topology()
}

/// A node on which every check passes: 2 NUMA nodes, 4 cores, 8 CPUs, siblings 4 apart.
fn fit() -> Observed {
    let texts = [
        (CONTROLLER_NAMES, "cpuset cpu io memory pids\n"),
        (RELEASE, "6.12.9+deb13-amd64\n"),
        (KVM, ""),
        (SOCKET, ""),
        (TRACING, ""),
    ];
    let cpus = |text: &str| text.parse().unwrap();
    let kubelet = KubeletConfig {
        cpu_manager_policy: "static".to_owned(),
        cpu_manager_policy_options: [("full-pcpus-only".to_owned(), "true".to_owned())].into(),
        reserved_system_cpus: cpus("0,4"),
        ..KubeletConfig::default()
    };
    let state = CpuManagerState {
        schema: Schema::V2,
        policy: "static".to_owned(),
        default_cpus: cpus("0,2-4,6-7"),
        entries: [(PodUid::parse(POD).unwrap(), [("vm".to_owned(), cpus("1,5"))].into())].into(),
        ..CpuManagerState::absent()
    };
    let topology = shape(2, 2, 2);
    Observed {
        texts: texts.map(|(file, text)| (file, text.to_owned())).into(),
        has_exclusive: Some(true),
        systemd: Some(257),
        machine: Some(machine(&topology, &[].into(), &numa_nodes(2))),
        topology: Ok(topology),
        kubelet: Ok(kubelet),
        stopped: None,
        home: Ok("/var/lib/kubelet".into()),
        allocator: AllocatorPolicies::default(),
        files: KubeletFiles {
            cpus: Ok(Some(state)),
            ..KubeletFiles::read(Path::new("/nonexistent"), Path::new("/nonexistent"))
        },
        misplaced: None,
        cpu_drivers: Vec::new(),
        has_plugins: Ok(false),
        low_quotas: Ok(Vec::new()),
        units: [].into(),
        described: Ok(calm()),
    }
}

/// What a daemon says that steers interrupts, keeps a ledger and has no VM.
fn calm() -> Description {
    let mut told = Description::default();
    Arc::make_mut(&mut told.node.quiet).steering = "shared".to_owned();
    Arc::make_mut(&mut told.node.ledger).enabled = true;
    told
}

/// What the daemon says, to be changed.
fn node(seen: &mut Observed) -> &mut stelia_model::Node {
    &mut seen.described.as_mut().unwrap().node
}

fn numa_nodes(count: u32) -> BTreeMap<u32, KernelNumaNode> {
    (0..count).map(|id| (id, KernelNumaNode::default())).collect()
}

/// What the check of that name finds.
fn named(seen: &Observed, name: &str) -> Diagnosis {
    examine(seen).into_iter().find(|one| one.check == name).unwrap()
}

/// Its outcome, and what it found.
fn said(seen: &Observed, name: &str) -> (Outcome, String) {
    let one = named(seen, name);
    (one.outcome, one.fact)
}

/// What does not pass, and is not skipped.
fn wrong(seen: &Observed) -> Vec<(&'static str, Outcome)> {
    let wrong = examine(seen).into_iter().filter(|one| one.outcome < Outcome::Pass);
    wrong.map(|one| (one.check, one.outcome)).collect()
}

/// That this is all that does not pass, and has a fix.
#[track_caller]
fn assert_only_problem(seen: &Observed, name: &str, outcome: Outcome) -> Diagnosis {
    assert_eq!(wrong(seen), [(name, outcome)]);
    let one = named(seen, name);
    assert!(!one.fix.is_empty(), "{one:?}");
    one
}

fn told(seen: &mut Observed) -> &mut KubeletConfig {
    seen.kubelet.as_mut().unwrap()
}

/// kubelet's CPU manager state, to be changed.
fn state(seen: &mut Observed) -> &mut CpuManagerState {
    seen.files.cpus.as_mut().unwrap().as_mut().unwrap()
}

fn has(seen: &mut Observed, file: &'static str, text: &str) {
    seen.texts.insert(file, text.to_owned());
}

fn absent(seen: &mut Observed, file: &str) {
    seen.texts.remove(file);
}

/// The daemon does not run.
fn alone(seen: &mut Observed) {
    seen.described = Err(Failure::NotRunning);
}

/// The daemon says that this is wrong on the node.
fn problem(seen: &mut Observed, code: ReasonCode) {
    let reason = Reason::of_node(code, "something");
    seen.described.as_mut().unwrap().problems.push(reason);
}

fn unusable(text: &str, is_damaged: bool) -> UnusableState {
    UnusableState {
        text: text.to_owned(),
        is_damaged,
    }
}

/// steliad chooses the CPUs.
fn ours(seen: &mut Observed) {
    seen.allocator.source = CpuSource::Steliad;
    seen.allocator.reserved = "0,4".parse().unwrap();
}

/// The configuration in kubelet's file, which has to have the kind and version.
fn parsed(text: &str) -> Result<KubeletConfig, ConfigError> {
    let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}\n");
    let file = config::File::parse(&text, "k.yaml")?;
    KubeletConfig::new(Some(file), Vec::new(), Default::default())
}

#[test]
fn a_ready_node_passes_every_check() {
    for one in examine(&fit()) {
        assert!(one.outcome == Outcome::Pass && one.fix.is_empty(), "{one:?}");
    }
}

#[test]
fn where_steliad_chooses_no_kubelet_is_needed() {
    let mut node = fit();
    ours(&mut node);
    node.kubelet = Err(ConfigError::NotRunning);
    node.files.cpus = Ok(None);
    assert_eq!(wrong(&node), []);
    alone(&mut node);
    assert_eq!(wrong(&node), [("daemon", Outcome::Warn)]);
}

#[rstest]
#[case::no_cgroup2("cgroup", Outcome::Fail, |f: &mut Observed| absent(f, CONTROLLER_NAMES))]
#[case::two_homes("kubelet-home", Outcome::Fail, |f: &mut Observed| f.home = Err("which is not clear".into()))]
#[case::cgroup_root("kubelet-cgroups", Outcome::Fail, |f: &mut Observed| told(f).cgroup_root = "/k8s-infra".into())]
#[case::no_pods_cgroups("kubelet-cgroups", Outcome::Fail, |f: &mut Observed| {
    told(f).cgroups_per_qos = false;
    told(f).enforce_node_allocatable = Vec::new();
})]
#[case::no_cpuset("cgroup", Outcome::Fail, |f: &mut Observed| has(f, CONTROLLER_NAMES, "cpu"))]
#[case::old_kernel("kernel", Outcome::Warn, |f: &mut Observed| f.has_exclusive = Some(false))]
#[case::old_systemd("systemd", Outcome::Fail, |f: &mut Observed| f.systemd = Some(249))]
#[case::a_misspelt_key("kubelet", Outcome::Warn, |f: &mut Observed| told(f).warnings = parsed("reservedCpus: 0").unwrap().warnings)]
#[case::a_gate_of_another_version("kubelet", Outcome::Warn, |f: &mut Observed| { told(f).feature_gates.insert("CPUManager".into(), true); })]
#[case::an_unreadable_configuration("kubelet", Outcome::Fail, |f: &mut Observed| f.kubelet = Err(parsed("reservedSystemCPUs: 0").unwrap_err()))]
#[case::no_kubelet("kubelet", Outcome::Fail, |f: &mut Observed| f.kubelet = Err(ConfigError::NotRunning))]
#[case::both_choose("kubelet-policy", Outcome::Warn, |f: &mut Observed| ours(f))]
#[case::nothing_reserved("kubelet-policy", Outcome::Warn, |f: &mut Observed| { ours(f); f.allocator.reserved = CpuSet::new(); f.kubelet = Err(ConfigError::NotRunning) })]
#[case::policy_none("kubelet-policy", Outcome::Fail, |f: &mut Observed| { f.kubelet = Ok(KubeletConfig::default()); state(f).policy = "none".into() })]
#[case::siblings_apart("cpus", Outcome::Warn, |f: &mut Observed| told(f).cpu_manager_policy_options.clear())]
#[case::isolated_at_boot("isolcpus", Outcome::Warn, |f: &mut Observed| has(f, COMMAND_LINE, "isolcpus=1,5"))]
#[case::shared_cpus_isolated_at_boot("isolcpus", Outcome::Fail, |f: &mut Observed| has(f, COMMAND_LINE, "isolcpus=2,6"))]
#[case::two_give_cpus("dra-driver", Outcome::Warn, |f: &mut Observed| f.cpu_drivers.push("dra.cpu".into()))]
#[case::no_kvm("kvm", Outcome::Warn, |f: &mut Observed| absent(f, KVM))]
#[case::a_container_outside_its_pod("kubelet-cgroups", Outcome::Fail, |f: &mut Observed| f.misplaced = Some((3, ProcessPlace::OutsideOfPods("/k8s.io/ab".into()))))]
#[case::a_container_of_docker("kubelet-cgroups", Outcome::Fail, |f: &mut Observed| f.misplaced = Some((3, ProcessPlace::Docker("docker-ab.scope".into()))))]
#[case::no_daemon("daemon", Outcome::Warn, |f: &mut Observed| alone(f))]
#[case::no_socket("runner-socket", Outcome::Fail, |f: &mut Observed| absent(f, SOCKET))]
#[case::isolcpus_in_our_pool("isolcpus", Outcome::Fail, |f: &mut Observed| { ours(f); f.kubelet = Err(ConfigError::NotRunning); has(f, COMMAND_LINE, "isolcpus=2") })]
#[case::an_unusable_file("kubelet-state", Outcome::Fail, |f: &mut Observed| problem(f, ReasonCode::KubeletUnusable))]
#[case::keys_of_a_newer_kubelet("kubelet-state", Outcome::Warn, |f: &mut Observed| problem(f, ReasonCode::KubeletUnknownKeys))]
#[case::a_silent_systemd("systemd-silent", Outcome::Fail, |f: &mut Observed| problem(f, ReasonCode::SystemdSilent))]
#[case::nothing_published("not-published", Outcome::Warn, |f: &mut Observed| problem(f, ReasonCode::NotPublished))]
fn what_is_wrong_is_told_with_a_fix_and_nothing_else_is(
    #[case] name: &str,
    #[case] outcome: Outcome,
    #[case] change: Change,
) {
    let mut seen = fit();
    change(&mut seen);
    assert_only_problem(&seen, name, outcome);
}

/// Whether the daemon or the command read it: kubelet's start, which the file prevents too, is not a second failure.
#[test]
fn a_damaged_file_of_kubelets_is_one_failure() {
    let mut seen = fit();
    seen.files.cpus = Err(unusable("cpu_manager_state: checksum mismatch", true));
    problem(&mut seen, ReasonCode::KubeletUnusable);
    assert_only_problem(&seen, STATE, Outcome::Fail);
    assert_eq!(named(&seen, "kubelet-start").needs, Some(STATE));
    alone(&mut seen);
    assert_eq!(wrong(&seen), [(STATE, Outcome::Fail), (DAEMON, Outcome::Warn)]);
    says(&named(&seen, STATE).fix, &["drain the node"]);
    // What the file is found unusable for is not a second failure either.
    let mut seen = fit();
    problem(&mut seen, ReasonCode::KubeletUnusable);
    seen.home = Err("which is not clear".into());
    assert_eq!(wrong(&seen), [("kubelet-home", Outcome::Fail)]);
}

#[test]
fn without_a_daemon_the_file_is_judged_as_the_daemon_would() {
    let outcome = |change: Change| {
        let mut seen = fit();
        alone(&mut seen);
        change(&mut seen);
        named(&seen, STATE).outcome
    };
    assert_eq!(outcome(|_| ()), Outcome::Pass);
    assert_eq!(
        outcome(|f| state(f).default_cpus = "0-7".parse().unwrap()),
        Outcome::Fail
    );
    assert_eq!(outcome(|f| f.files.cpus = Ok(None)), Outcome::Fail);
    // It is written when kubelet starts.
    let missing: Change = |f| (f.files.cpus, f.kubelet) = (Ok(None), Err(ConfigError::NotRunning));
    assert_eq!(outcome(missing), Outcome::Skip);
}

#[test]
fn the_cgroup_root_of_a_kubelet_that_does_not_run_is_told_too() {
    let mut seen = fit();
    let stopped = KubeletConfig {
        cgroup_root: "/k8s-infra".into(),
        ..KubeletConfig::default()
    };
    seen.kubelet = Err(ConfigError::NotRunning);
    seen.stopped = Some(Ok(stopped));
    let (outcome, found) = said(&seen, "kubelet-cgroups");
    assert_eq!(outcome, Outcome::Fail);
    says(&found, &["/k8s-infra"]);
}

/// The whole answer.
fn screen(seen: &Observed, verbose: bool) -> String {
    let style = TextStyle {
        wide: verbose,
        ..columns(80)
    };
    Examined(examine(seen)).text(style)
}

#[test]
fn what_does_not_pass_is_told_and_each_cause_once() {
    let mut seen = fit();
    seen.kubelet = Err(ConfigError::NotRunning);
    seen.files.cpus = Ok(None);
    absent(&mut seen, SOCKET);
    alone(&mut seen);
    insta::assert_snapshot!(screen(&seen, false));
    let verbose = screen(&seen, true);
    says(&verbose, &["PASS  cgroup: ", "SKIP  kubelet-start: "]);
    assert!(verbose.lines().count() > CHECKS.len(), "{verbose}");
    assert!(screen(&fit(), false).ends_with("This node is ready for VMs.\n"));
}

#[test]
fn what_the_daemon_says_has_its_effect_and_fix() {
    let mut seen = fit();
    let told = seen.described.as_mut().unwrap();
    let why = "/var/lib/kubelet/cpu_manager_state: checksum mismatch (stored 1, computed 14413152)";
    told.problems.push(Reason::of_node(ReasonCode::KubeletUnusable, why));
    told.problems
        .push(Reason::of_node(ReasonCode::NotWatched, "inotify: no space left"));
    Arc::make_mut(&mut told.node.ledger).enabled = false;
    insta::assert_snapshot!(screen(&seen, false));
}

#[test]
fn an_empty_root_is_a_node_that_is_not_ready_and_json_has_all_checks() {
    let root = tempfile::tempdir().unwrap();
    let print = |form| {
        let style = TextStyle::from(true);
        let told = Err(Failure::NotRunning);
        let examined = block_on(gather(root.path(), told));
        match (OutputOptions { form, style }).print(&examined) {
            Err(Failure::Partial { printed, reason, .. }) => (printed, reason),
            other => panic!("{other:?}"),
        }
    };
    let (printed, reason) = print(Form::Text);
    assert!(printed.starts_with("FAIL  cgroup: "), "{printed}");
    assert!(!printed.contains("ready for VMs"), "{printed}");
    says(&reason, &["not ready for VMs: cgroup, ", "runner-socket"]);
    let json: Value = serde_json::from_str(&print(Form::Json).0).unwrap();
    assert_eq!(json.as_array().unwrap().len(), CHECKS.len());
    for needs in json.as_array().unwrap().iter().filter_map(|one| one["needs"].as_str()) {
        assert!(CHECKS.iter().any(|(name, _)| *name == needs), "{needs}");
    }
    holds(
        &json,
        json!({ "/0/check": "cgroup", "/0/outcome": "fail", "/0/needs": null, "/7/outcome": "skip", "/7/needs": "kubelet" }),
    );
}

#[test]
fn a_kernel_of_which_nothing_is_known_is_not_called_old() {
    let mut seen = fit();
    absent(&mut seen, RELEASE);
    seen.has_exclusive = None;
    assert_eq!(named(&seen, "kernel").outcome, Outcome::Note);
}

/// What is observed of a node below this folder, without a daemon.
fn read(root: &Path) -> Observed {
    Observed::read(root, Err(Failure::NotRunning))
}

#[test]
fn the_files_of_a_host_are_read_and_a_process_in_the_wrong_place_is_found() {
    let process = |begins: &str, end: &str| format!("0::{begins}{}{end}\n", "ab".repeat(32));
    let root = folder(&[
        (CONTROLLER_NAMES, "cpuset cpu\n"),
        ("sys/fs/cgroup/system.slice/cpuset.cpus.partition", "member\n"),
        ("usr/lib64/systemd/libsystemd-shared-249.9-1.so", ""),
        (RELEASE, "6.12.9+deb13-amd64\n"),
        (COMMAND_LINE, "quiet isolcpus=2\n"),
        ("proc/3/cgroup", &process("/kubepods.slice/docker-", ".scope")),
        ("proc/4/cgroup", &process("/k8s.io/", "")),
        (KVM, ""),
        (SOCKET, ""),
    ]);
    let seen = read(root.path());
    let texts = [CONTROLLER_NAMES, RELEASE, COMMAND_LINE, NUMA_BALANCING].map(|file| seen.text(file));
    assert_eq!(texts, ["cpuset cpu", "6.12.9+deb13-amd64", "quiet isolcpus=2", ""]);
    assert_eq!((seen.systemd, seen.has_exclusive), (Some(249), Some(false)));
    assert_eq!([KVM, SOCKET, TRACING].map(|file| seen.has(file)), [true, true, false]);
    assert!(matches!(seen.misplaced, Some((3, ProcessPlace::Docker(_)))), "{seen:?}");
    fs::remove_file(root.path().join("proc/3/cgroup")).unwrap();
    let place = read(root.path()).misplaced;
    assert!(matches!(place, Some((4, ProcessPlace::OutsideOfPods(_)))), "{place:?}");
}

#[test]
fn a_kubelet_with_another_root_directory_than_the_one_that_is_read_is_seen() {
    let root = folder(&[
        ("proc/70/comm", "kubelet\n"),
        ("proc/70/status", "Uid:\t0\t0\t0\t0\n"),
        ("proc/70/cgroup", "0::/system.slice/kubelet.service\n"),
        ("proc/70/cmdline", "kubelet\0--root-dir=/data/kubelet\0"),
        ("data/kubelet/cpu_manager_state", "{}"),
    ]);
    let root = root.path();
    let seen = read(root);
    says(&seen.home.unwrap_err(), &["/var/lib/kubelet is read", "/data/kubelet"]);
    write(root, "etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\"");
    assert_eq!(read(root).home, Ok("/data/kubelet".into()));
    // A link is accepted like the directory itself.
    write(root, "etc/stelia/steliad.toml", "");
    fs::create_dir_all(root.join("var/lib")).unwrap();
    std::os::unix::fs::symlink(root.join("data/kubelet"), root.join("var/lib/kubelet")).unwrap();
    assert_eq!(read(root).home, Ok("/var/lib/kubelet".into()));
}

#[test]
fn the_last_isolcpus_counts_and_its_flags_are_no_cpus() {
    for (value, outcome) in [
        ("2-3", Outcome::Fail),
        ("domain,2", Outcome::Fail),
        ("nohz,domain,1,5", Outcome::Warn),
        ("managed_irq,2", Outcome::Pass),
        ("nohz,managed_irq,2", Outcome::Pass),
    ] {
        let mut seen = fit();
        has(&mut seen, COMMAND_LINE, &format!("quiet isolcpus={value}"));
        assert_eq!(named(&seen, "isolcpus").outcome, outcome, "{value}");
    }
}
