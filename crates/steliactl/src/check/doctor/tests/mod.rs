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
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_kernel::locality::{Device, Locality, NodeMemory};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_koordinator::report::numa::{KernelNumaNode, Pages};
use stelia_kubelet::config::{ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::Schema;
use stelia_kubelet::devices::DeviceEntry;
use stelia_kubelet::process_place::ProcessPlace;
use stelia_kubelet::{CpuManagerState, DeviceManagerState, PodUid, home};

use super::daemon::{Published, has_plugin_folder};
use super::facts::KubeletFiles;
use super::vms::CloudHypervisors;
use super::*;
use crate::shared::daemon::Failure;
use crate::shared::files::UnusableState;
use crate::shared::output::{Form, OutputOptions};
use crate::tests::fixtures::{block_on, columns, folder, holds, never_says, says, write};

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

type Change = fn(&mut Facts);

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
fn fit() -> Facts {
    let cpus = |text: &str| text.parse().unwrap();
    let process = home::Process {
        pid: 812,
        name: "kubelet".into(),
        host: home::Host::Kubelet,
        root: Some("/var/lib/kubelet".into()),
    };
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
    Facts {
        kernel: "6.12.9".to_owned(),
        systemd: Some(257),
        controllers: Some(["cpuset", "cpu", "io", "memory", "pids"].map(str::to_owned).to_vec()),
        unfit: None,
        exclusive: Some(true),
        topology: Ok(shape(2, 2, 2)),
        kubelet: Ok(kubelet),
        process: Ok(process),
        home: Ok("/var/lib/kubelet".into()),
        is_kubelets_home: true,
        allocator: AllocatorPolicies::default(),
        files: KubeletFiles {
            stopped: None,
            cpus: Ok(Some(state.clone())),
            memory: Ok(None),
            pods: Vec::new(),
            devices: Ok(None),
            numa: Ok(numa_nodes(2)),
            caches: [].into(),
        },
        state: Ok(state),
        dra: [].into(),
        quotas: Ok(Vec::new()),
        sched_ext: None,
        numa_balancing: false,
        hypervisors: CloudHypervisors::default(),
        nohz_full: cpus(""),
        offline: cpus(""),
        irqbalance: false,
        socket: true,
        daemon: true,
        misplaced: None,
        kvm: true,
        virtualization: Some(true),
        cmdline: String::new(),
        described: Some(calm()),
        published: Published::read(Path::new("/nonexistent")),
        has_plugin_folder: Ok(false),
        plugin: false,
        plugin_status: None,
        tracing: true,
        noise: None,
    }
}

/// What a daemon says that steers interrupts, keeps a ledger and has no VM.
fn calm() -> Description {
    let mut told = Description::default();
    let quiet = Arc::make_mut(&mut told.node.quiet);
    (quiet.steering, quiet.answered_us) = ("shared".to_owned(), 1);
    let ledger = Arc::make_mut(&mut told.node.ledger);
    (ledger.enabled, ledger.key) = (true, "q1w2".to_owned());
    told
}

/// What the daemon says, to be changed.
fn node(facts: &mut Facts) -> &mut stelia_model::Node {
    &mut facts.described.as_mut().unwrap().node
}

fn numa_nodes(count: u32) -> BTreeMap<u32, KernelNumaNode> {
    (0..count).map(|id| (id, KernelNumaNode::default())).collect()
}

/// What the check of that name finds.
fn named(facts: &Facts, name: &str) -> Finding {
    let mut checks = checks(facts).into_iter();
    checks.find(|check| check.check == name).unwrap().finding
}

/// Its outcome, and what it found.
fn said(facts: &Facts, name: &str) -> (Outcome, String) {
    let check = named(facts, name);
    (check.outcome, check.fact)
}

/// Checks that all checks but this one are passed, and that this one has the outcome and has a fix. Returns it.
fn assert_only_problem(facts: &Facts, name: &str, outcome: Outcome) -> Check {
    let is_passed = |check: &Check| matches!(check.finding.outcome, Outcome::Pass | Outcome::Skip);
    let wrong = checks(facts).into_iter().filter(|check| !is_passed(check));
    let [check] = <[Check; 1]>::try_from(wrong.collect::<Vec<_>>()).expect("one check that is not passed");
    assert_eq!((check.check, check.finding.outcome), (name, outcome), "{check:?}");
    assert!(!check.finding.fix.is_empty(), "{check:?}");
    check
}

fn told(facts: &mut Facts) -> &mut KubeletConfig {
    facts.kubelet.as_mut().unwrap()
}

/// kubelet's CPU manager state, as kubelet would read it when it starts.
fn cpu_file(facts: &mut Facts) -> &mut CpuManagerState {
    facts.files.cpus.as_mut().unwrap().as_mut().unwrap()
}

fn unusable(text: &str, is_damaged: bool) -> UnusableState {
    UnusableState {
        text: text.to_owned(),
        is_damaged,
    }
}

/// A VM with CPUs of these NUMA nodes, and so much memory on one node.
fn has_vm(facts: &mut Facts, nodes: &[u32], on: u32, bytes: u64) {
    let memory = NodeMemory {
        anon: bytes,
        ..NodeMemory::default()
    };
    let vm = Locality {
        nodes: nodes.iter().copied().collect(),
        memory: [(on, memory)].into(),
        ..Locality::default()
    };
    let described = facts.described.as_mut().unwrap();
    described.locality.instances.insert(POD.to_owned(), vm);
}

/// steliad chooses the CPUs.
fn ours(facts: &mut Facts) {
    facts.allocator.source = CpuSource::Steliad;
    facts.allocator.reserved = "0,4".parse().unwrap();
}

/// The configuration in kubelet's file, which has to have the kind and version.
fn parsed(text: &str) -> Result<KubeletConfig, ConfigError> {
    let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}\n");
    let file = stelia_kubelet::config::File::parse(&text, "k.yaml")?;
    KubeletConfig::new(Some(file), Vec::new(), Default::default())
}

