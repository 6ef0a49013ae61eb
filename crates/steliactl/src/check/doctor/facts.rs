//! The node's facts, read from its files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::cgroup::hierarchy;
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_koordinator::report::numa;
use stelia_kubelet::allocated_pods::{ACTUATED_PODS_STATE, ALLOCATED_PODS_STATE};
use stelia_kubelet::config::{self, ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::dra_manager_state::{self, DRA_MANAGER_STATE};
use stelia_kubelet::home::{self, Search};
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::process_place::ProcessPlace;
use stelia_kubelet::{AllocatedPods, CpuManagerState, DeviceManagerState, MemoryManagerState};
use stelia_settings::Settings;

use super::daemon::{self, Published};
use super::kubelet::misplaced;
use super::noise::Noise;
use super::vms::{self, CloudHypervisors, Quota};
use crate::shared::daemon::Description;
use crate::shared::files::{UnusableState, below, kubelet_state, without_root};
use crate::shared::kernel::numbered;

/// Plain values; an error says why one could not be read.
#[derive(Debug)]
pub(super) struct Facts {
    /// `/proc/sys/kernel/osrelease`; empty where it is not there.
    pub(super) kernel: String,
    /// systemd's version, from the library that PID 1 is linked to.
    pub(super) systemd: Option<u32>,
    /// `cgroup.controllers` of the root cgroup; `None` where cgroup v2 is not mounted at /sys/fs/cgroup.
    pub(super) controllers: Option<Vec<String>>,
    /// Why the host's cgroups are not cgroup v2 alone; `None` where they are.
    pub(super) unfit: Option<String>,
    /// Whether cgroups have `cpuset.cpus.exclusive`; `None` where no cgroup has the cpuset controller.
    pub(super) exclusive: Option<bool>,
    pub(super) topology: Result<Topology, String>,
    /// CPUs that are present and offline.
    pub(super) offline: CpuSet,
    /// CPUs of `nohz_full=`, as /sys has them.
    pub(super) nohz_full: CpuSet,
    /// `/proc/cmdline`.
    pub(super) cmdline: String,
    pub(super) kvm: bool,
    /// Whether the flags of an x86 CPU include `vmx` or `svm`; `None`: it has no such flags, as on arm64.
    pub(super) virtualization: Option<bool>,
    /// Whether tracefs may be used: `/sys/kernel/tracing/events`.
    pub(super) tracing: bool,
    /// The scheduler of sched_ext that is loaded, by its name.
    pub(super) sched_ext: Option<String>,
    pub(super) numa_balancing: bool,
    pub(super) hypervisors: CloudHypervisors,

    /// The running kubelet's configuration.
    pub(super) kubelet: Result<KubeletConfig, ConfigError>,
    /// The kubelet process, or why it was not identified.
    pub(super) process: Result<home::Process, String>,
    /// kubelet's root directory as the daemon reads it by its setting, or why it cannot be determined.
    pub(super) home: Result<PathBuf, String>,
    /// Whether kubelet writes to that directory, possibly through a link.
    pub(super) is_kubelets_home: bool,
    pub(super) files: KubeletFiles,
    /// `cpu_manager_state`; where steliad chooses the CPUs an absent file is read as one without entries.
    pub(super) state: Result<CpuManagerState, String>,
    /// Who chooses exclusive CPUs, and how: from steliad's configuration, or its defaults where it cannot be read.
    pub(super) allocator: AllocatorPolicies,
    /// The DRA drivers that give CPUs to containers by name, each with the file that shows it.
    pub(super) dra: BTreeMap<String, PathBuf>,
    /// A process of a pod in a cgroup that steliad does not read.
    pub(super) misplaced: Option<(i32, ProcessPlace)>,

    /// The CPU quotas of the containers with exclusive CPUs.
    pub(super) quotas: Result<Vec<Quota>, String>,

    /// Whether a process named `steliad` runs.
    pub(super) daemon: bool,
    pub(super) irqbalance: bool,
    /// Whether the runner socket exists.
    pub(super) socket: bool,
    /// Whether kubelet's plugin directory exists, or why that is not known.
    pub(super) has_plugin_folder: Result<bool, String>,
    /// Whether the device plugin runs.
    pub(super) plugin: bool,
    /// What it told systemd of itself, as `systemctl status` shows it. `None`: systemd does not say.
    pub(super) plugin_status: Option<String>,
    /// The file for the cluster's publisher, as a publisher reads it.
    pub(super) published: Published,
    /// What the daemon says; `None`: it does not answer, or was not asked.
    pub(super) described: Option<Description>,
    /// What was counted on the CPUs of VMs; `None` where there are none, or the daemon does not say which.
    pub(super) noise: Option<Noise>,
}

/// What kubelet's next start and its admissions depend on. `None`: the state file does not exist.
#[derive(Debug)]
pub(super) struct KubeletFiles {
    /// kubeadm's file with its path, where no kubelet runs: one that cannot start runs only for moments.
    pub(super) stopped: Option<(&'static str, Result<KubeletConfig, ConfigError>)>,
    pub(super) cpus: Result<Option<CpuManagerState>, UnusableState>,
    pub(super) memory: Result<Option<MemoryManagerState>, UnusableState>,
    /// What is wrong with `allocated_pods_state`, `actuated_pods_state` and `dra_manager_state`, each by its name.
    pub(super) pods: Vec<(&'static str, UnusableState)>,
    pub(super) devices: Result<Option<DeviceManagerState>, UnusableState>,
    /// The machine as kubelet sees it.
    pub(super) numa: Result<BTreeMap<u32, numa::KernelNumaNode>, String>,
    pub(super) caches: BTreeMap<u32, u32>,
}

impl KubeletFiles {
    /// `folder` is kubelet's root directory below `root`. `stopped`: no kubelet runs.
    fn read(root: &Path, folder: &Path, stopped: bool, topology: Option<&Topology>) -> Self {
        let sys = root.join("sys");
        let pods = [ALLOCATED_PODS_STATE, ACTUATED_PODS_STATE].into_iter();
        let pods = pods.filter_map(|name| Some((name, kubelet_state(&folder.join(name), AllocatedPods::parse).err()?)));
        let claims = kubelet_state(&folder.join(DRA_MANAGER_STATE), dra_manager_state::check).err();
        let claims = claims.map(|unusable| (DRA_MANAGER_STATE, unusable));
        Self {
            pods: pods.chain(claims).collect(),
            stopped: stopped.then(|| config::kubeadm(root)).flatten(),
            cpus: kubelet_state(&folder.join(CPU_MANAGER_STATE), CpuManagerState::parse),
            memory: kubelet_state(&folder.join(MEMORY_MANAGER_STATE), MemoryManagerState::parse),
            devices: kubelet_state(&device_manager_state(root, folder), DeviceManagerState::parse),
            numa: numa::read(&sys).map_err(|error| error.to_string()),
            caches: topology.map(|topology| topology.caches(&sys)).unwrap_or_default(),
        }
    }
}

impl Facts {
    /// Reads the facts that need no daemon; `root` is `/`.
    pub(super) fn read(root: &Path) -> Self {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
        let text = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok();
            text.map(|text| text.trim().to_owned())
        };
        let list = |name: &str| -> CpuSet {
            let text = text(&format!("sys/devices/system/cpu/{name}"));
            // The kernel prints "(null)" where nohz_full= was not given.
            text.and_then(|text| text.parse().ok()).unwrap_or_default()
        };
        let kubelet = config::read(&proc, root, Search::SocketsThenNames);
        let stopped = matches!(kubelet, Err(ConfigError::NotRunning));
        let settings = stelia_settings::load(root).map_or_else(|_| Settings::default(), |loaded| loaded.settings);
        let home = home::by_setting(&settings.kubelet_root, root, None).map_err(|error| error.to_string());
        let real = |path: &Path| {
            let path = below(root, path);
            fs::canonicalize(&path).unwrap_or(path)
        };
        let is_kubelets_home = match (&home, &kubelet) {
            (Ok(read), Ok(kubelet)) => real(read) == real(&kubelet.root_dir),
            _ => true,
        };
        let kubelet_root = match (&kubelet, &home) {
            (Ok(kubelet), _) => kubelet.root_dir.clone(),
            (Err(_), Ok(read)) => read.clone(),
            (Err(_), Err(_)) => KubeletConfig::default().root_dir,
        };
        let folder = below(root, &kubelet_root);
        let topology = Topology::read(&sys).map_err(|error| error.to_string());
        let files = KubeletFiles::read(root, &folder, stopped, topology.as_ref().ok());
        let allocator = settings.policies.allocator;
        let state = match &files.cpus {
            Ok(Some(state)) => Ok(state.clone()),
            Ok(None) if allocator.source == CpuSource::Steliad => Ok(CpuManagerState::absent()),
            Ok(None) => Err(format!("{}: No such file", folder.join(CPU_MANAGER_STATE).display())),
            Err(unusable) => Err(unusable.to_string()),
        };
        let drivers = stelia_kernel::dra::cpu_drivers(root, &folder).into_iter();
        let kernel = text("proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            quotas: state.clone().and_then(|state| vms::read_quotas(root, &state)),
            dra: drivers.map(|(name, path)| (name, without_root(root, &path))).collect(),
            hypervisors: CloudHypervisors::read(root, &kernel),
            systemd: systemd(root),
            controllers: text("sys/fs/cgroup/cgroup.controllers")
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            unfit: text("proc/self/cgroup").and_then(|text| hierarchy::unfit(&text)),
            exclusive: has_exclusive(&sys.join("fs/cgroup")),
            cmdline: text("proc/cmdline").unwrap_or_default(),
            nohz_full: list("nohz_full"),
            offline: list("offline"),
            irqbalance: runs(&proc, "irqbalance"),
            socket: root.join("run/stelia/runner/socket").exists(),
            daemon: runs(&proc, "steliad"),
            misplaced: misplaced(&proc),
            kvm: root.join("dev/kvm").exists(),
            virtualization: virtualizes(&text("proc/cpuinfo").unwrap_or_default()),
            numa_balancing: vms::numa_balances(&proc),
            sched_ext: text("sys/kernel/sched_ext/state")
                .filter(|state| !matches!(state.as_str(), "" | "disabled"))
                .map(|_| text("sys/kernel/sched_ext/root/ops").unwrap_or_else(|| "sched_ext".to_owned())),
            published: Published::read(root),
            has_plugin_folder: daemon::has_plugin_folder(root, &folder),
            plugin: runs(&proc, daemon::PLUGIN_PROCESS),
            plugin_status: None,
            tracing: sys.join("kernel/tracing/events").is_dir(),
            described: None,
            noise: None,
            kernel,
            process: home::find(&proc, root, Search::SocketsThenNames).map_err(|error| error.to_string()),
            home: home.map(|path| without_root(root, &path)),
            is_kubelets_home,
            topology,
            kubelet,
            files,
            state,
            allocator,
        }
    }

    /// Whether `cpu_manager_state` is absent because kubelet does not run.
    pub(super) fn has_no_state_yet(&self) -> bool {
        self.kubelet.is_err() && matches!(self.files.cpus, Ok(None)) && self.state.is_err()
    }
}

/// The flags of any CPU; arm64 has `Features` instead, without one for its exception level 2.
fn virtualizes(cpuinfo: &str) -> Option<bool> {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags")).peekable();
    flags.peek()?;
    Some(flags.any(|line| line.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")))
}

/// PID 1 maps `libsystemd-shared-<version>[.suffix].so`.
pub(crate) fn systemd(root: &Path) -> Option<u32> {
    let folders = [
        "usr/lib/systemd",
        "usr/lib64/systemd",
        "usr/lib/x86_64-linux-gnu/systemd",
        "usr/lib/aarch64-linux-gnu/systemd",
    ];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(root.join(folder)).ok());
    entries.flat_map(|entries| entries.flatten()).find_map(|entry| {
        let name = entry.file_name();
        let version = name.to_str()?.strip_prefix("libsystemd-shared-")?;
        let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}

/// The root cgroup does not have the file, so it is looked for in any child with a cpuset.
fn has_exclusive(cgroup: &Path) -> Option<bool> {
    let children = fs::read_dir(cgroup).ok()?.flatten().map(|entry| entry.path());
    let mut with_cpuset = children
        .filter(|path| path.join("cpuset.cpus.partition").exists())
        .peekable();
    with_cpuset.peek()?;
    Some(with_cpuset.any(|path| path.join("cpuset.cpus.exclusive").exists()))
}

fn runs(proc: &Path, program: &str) -> bool {
    numbered(proc).any(|(_, folder)| fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim() == program))
}
