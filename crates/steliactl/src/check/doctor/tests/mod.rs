mod crun;
mod daemon;
mod device_plugin;
mod interrupts;
mod merge;
mod scheduler_settings;
mod start;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rstest::rstest;
use stelia_cpus::testing::Shape;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::{Localities, Locality, NodeMemory};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_koordinator::report::numa::{KernelNumaNode, Pages};
use stelia_kubelet::config::{ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::Schema;
use stelia_kubelet::devices::DeviceEntry;
use stelia_kubelet::memory::{MemorySchema, MemoryTable};
use stelia_kubelet::{CpuManagerState, DeviceManagerState, MemoryManagerState, PodUid, home, memory};

use super::device_plugin::DevicePlugin;
use super::publish::Published;
use super::scheduler_settings::Scheduling;
use super::*;
use crate::shared::daemon::Failure;
use crate::shared::files::UnusableState;
use crate::shared::output::{Form, OutputOptions};
use crate::tests::fixtures::{folder, never_says, says, write};

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

type Change = fn(&mut Facts);

impl From<&str> for ConfigProblem {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            keeps_kubelet_from_starting: false,
        }
    }
}

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
        home: KubeletHome {
            process: Ok(process),
            read: Ok("/var/lib/kubelet".into()),
            is_kubelets: true,
        },
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
        scheduling: Scheduling::default(),
        isolcpus: cpus(""),
        nohz_full: cpus(""),
        offline: cpus(""),
        irqbalance: false,
        socket: true,
        daemon: true,
        misplaced: Misplaced::default(),
        kvm: true,
        virtualization: Some(true),
        localities: Localities::default(),
        cmdline: String::new(),
        quiet: None,
        ledger: None,
        publishing: None,
        outside_memory: None,
        published: Published::read(Path::new("/nonexistent")),
        device_plugin: DevicePlugin {
            has_folder: Ok(false),
            runs: false,
            status: None,
            admission_problem: None,
        },
        tracing: true,
        noise: None,
    }
}

fn numa_nodes(count: u32) -> BTreeMap<u32, KernelNumaNode> {
    (0..count).map(|id| (id, KernelNumaNode::default())).collect()
}

/// Whether a check found nothing wrong. What only the daemon knows is unknown without it.
fn is_passed(check: &Check) -> bool {
    matches!(check.finding.verdict, Verdict::Ok | Verdict::Unknown)
}

/// What the check of that name finds.
fn named(facts: &Facts, name: &str) -> Finding {
    let mut checks = checks(facts).into_iter();
    checks.find(|check| check.check == name).unwrap().finding
}

/// Its verdict, and what it found.
fn said(facts: &Facts, name: &str) -> (Verdict, String) {
    let check = named(facts, name);
    (check.verdict, check.found)
}

