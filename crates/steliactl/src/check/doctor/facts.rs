//! The node's facts, read from its files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use stelia_api::ledger::LedgerSummary;
use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::cgroup::hierarchy;
use stelia_kernel::locality::Localities;
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource};
use stelia_kubelet::config::{ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home::Search;
use stelia_kubelet::{CpuManagerState, config};
use stelia_settings::Settings;

use super::crun::{self, Quota};
use super::device_plugin::{self, DevicePlugin};
use super::dra::{self, Drivers};
use super::noise::{Noise, is_domain, isolcpus_list};
use super::publish::Published;
use super::scheduler_settings::Scheduling;
use super::vm_memory::OutsideMemory;
use super::{ConfigProblem, KubeletFiles, KubeletHome, Misplaced, locality};
use crate::shared::files::below;
use crate::shared::kernel::numbered;

/// Plain values; an error says why one could not be read.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// `/proc/sys/kernel/osrelease`.
    pub(crate) kernel: String,
    /// systemd's version, from the library that PID 1 is linked to.
    pub(crate) systemd: Option<u32>,
    /// `cgroup.controllers` of the root cgroup; `None` where cgroup v2 is not mounted at /sys/fs/cgroup.
    pub(crate) controllers: Option<Vec<String>>,
    /// Why the host's cgroups are not cgroup v2 alone; `None` where they are.
    pub(crate) unfit: Option<String>,
    /// Whether this kernel's cgroups have `cpuset.cpus.exclusive`; `None` where no cgroup has the cpuset controller.
    pub(crate) exclusive: Option<bool>,
    pub(crate) topology: Result<Topology, String>,
    /// The running kubelet's configuration.
    pub(crate) kubelet: Result<KubeletConfig, ConfigProblem>,
    /// The kubelet process, and the root directory that the daemon reads.
    pub(crate) home: KubeletHome,
    /// Who chooses exclusive CPUs, and how: from steliad's configuration, or its defaults where it cannot be read.
    pub(crate) allocator: AllocatorPolicies,
    /// `cpu_manager_state`; where steliad chooses the CPUs an absent file is read as one without entries.
    pub(crate) state: Result<CpuManagerState, String>,
    /// The files that kubelet reads when it starts.
    pub(crate) files: KubeletFiles,
    /// The DRA drivers that give CPUs to containers.
    pub(crate) dra: Drivers,
    /// The CPU quotas of the containers with exclusive CPUs.
    pub(crate) quotas: Result<Vec<Quota>, String>,
    /// Settings of the kernel's scheduler other than cpusets.
    pub(crate) scheduling: Scheduling,
    /// CPUs that `isolcpus=` takes out of the scheduler's balancing.
    pub(crate) isolcpus: CpuSet,
    /// CPUs of `nohz_full=`, as /sys has them.
    pub(crate) nohz_full: CpuSet,
    /// `/proc/cmdline`.
    pub(crate) cmdline: String,
    /// CPUs that are present and offline.
    pub(crate) offline: CpuSet,
    /// Whether a process named `irqbalance` runs.
    pub(crate) irqbalance: bool,
    /// Whether the runner socket exists.
    pub(crate) socket: bool,
    /// Whether a process named `steliad` runs.
    pub(crate) daemon: bool,
    /// Processes of pods in cgroups that steliad does not read.
    pub(crate) misplaced: Misplaced,
    /// Whether `/dev/kvm` exists.
    pub(crate) kvm: bool,
    /// Whether the CPUs say that they can virtualize: `vmx` or `svm` among the flags of x86. `None`: they have no such flags, as on arm64.
    pub(crate) virtualization: Option<bool>,
    /// The NUMA nodes of the memory and devices of the running VMs.
    pub(crate) localities: Localities,
    /// What the daemon says of interrupts; `None`: it does not answer, or was not asked.
    pub(crate) quiet: Option<Quiet>,
    /// What it says of the ledger; `None` as above.
    pub(crate) ledger: Option<LedgerSummary>,
    /// What it says of the file for the cluster's publisher; `None` as above.
    pub(crate) publishing: Option<Publishing>,
    /// That file, as a publisher would read it.
    pub(crate) published: Published,
    /// The memory of VMs that is outside their pods' cgroups; `None` as above.
    pub(crate) outside_memory: Option<OutsideMemory>,
    /// The device plugin, as far as it is seen here and the daemon says.
    pub(crate) device_plugin: DevicePlugin,
    /// Whether tracefs is there and may be used: `/sys/kernel/tracing/events`.
    pub(crate) tracing: bool,
    /// What was counted on the CPUs of VMs; `None` where there are none, or the daemon does not say which.
    pub(crate) noise: Option<Noise>,
}

