mod crun;
mod device_plugin;
mod interrupts;
mod ledger;
mod merge;
mod publish;
mod scheduler_settings;
mod start;

use std::fs;
use std::path::Path;

use rstest::rstest;
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_kernel::locality::{Localities, Locality, NodeMemory};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_koordinator::report::numa::{KernelNumaNode, Pages};
use stelia_kubelet::config::KubeletConfig;
use stelia_kubelet::cpu_manager_state::Schema;
use stelia_kubelet::devices::DeviceEntry;
use stelia_kubelet::memory::{MemorySchema, MemoryTable};
use stelia_kubelet::{CpuManagerState, DeviceManagerState, MemoryManagerState, PodUid, home, memory};

use super::scheduler_settings::Scheduling;
use super::*;
use crate::shared::daemon::Failure;
use crate::shared::files::UnusableState;
use crate::shared::output::{Form, OutputOptions, TextStyle};

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

impl From<&str> for ConfigProblem {
    fn from(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            text,
            keeps_kubelet_from_starting: false,
        }
    }
}

fn process(host: home::Host) -> home::Process {
    home::Process {
        pid: 812,
        name: "kubelet".into(),
        host,
        root: Some("/var/lib/kubelet".into()),
    }
}

/// A node on which every check passes: 2 NUMA nodes, 4 cores, 8 CPUs, siblings 4 apart.
fn fit() -> Facts {
    let shape = Shape {
        nodes: 2,
        cores: 2,
        threads: 2,
        interleaved: true,
    };
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
    Facts {
        kernel: "6.12.9".to_owned(),
        systemd: Some(257),
        controllers: Some(["cpuset", "cpu", "io", "memory", "pids"].map(str::to_owned).to_vec()),
        unfit: None,
        exclusive: Some(true),
        topology: Ok(shape.topology()),
        kubelet: Ok(kubelet),
        home: KubeletHome {
            process: Ok(process(home::Host::Kubelet)),
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
            numa: Ok([(0, KernelNumaNode::default()), (1, KernelNumaNode::default())].into()),
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
        published: publish::nothing(),
        device_plugin: super::device_plugin::DevicePlugin {
            has_folder: Ok(false),
            runs: false,
            status: None,
            admission_problem: None,
        },
        tracing: true,
        noise: None,
    }
}

/// Whether a check found nothing wrong. What only the daemon knows is unknown without it.
fn is_passed(check: &Check) -> bool {
    matches!(check.verdict, Verdict::Ok | Verdict::Unknown)
}

#[test]
fn a_fit_node_passes_every_check() {
    for check in checks(&fit()) {
        assert!(is_passed(&check) && check.cure.is_empty(), "{check:?}");
    }
}

/// steliad chooses the CPUs.
fn ours(facts: &mut Facts) {
    facts.allocator.source = CpuSource::Steliad;
    facts.allocator.reserved = "0,4".parse().unwrap();
}

#[test]
fn where_steliad_chooses_no_kubelet_is_needed() {
    let mut alone = fit();
    ours(&mut alone);
    alone.kubelet = Err("no kubelet runs".into());
    alone.state = Ok(CpuManagerState::absent());
    for check in checks(&alone) {
        assert!(is_passed(&check), "{check:?}");
    }
}

type Change = fn(&mut Facts);

#[rstest]
#[case::no_cgroup2("cgroup", Verdict::Failed, |f: &mut Facts| f.controllers = None)]
#[case::hybrid("cgroup", Verdict::Failed, |f: &mut Facts| f.unfit = Some("a hybrid".into()))]
#[case::two_homes("kubelet-home", Verdict::Failed, |f: &mut Facts| f.home.read = Err("which is not clear".into()))]
#[case::cgroup_root("kubelet-cgroups", Verdict::Failed, |f: &mut Facts| f.kubelet.as_mut().unwrap().cgroup_root = "/k8s-infra".into())]
#[case::no_pods_cgroups("kubelet-cgroups", Verdict::Failed, |f: &mut Facts| {
    let kubelet = f.kubelet.as_mut().unwrap();
    kubelet.cgroups_per_qos = false;
    kubelet.enforce_node_allocatable = Vec::new();
})]
#[case::another_home("kubelet-home", Verdict::Failed, |f: &mut Facts| f.home.is_kubelets = false)]
#[case::no_cpuset("cgroup", Verdict::Failed, |f: &mut Facts| f.controllers = Some(vec!["cpu".into()]))]
#[case::old_kernel("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = "6.1.0-30".into(); f.exclusive = Some(false) })]
#[case::old_kernel_without_cgroups("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = "6.6.1".into(); f.exclusive = None })]
#[case::an_old_kernel_without_a_release("kernel", Verdict::Warning, |f: &mut Facts| { f.kernel = String::new(); f.exclusive = Some(false) })]
#[case::old_systemd("systemd", Verdict::Failed, |f: &mut Facts| f.systemd = Some(249))]
#[case::a_misspelt_key("kubelet-config", Verdict::Warning, |f: &mut Facts| {
    let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nreservedCpus: 0\n";
    let file = stelia_kubelet::config::File::parse(text, "k.yaml").unwrap();
    told(f).warnings = KubeletConfig::new(Some(file), Vec::new(), Default::default()).unwrap().warnings;
})]
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
#[case::a_state_file_of_another_schema("kubelet-state", Verdict::Failed, |f: &mut Facts| { f.state = Err("schema".into()); f.files.cpus = Err(UnusableState { text: "schema".into(), is_damaged: false }) })]
#[case::siblings_apart("cpus", Verdict::Warning, |f: &mut Facts| f.kubelet.as_mut().unwrap().cpu_manager_policy_options.clear())]
#[case::a_split_core("whole-cores", Verdict::Warning, |f: &mut Facts| {
    let state = f.state.as_mut().unwrap();
    state.default_cpus = "0,3-7".parse().unwrap();
    state.entries.values_mut().flat_map(|pod| pod.values_mut()).for_each(|cpus| *cpus = "1-2".parse().unwrap());
})]
#[case::isolated_at_boot("isolcpus", Verdict::Warning, |f: &mut Facts| f.isolcpus = "1,5".parse().unwrap())]
#[case::shared_cpus_isolated_at_boot("isolcpus", Verdict::Failed, |f: &mut Facts| f.isolcpus = "2,6".parse().unwrap())]
#[case::a_pods_cpu_offline("offline", Verdict::Failed, |f: &mut Facts| f.offline = "5".parse().unwrap())]
#[case::irqbalance("irqbalance", Verdict::Warning, |f: &mut Facts| f.irqbalance = true)]
#[case::memory_away("locality", Verdict::Warning, |f: &mut Facts| {
    let memory = NodeMemory { huge: 1 << 30, ..NodeMemory::default() };
    let vm = Locality { nodes: [0].into(), memory: [(1, memory)].into(), ..Locality::default() };
    f.localities.instances.insert(POD.to_owned(), vm);
})]
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
    facts.kubelet = Err("no kubelet runs".into());
    let stopped = KubeletConfig {
        cgroup_root: "/k8s-infra".into(),
        ..KubeletConfig::default()
    };
    facts.files.stopped = Some(("/var/lib/kubelet/config.yaml", Ok(stopped)));
    let all = checks(&facts);
    let check = all.iter().find(|check| check.check == "kubelet-cgroups").unwrap();
    assert!(
        check.verdict == Verdict::Failed && check.found.contains("/k8s-infra"),
        "{check:?}"
    );
}