/// Checks that all checks but this one are passed, and that this one has the verdict and says how to cure it. Returns it.
fn assert_only_problem(facts: &Facts, name: &str, verdict: Verdict) -> Check {
    let wrong = checks(facts).into_iter().filter(|check| !is_passed(check));
    let [check] = <[Check; 1]>::try_from(wrong.collect::<Vec<_>>()).expect("one check that is not passed");
    assert_eq!((check.check, check.finding.verdict), (name, verdict), "{check:?}");
    assert!(!check.finding.cure.is_empty(), "{check:?}");
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
    facts.localities.instances.insert(POD.to_owned(), vm);
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
fn a_fit_node_passes_every_check() {
    for check in checks(&fit()) {
        assert!(is_passed(&check) && check.finding.cure.is_empty(), "{check:?}");
    }
}

#[test]
fn where_steliad_chooses_no_kubelet_is_needed() {
    let mut alone = fit();
    alone.home.process = Err("no kubelet runs".into());
    assert_eq!(named(&alone, "kubelet-home").verdict, Verdict::Unknown);
    ours(&mut alone);
    assert_eq!(named(&alone, "kubelet-home").verdict, Verdict::Ok);
    alone.kubelet = Err("no kubelet runs".into());
    alone.state = Ok(CpuManagerState::absent());
    for check in checks(&alone) {
        assert!(is_passed(&check), "{check:?}");
    }
}

#[rstest]
#[case::no_cgroup2("cgroup", Verdict::Failed, |f: &mut Facts| f.controllers = None)]
#[case::hybrid("cgroup", Verdict::Failed, |f: &mut Facts| f.unfit = Some("a hybrid".into()))]
#[case::two_homes("kubelet-home", Verdict::Failed, |f: &mut Facts| f.home.read = Err("which is not clear".into()))]
#[case::cgroup_root("kubelet-cgroups", Verdict::Failed, |f: &mut Facts| told(f).cgroup_root = "/k8s-infra".into())]
#[case::no_pods_cgroups("kubelet-cgroups", Verdict::Failed, |f: &mut Facts| {
    told(f).cgroups_per_qos = false;
    told(f).enforce_node_allocatable = Vec::new();
})]
#[case::another_home("kubelet-home", Verdict::Failed, |f: &mut Facts| f.home.is_kubelets = false)]
#[case::no_cpuset("cgroup", Verdict::Failed, |f: &mut Facts| f.controllers = Some(vec!["cpu".into()]))]
#[case::old_kernel("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = "6.1.0-30".into(); f.exclusive = Some(false) })]
#[case::old_kernel_without_cgroups("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = "6.6.1".into(); f.exclusive = None })]
#[case::an_old_kernel_without_a_release("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = String::new(); f.exclusive = Some(false) })]
#[case::old_systemd("systemd", Verdict::Failed, |f: &mut Facts| f.systemd = Some(249))]
#[case::a_misspelt_key("kubelet-config", Verdict::Warning, |f: &mut Facts| told(f).warnings = parsed("reservedCpus: 0").unwrap().warnings)]
#[case::a_gate_of_another_version("kubelet-config", Verdict::Warning, |f: &mut Facts| { told(f).feature_gates.insert("CPUManager".into(), true); })]
#[case::cpus_twice("kubelet-state", Verdict::Failed, |f: &mut Facts| f.state.as_mut().unwrap().default_cpus = "0-7".parse().unwrap())]
#[case::keys_of_a_newer_kubelet("kubelet-state", Verdict::Warning, |f: &mut Facts| f.state.as_mut().unwrap().unknown_keys = vec!["slices".into()])]
#[case::no_kubelet("kubelet-policy", Verdict::Failed, |f: &mut Facts| f.kubelet = Err("no kubelet runs".into()))]
#[case::both_choose("kubelet-policy", Verdict::Warning, |f: &mut Facts| ours(f))]
#[case::nothing_reserved("kubelet-policy", Verdict::Warning, |f: &mut Facts| { ours(f); f.allocator.reserved = CpuSet::new(); f.kubelet = Err("none".into()) })]
#[case::isolcpus_in_our_pool("isolcpus", Verdict::Failed, |f: &mut Facts| { ours(f); f.kubelet = Err("none".into()); f.isolcpus = "2".parse().unwrap() })]
#[case::policy_none("kubelet-policy", Verdict::Failed, |f: &mut Facts| { f.kubelet = Ok(KubeletConfig::default()); f.files.cpus = Ok(None) })]
#[case::siblings_on_two_numa_nodes("cpus", Verdict::Warning, |f: &mut Facts| {
    f.topology.as_mut().unwrap().cpus.get_mut(&5).unwrap().node = 1;
})]
#[case::a_state_file_of_another_schema("kubelet-state", Verdict::Failed, |f: &mut Facts| { f.state = Err("schema".into()); f.files.cpus = Err(unusable("schema", false)) })]
#[case::siblings_apart("cpus", Verdict::Warning, |f: &mut Facts| told(f).cpu_manager_policy_options.clear())]
#[case::a_split_core("whole-cores", Verdict::Warning, |f: &mut Facts| {
    let state = f.state.as_mut().unwrap();
    state.default_cpus = "0,3-7".parse().unwrap();
    state.entries.values_mut().flat_map(|pod| pod.values_mut()).for_each(|cpus| *cpus = "1-2".parse().unwrap());
})]
#[case::isolated_at_boot("isolcpus", Verdict::Warning, |f: &mut Facts| f.isolcpus = "1,5".parse().unwrap())]
#[case::shared_cpus_isolated_at_boot("isolcpus", Verdict::Failed, |f: &mut Facts| f.isolcpus = "2,6".parse().unwrap())]
#[case::a_pods_cpu_offline("offline", Verdict::Failed, |f: &mut Facts| f.offline = "5".parse().unwrap())]
#[case::irqbalance("irqbalance", Verdict::Warning, |f: &mut Facts| f.irqbalance = true)]
#[case::memory_away("locality", Verdict::Warning, |f: &mut Facts| has_vm(f, &[0], 1, 1 << 30))]
#[case::two_give_cpus("dra-driver", Verdict::Warning, |f: &mut Facts| { f.dra.insert("dra.cpu".into(), "/x".into()); })]
#[case::sched_ext("sched-ext", Verdict::Warning, |f: &mut Facts| f.scheduling.extension = Some("scx_rusty".into()))]
#[case::half_a_core("core-scheduling", Verdict::Warning, |f: &mut Facts| { f.scheduling.with_cookies.insert(7, "2".parse().unwrap()); })]
#[case::no_kvm("kvm", Verdict::Warning, |f: &mut Facts| f.kvm = false)]
#[case::no_virtualization("kvm", Verdict::Warning, |f: &mut Facts| { f.kvm = false; f.virtualization = Some(false) })]
#[case::no_exception_level_2("kvm", Verdict::Warning, |f: &mut Facts| { f.kvm = false; f.virtualization = None })]
#[case::no_daemon("daemon", Verdict::Warning, |f: &mut Facts| f.daemon = false)]
#[case::no_socket("runner-socket", Verdict::Failed, |f: &mut Facts| f.socket = false)]
fn what_is_wrong_is_told_with_its_cure_and_nothing_else_is(
    #[case] name: &str,
    #[case] verdict: Verdict,
    #[case] change: Change,
) {
    let mut facts = fit();
    change(&mut facts);
    assert_only_problem(&facts, name, verdict);
}