impl Facts {
    /// Reads the facts that need no daemon; `root` is `/`.
    pub(super) fn read(root: &Path) -> Self {
        let sys = root.join("sys");
        let cpus = sys.join("devices/system/cpu");
        let text = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let list = |path: &Path| -> CpuSet {
            // The kernel prints "(null)" where nohz_full= was not given.
            text(path).and_then(|text| text.parse().ok()).unwrap_or_default()
        };
        let cgroup = sys.join("fs/cgroup");
        let told = config::read(&root.join("proc"), root, Search::SocketsThenNames);
        let stopped = matches!(told, Err(ConfigError::NotRunning));
        let kubelet = told.map_err(ConfigProblem::from);
        let settings = stelia_settings::load(root).map_or_else(|_| Settings::default(), |loaded| loaded.settings);
        let home = KubeletHome::find(root, &settings, kubelet.as_ref().ok());
        let kubelet_root = match (&kubelet, &home.read) {
            (Ok(kubelet), _) => kubelet.root_dir.clone(),
            (Err(_), Ok(read)) => read.clone(),
            (Err(_), Err(_)) => KubeletConfig::default().root_dir,
        };
        let allocator = settings.policies.allocator;
        let folder = below(root, &kubelet_root);
        let state = cpu_manager_state(&folder.join(CPU_MANAGER_STATE), allocator.source);
        let topology = Topology::read(&sys).map_err(|error| error.to_string());
        let near = |topology: &Topology| locality::read(root, topology, &folder);
        let cmdline = text(&root.join("proc/cmdline")).unwrap_or_default();
        let kernel = text(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        Self {
            dra: dra::read(root, &folder),
            quotas: state.clone().and_then(|state| crun::read(root, &state)),
            scheduling: Scheduling::read(root, &kernel),
            kernel,
            systemd: systemd(root),
            controllers: text(&cgroup.join("cgroup.controllers"))
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            unfit: text(&root.join("proc/self/cgroup")).and_then(|text| hierarchy::unfit(&text)),
            exclusive: has_exclusive(&cgroup),
            files: KubeletFiles::read(root, &folder, stopped, topology.as_ref().ok()),
            localities: topology.as_ref().map(near).unwrap_or_default(),
            topology,
            kubelet,
            home,
            state,
            allocator,
            isolcpus: isolcpus(&cmdline),
            cmdline,
            nohz_full: list(&cpus.join("nohz_full")),
            offline: list(&cpus.join("offline")),
            irqbalance: runs(root, "irqbalance"),
            socket: root.join("run/stelia/runner/socket").exists(),
            daemon: runs(root, "steliad"),
            misplaced: Misplaced::read(&root.join("proc")),
            kvm: root.join("dev/kvm").exists(),
            virtualization: virtualizes(&text(&root.join("proc/cpuinfo")).unwrap_or_default()),
            quiet: None,
            ledger: None,
            publishing: None,
            outside_memory: None,
            published: Published::read(root),
            device_plugin: DevicePlugin::read(root, &folder, runs(root, device_plugin::PROCESS)),
            tracing: sys.join("kernel/tracing/events").is_dir(),
            noise: None,
        }
    }
}

fn cpu_manager_state(file: &Path, source: CpuSource) -> Result<CpuManagerState, String> {
    match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound && source == CpuSource::Steliad => {
            Ok(CpuManagerState::absent())
        }
        read => read
            .map_err(|error| error.to_string())
            .and_then(|bytes| CpuManagerState::parse(&bytes).map_err(|error| error.to_string()))
            .map_err(|error| format!("{}: {error}", file.display())),
    }
}

/// The CPUs of `isolcpus=` on the kernel's command line, without its flags: the list in /sys includes those of
/// partitions.
fn isolcpus(cmdline: &str) -> CpuSet {
    let words = cmdline.split_whitespace();
    let values = words.filter_map(|word| word.strip_prefix("isolcpus="));
    values
        .filter(|value| is_domain(value))
        .fold(CpuSet::new(), |all, value| all.union(&isolcpus_list(value)))
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

fn runs(root: &Path, program: &str) -> bool {
    let mut processes = numbered(&root.join("proc"));
    processes.any(|(_, folder)| fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim() == program))
}