#[test]
fn a_ready_node_passes_every_check() {
    for check in checks(&fit()) {
        let finding = &check.finding;
        assert!(finding.outcome == Outcome::Pass && finding.fix.is_empty(), "{check:?}");
    }
}

#[test]
fn where_steliad_chooses_no_kubelet_is_needed() {
    let mut alone = fit();
    ours(&mut alone);
    alone.process = Err("no kubelet runs".into());
    alone.kubelet = Err(ConfigError::NotRunning);
    alone.state = Ok(CpuManagerState::absent());
    for check in checks(&alone) {
        assert!(
            matches!(check.finding.outcome, Outcome::Pass | Outcome::Skip),
            "{check:?}"
        );
    }
}

#[rstest]
#[case::no_cgroup2("cgroup", Outcome::Fail, |f: &mut Facts| f.controllers = None)]
#[case::hybrid("cgroup", Outcome::Fail, |f: &mut Facts| f.unfit = Some("a hybrid".into()))]
#[case::two_homes("kubelet-home", Outcome::Fail, |f: &mut Facts| f.home = Err("which is not clear".into()))]
#[case::cgroup_root("kubelet-cgroups", Outcome::Fail, |f: &mut Facts| told(f).cgroup_root = "/k8s-infra".into())]
#[case::no_pods_cgroups("kubelet-cgroups", Outcome::Fail, |f: &mut Facts| {
    told(f).cgroups_per_qos = false;
    told(f).enforce_node_allocatable = Vec::new();
})]
#[case::another_home("kubelet-home", Outcome::Fail, |f: &mut Facts| f.is_kubelets_home = false)]
#[case::no_cpuset("cgroup", Outcome::Fail, |f: &mut Facts| f.controllers = Some(vec!["cpu".into()]))]
#[case::old_kernel("kernel", Outcome::Warn, |f: &mut Facts| { f.kernel = "6.1.0-30".into(); f.exclusive = Some(false) })]
#[case::old_kernel_without_cgroups("kernel", Outcome::Warn, |f: &mut Facts| { f.kernel = "6.6.1".into(); f.exclusive = None })]
#[case::an_old_kernel_without_a_release("kernel", Outcome::Warn, |f: &mut Facts| { f.kernel = String::new(); f.exclusive = Some(false) })]
#[case::old_systemd("systemd", Outcome::Fail, |f: &mut Facts| f.systemd = Some(249))]
#[case::a_misspelt_key("kubelet-config", Outcome::Warn, |f: &mut Facts| told(f).warnings = parsed("reservedCpus: 0").unwrap().warnings)]
#[case::a_gate_of_another_version("kubelet-config", Outcome::Warn, |f: &mut Facts| { told(f).feature_gates.insert("CPUManager".into(), true); })]
#[case::cpus_twice("kubelet-state", Outcome::Fail, |f: &mut Facts| f.state.as_mut().unwrap().default_cpus = "0-7".parse().unwrap())]
#[case::keys_of_a_newer_kubelet("kubelet-state", Outcome::Warn, |f: &mut Facts| f.state.as_mut().unwrap().unknown_keys = vec!["slices".into()])]
#[case::an_unreadable_configuration("kubelet", Outcome::Fail, |f: &mut Facts| f.kubelet = Err(parsed("reservedSystemCPUs: 0").unwrap_err()))]
#[case::no_kubelet("kubelet", Outcome::Fail, |f: &mut Facts| f.kubelet = Err(ConfigError::NotRunning))]
#[case::both_choose("kubelet-policy", Outcome::Warn, |f: &mut Facts| ours(f))]
#[case::nothing_reserved("kubelet-policy", Outcome::Warn, |f: &mut Facts| { ours(f); f.allocator.reserved = CpuSet::new(); f.kubelet = Err(ConfigError::NotRunning) })]
#[case::isolcpus_in_our_pool("isolcpus", Outcome::Fail, |f: &mut Facts| { ours(f); f.kubelet = Err(ConfigError::NotRunning); f.cmdline = "isolcpus=2".into() })]
#[case::policy_none("kubelet-policy", Outcome::Fail, |f: &mut Facts| { f.kubelet = Ok(KubeletConfig::default()); f.files.cpus = Ok(None) })]
#[case::siblings_on_two_numa_nodes("cpus", Outcome::Warn, |f: &mut Facts| {
    f.topology.as_mut().unwrap().cpus.get_mut(&5).unwrap().node = 1;
})]
#[case::a_state_file_of_another_schema("kubelet-state", Outcome::Fail, |f: &mut Facts| { f.state = Err("schema".into()); f.files.cpus = Err(unusable("schema", false)) })]
#[case::siblings_apart("cpus", Outcome::Warn, |f: &mut Facts| told(f).cpu_manager_policy_options.clear())]
#[case::a_split_core("whole-cores", Outcome::Warn, |f: &mut Facts| {
    let state = f.state.as_mut().unwrap();
    state.default_cpus = "0,3-7".parse().unwrap();
    state.entries.values_mut().flat_map(|pod| pod.values_mut()).for_each(|cpus| *cpus = "1-2".parse().unwrap());
})]
#[case::isolated_at_boot("isolcpus", Outcome::Warn, |f: &mut Facts| f.cmdline = "isolcpus=1,5".into())]
#[case::shared_cpus_isolated_at_boot("isolcpus", Outcome::Fail, |f: &mut Facts| f.cmdline = "isolcpus=2,6".into())]
#[case::a_pods_cpu_offline("offline", Outcome::Fail, |f: &mut Facts| f.offline = "5".parse().unwrap())]
#[case::memory_away("locality", Outcome::Warn, |f: &mut Facts| has_vm(f, &[0], 1, 1 << 30))]
#[case::two_give_cpus("dra-driver", Outcome::Warn, |f: &mut Facts| { f.dra.insert("dra.cpu".into(), "/x".into()); })]
#[case::sched_ext("sched-ext", Outcome::Warn, |f: &mut Facts| f.sched_ext = Some("scx_rusty".into()))]
#[case::half_a_core("core-scheduling", Outcome::Warn, |f: &mut Facts| { f.hypervisors.vcpus.insert(7, "2".parse().unwrap()); })]
#[case::no_kvm("kvm", Outcome::Warn, |f: &mut Facts| f.kvm = false)]
#[case::no_virtualization("kvm", Outcome::Warn, |f: &mut Facts| { f.kvm = false; f.virtualization = Some(false) })]
#[case::no_exception_level_2("kvm", Outcome::Warn, |f: &mut Facts| { f.kvm = false; f.virtualization = None })]
#[case::a_container_outside_its_pod("kubelet-cgroups", Outcome::Fail, |f: &mut Facts| f.misplaced = Some((3, ProcessPlace::OutsideOfPods("a".into()))))]
#[case::a_container_of_docker("kubelet-cgroups", Outcome::Fail, |f: &mut Facts| f.misplaced = Some((3, ProcessPlace::Docker("a".into()))))]
#[case::no_daemon("daemon", Outcome::Warn, |f: &mut Facts| (f.daemon, f.described) = (false, None))]
#[case::a_silent_daemon("daemon", Outcome::Warn, |f: &mut Facts| f.described = None)]
#[case::no_socket("runner-socket", Outcome::Fail, |f: &mut Facts| f.socket = false)]
fn what_is_wrong_is_told_with_a_fix_and_nothing_else_is(
    #[case] name: &str,
    #[case] outcome: Outcome,
    #[case] change: Change,
) {
    let mut facts = fit();
    change(&mut facts);
    assert_only_problem(&facts, name, outcome);
}