#[test]
fn an_empty_root_is_an_unfit_node_and_the_text_says_why() {
    let root = tempfile::tempdir().unwrap();
    let output_options = OutputOptions {
        form: Form::Text,
        style: TextStyle::from(true),
    };
    let Err(Failure::Partial { printed, reason }) = output_options.print(&Examined(checks(&Facts::read(root.path()))))
    else {
        panic!("fit");
    };
    assert!(
        printed.contains("is not a cgroup v2 mount") && printed.contains("FAILED"),
        "{printed}"
    );
    assert!(
        reason.contains("cgroup, ") && reason.contains("runner-socket"),
        "{reason}"
    );
}

#[test]
fn a_kernel_of_which_nothing_is_known_is_not_called_old() {
    let mut facts = fit();
    (facts.kernel, facts.exclusive) = (String::new(), None);
    let check = named(&facts, "kernel");
    assert!(
        check.verdict == Verdict::Unknown && check.found.starts_with("a kernel of unknown release: "),
        "{check:?}"
    );
    facts.exclusive = Some(false);
    let check = named(&facts, "kernel");
    assert_eq!(check.found, "a kernel of unknown release: no cpuset.cpus.exclusive");
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// arm64 says nothing of virtualization among the features of its CPUs (hwloc, nvidia-dgx-gb10), and has no module to load.
#[test]
fn without_dev_kvm_the_cure_is_that_of_the_processor() {
    for (cpuinfo, cure) in [
        ("flags\t\t: fpu vmx sse\n", "modprobe kvm_intel or kvm_amd"),
        ("flags\t\t: fpu sse\n", "switch on VT-x or AMD-V"),
        ("Features\t: fp asimd evtstrm aes\n", "exception level 2"),
    ] {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/cpuinfo", cpuinfo);
        let kvm = named(&Facts::read(root.path()), "kvm");
        assert!(format!("{kvm:?}").contains(cure), "{kvm:?}");
    }
}

#[test]
fn facts_are_read_from_the_nodes_files() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    write(root, "proc/sys/kernel/osrelease", "6.12.9+deb13-amd64\n");
    write(
        root,
        "proc/cmdline",
        "quiet isolcpus=domain,managed_irq,2-3,6 nohz_full=3\n",
    );
    write(root, "proc/77/comm", "irqbalance\n");
    write(root, "proc/78/comm", "steliad\n");
    write(root, "proc/cpuinfo", "model name\t: x\nflags\t\t: fpu svm sse\n");
    write(
        root,
        "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-257.9-1.so",
        "",
    );
    write(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    write(root, "sys/fs/cgroup/system.slice/cpuset.cpus.partition", "member\n");
    write(root, "sys/fs/cgroup/system.slice/cpuset.cpus.exclusive", "\n");
    write(root, "sys/devices/system/cpu/nohz_full", "  (null)\n");
    write(root, "sys/devices/system/cpu/offline", "7\n");
    let facts = Facts::read(root);
    assert_eq!(facts.kernel, "6.12.9+deb13-amd64");
    assert_eq!(
        (facts.systemd, facts.exclusive, facts.irqbalance),
        (Some(257), Some(true), true)
    );
    assert_eq!(
        (facts.daemon, facts.kvm, facts.virtualization),
        (true, false, Some(true))
    );
    assert_eq!(facts.isolcpus.to_string(), "2-3,6");
    assert_eq!(
        (facts.nohz_full.to_string(), facts.offline.to_string()),
        (String::new(), "7".to_owned())
    );
    assert!(facts.state.unwrap_err().contains("cpu_manager_state"));
}

#[test]
fn a_kubelet_that_is_not_found_is_unknown_and_not_missed_where_steliad_chooses() {
    let mut facts = fit();
    facts.home.process = Err("no kubelet runs".into());
    assert_eq!(named(&facts, "kubelet-home").verdict, Verdict::Unknown);
    // Where steliad chooses the CPUs no kubelet is needed.
    ours(&mut facts);
    assert_eq!(named(&facts, "kubelet-home").verdict, Verdict::Ok);
}

#[test]
fn a_kubelet_with_another_root_directory_than_the_one_that_is_read_is_seen() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    write(root, "proc/70/comm", "kubelet\n");
    write(root, "proc/70/status", "Uid:\t0\t0\t0\t0\n");
    write(root, "proc/70/cgroup", "0::/system.slice/kubelet.service\n");
    write(root, "proc/70/cmdline", "kubelet\0--root-dir=/data/kubelet\0");
    write(root, "proc/self/cgroup", "4:cpuset:/\n0::/\n");
    write(root, "data/kubelet/cpu_manager_state", "{}");
    let facts = Facts::read(root);
    assert!(facts.unfit.unwrap().contains("hybrid"));
    assert_eq!(facts.home.read, Ok("/var/lib/kubelet".into()));
    assert!(!facts.home.is_kubelets);
    write(root, "etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\"");
    let facts = Facts::read(root);
    assert_eq!(
        (facts.home.read, facts.home.is_kubelets),
        (Ok("/data/kubelet".into()), true)
    );
    // A link is accepted like the directory itself.
    write(root, "etc/stelia/steliad.toml", "");
    fs::create_dir_all(root.join("var/lib")).unwrap();
    std::os::unix::fs::symlink(root.join("data/kubelet"), root.join("var/lib/kubelet")).unwrap();
    assert!(Facts::read(root).home.is_kubelets);
}

/// Checks that all checks but this one are passed, and that this one has the verdict and says how to cure it. Returns it.
fn assert_only_problem(facts: &Facts, name: &str, verdict: Verdict) -> Check {
    let wrong = checks(facts).into_iter().filter(|check| !is_passed(check));
    let wrong: [Check; 1] = wrong
        .collect::<Vec<_>>()
        .try_into()
        .expect("one check that is not passed");
    let [check] = wrong;
    assert_eq!((check.check, check.verdict), (name, verdict));
    assert!(!check.cure.is_empty(), "{check:?}");
    check
}

/// The check of that name.
fn named(facts: &Facts, name: &str) -> Check {
    let mut checks = checks(facts).into_iter();
    checks.find(|check| check.check == name).unwrap()
}

fn told(facts: &mut Facts) -> &mut KubeletConfig {
    facts.kubelet.as_mut().unwrap()
}