#[test]
fn the_cgroup_root_of_a_kubelet_that_does_not_run_is_told_too() {
    let mut facts = fit();
    let stopped = KubeletConfig {
        cgroup_root: "/k8s-infra".into(),
        ..KubeletConfig::default()
    };
    facts.kubelet = Err("no kubelet runs".into());
    facts.files.stopped = Some(("/var/lib/kubelet/config.yaml", Ok(stopped)));
    let (verdict, found) = said(&facts, "kubelet-cgroups");
    assert_eq!(verdict, Verdict::Failed);
    says(&found, &["/k8s-infra"]);
}

#[test]
fn an_empty_root_is_an_unfit_node_and_the_text_says_why() {
    let root = tempfile::tempdir().unwrap();
    let output_options = OutputOptions {
        form: Form::Text,
        style: TextStyle::from(true),
    };
    let examined = Examined(checks(&Facts::read(root.path())));
    let Err(Failure::Partial { printed, reason }) = output_options.print(&examined) else {
        panic!("fit");
    };
    says(&printed, &["is not a cgroup v2 mount", "FAILED"]);
    says(&reason, &["cgroup, ", "runner-socket"]);
}

#[test]
fn a_kernel_of_which_nothing_is_known_is_not_called_old() {
    let mut facts = fit();
    (facts.kernel, facts.exclusive) = (String::new(), None);
    let (verdict, found) = said(&facts, "kernel");
    assert_eq!(verdict, Verdict::Unknown);
    says(&found, &["a kernel of unknown release: "]);
}

/// arm64 says nothing of virtualization among the features of its CPUs (hwloc, nvidia-dgx-gb10), and has no module to load.
#[test]
fn without_dev_kvm_the_cure_is_that_of_the_processor() {
    for (cpuinfo, cure) in [
        ("flags\t\t: fpu vmx sse\n", "modprobe kvm_intel or kvm_amd"),
        ("flags\t\t: fpu sse\n", "switch on VT-x or AMD-V"),
        ("Features\t: fp asimd evtstrm aes\n", "exception level 2"),
    ] {
        let root = folder(&[("proc/cpuinfo", cpuinfo)]);
        says(&named(&Facts::read(root.path()), "kvm").cure, &[cure]);
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
    let lists = [facts.isolcpus, facts.nohz_full, facts.offline].map(|cpus| cpus.to_string());
    assert_eq!(lists, ["2-3,6", "", "7"]);
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
    assert_eq!(facts.home.read, Ok("/var/lib/kubelet".into()));
    assert!(!facts.home.is_kubelets);
    write(root, "etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\"");
    let home = Facts::read(root).home;
    assert_eq!((home.read, home.is_kubelets), (Ok("/data/kubelet".into()), true));
    // A link is accepted like the directory itself.
    write(root, "etc/stelia/steliad.toml", "");
    fs::create_dir_all(root.join("var/lib")).unwrap();
    std::os::unix::fs::symlink(root.join("data/kubelet"), root.join("var/lib/kubelet")).unwrap();
    assert!(Facts::read(root).home.is_kubelets);
}