#[test]
fn the_cgroup_root_of_a_kubelet_that_does_not_run_is_told_too() {
    let mut facts = fit();
    let stopped = KubeletConfig {
        cgroup_root: "/k8s-infra".into(),
        ..KubeletConfig::default()
    };
    facts.kubelet = Err(ConfigError::NotRunning);
    facts.files.stopped = Some(("/var/lib/kubelet/config.yaml", Ok(stopped)));
    let (outcome, found) = said(&facts, "kubelet-cgroups");
    assert_eq!(outcome, Outcome::Fail);
    says(&found, &["/k8s-infra"]);
}

/// The whole answer.
fn screen(facts: &Facts, verbose: bool) -> String {
    let checks = checks(facts);
    Examined { checks, verbose }.text(columns(80))
}

#[test]
fn what_does_not_pass_is_told_and_each_cause_once() {
    let mut facts = fit();
    facts.kubelet = Err(ConfigError::NotRunning);
    facts.state = Err("/var/lib/kubelet/cpu_manager_state: No such file".into());
    facts.files.cpus = Ok(None);
    facts.quotas = Err("no state".into());
    facts.socket = false;
    (facts.daemon, facts.described) = (false, None);
    insta::assert_snapshot!(screen(&facts, false));
    let verbose = screen(&facts, true);
    says(&verbose, &["PASS  cgroup ", "SKIP  hint-merge "]);
    assert!(verbose.lines().count() > CHECKS.len(), "{verbose}");
    assert!(screen(&fit(), false).ends_with("This node is ready for VMs.\n"));
}

#[test]
fn what_several_vms_have_in_common_is_told_once() {
    let mut facts = fit();
    has_vm(&mut facts, &[0], 1, 1 << 30);
    let vms = &mut facts.described.as_mut().unwrap().locality.instances;
    let same = vms[POD].clone();
    vms.insert("another".to_owned(), same);
    let text = screen(&facts, false);
    assert_eq!(text.matches("WARN  locality").count(), 2, "{text}");
    assert_eq!(text.matches("fix: ").count(), 1, "{text}");
}

#[test]
fn an_empty_root_is_a_node_that_is_not_ready_and_json_has_all_checks() {
    let root = tempfile::tempdir().unwrap();
    let print = |form| {
        let style = TextStyle::from(true);
        let examined = block_on(gather(root.path(), None, false));
        match (OutputOptions { form, style }).print(&examined) {
            Err(Failure::Partial { printed, reason }) => (printed, reason),
            other => panic!("{other:?}"),
        }
    };
    let (printed, reason) = print(Form::Text);
    assert!(
        printed.starts_with("steliad does not answer. Running VMs stay isolated.\n\nFAIL  "),
        "{printed}"
    );
    says(&printed, &["not ready for VMs"]);
    says(&reason, &["cgroup, ", "runner-socket"]);
    let json: Value = serde_json::from_str(&print(Form::Json).0).unwrap();
    assert_eq!(json.as_array().unwrap().len(), CHECKS.len() + 1);
    holds(
        &json,
        json!({ "/0/check": "cgroup", "/0/outcome": "fail", "/0/needs": null, "/6/outcome": "skip", "/6/needs": "kubelet" }),
    );
}

#[test]
fn a_kernel_of_which_nothing_is_known_is_not_called_old() {
    let mut facts = fit();
    (facts.kernel, facts.exclusive) = (String::new(), None);
    assert_eq!(named(&facts, "kernel").outcome, Outcome::Note);
}

/// arm64 says nothing of virtualization among the features of its CPUs (hwloc, nvidia-dgx-gb10), and has no module to load.
#[test]
fn without_dev_kvm_the_fix_is_that_of_the_processor() {
    for (cpuinfo, fix) in [
        ("flags\t\t: fpu vmx sse\n", "modprobe kvm_intel or kvm_amd"),
        ("flags\t\t: fpu sse\n", "switch on VT-x or AMD-V"),
        ("Features\t: fp asimd evtstrm aes\n", "exception level 2"),
    ] {
        let root = folder(&[("proc/cpuinfo", cpuinfo)]);
        says(&named(&Facts::read(root.path()), "kvm").fix, &[fix]);
    }
}

#[test]
fn facts_are_read_from_the_nodes_files() {
    let cgroup = "sys/fs/cgroup/system.slice";
    let root = folder(&[
        ("proc/sys/kernel/osrelease", "6.12.9+deb13-amd64\n"),
        ("proc/cmdline", "quiet isolcpus=domain,managed_irq,2-3,6 nohz_full=3\n"),
        ("proc/77/comm", "irqbalance\n"),
        ("proc/78/comm", "steliad\n"),
        ("proc/cpuinfo", "model name\t: x\nflags\t\t: fpu svm sse\n"),
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-257.9-1.so", ""),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
        (&format!("{cgroup}/cpuset.cpus.partition"), "member\n"),
        (&format!("{cgroup}/cpuset.cpus.exclusive"), "\n"),
        ("sys/devices/system/cpu/nohz_full", "  (null)\n"),
        ("sys/devices/system/cpu/offline", "7\n"),
    ]);
    let facts = Facts::read(root.path());
    assert_eq!(facts.kernel, "6.12.9+deb13-amd64");
    assert_eq!((facts.systemd, facts.exclusive), (Some(257), Some(true)));
    assert!(facts.irqbalance && facts.daemon && !facts.kvm);
    assert_eq!(facts.virtualization, Some(true));
    let lists = [facts.nohz_full, facts.offline].map(|cpus| cpus.to_string());
    assert_eq!(lists, ["", "7"]);
    says(&facts.state.unwrap_err(), &["cpu_manager_state"]);
}

#[test]
fn a_kubelet_with_another_root_directory_than_the_one_that_is_read_is_seen() {
    let root = folder(&[
        ("proc/70/comm", "kubelet\n"),
        ("proc/70/status", "Uid:\t0\t0\t0\t0\n"),
        ("proc/70/cgroup", "0::/system.slice/kubelet.service\n"),
        ("proc/70/cmdline", "kubelet\0--root-dir=/data/kubelet\0"),
        ("proc/self/cgroup", "4:cpuset:/\n0::/\n"),
        ("data/kubelet/cpu_manager_state", "{}"),
    ]);
    let root = root.path();
    let facts = Facts::read(root);
    says(&facts.unfit.unwrap(), &["hybrid"]);
    assert_eq!(facts.home, Ok("/var/lib/kubelet".into()));
    assert!(!facts.is_kubelets_home);
    write(root, "etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\"");
    let facts = Facts::read(root);
    assert_eq!((facts.home, facts.is_kubelets_home), (Ok("/data/kubelet".into()), true));
    // A link is accepted like the directory itself.
    write(root, "etc/stelia/steliad.toml", "");
    fs::create_dir_all(root.join("var/lib")).unwrap();
    std::os::unix::fs::symlink(root.join("data/kubelet"), root.join("var/lib/kubelet")).unwrap();
    assert!(Facts::read(root).is_kubelets_home);
}
