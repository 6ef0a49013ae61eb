//! What is observed of the node: what its files, systemd and the daemon say.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kubelet_planner::Machine;
use stelia_cpus::Topology;
use stelia_koordinator::allocator::AllocatorPolicies;
use stelia_koordinator::report::numa;
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::config::{self, ConfigError, KubeletConfig};
use stelia_kubelet::devices::plugin_folder;
use stelia_kubelet::home::{self, Search};
use stelia_kubelet::process_place::ProcessPlace;
use stelia_node_plan::machine;
use stelia_settings::Settings;

use super::{DAEMON, KUBELET, kubelet, vms};
use crate::check::printed;
use crate::shared::daemon::{Description, Failure};
use crate::shared::files::{KubeletFiles, below, without_root};

/// The files that checks look at, below the root.
const FILES: [&str; 7] = [RELEASE, CONTROLLERS, COMMAND_LINE, KVM, NUMA_BALANCING, TRACING, SOCKET];
pub(super) const RELEASE: &str = "proc/sys/kernel/osrelease";
/// Of the root cgroup; not there where cgroup v2 is not mounted at /sys/fs/cgroup.
pub(super) const CONTROLLERS: &str = "sys/fs/cgroup/cgroup.controllers";
pub(super) const COMMAND_LINE: &str = "proc/cmdline";
pub(super) const KVM: &str = "dev/kvm";
pub(super) const NUMA_BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// Of tracefs.
pub(super) const TRACING: &str = "sys/kernel/tracing/events";
pub(super) const SOCKET: &str = "run/stelia/runner/socket";

/// Plain values; an error says why one could not be read.
#[derive(Debug)]
pub(super) struct Observed {
    /// Those of [`FILES`] that exist, each with its text; that of a device, a folder or a socket is empty.
    pub(super) texts: BTreeMap<&'static str, String>,
    /// systemd's version, from the library that PID 1 is linked to.
    pub(super) systemd: Option<u32>,
    /// Whether cgroups have `cpuset.cpus.exclusive`; `None` where no cgroup has the cpuset controller.
    pub(super) exclusive: Option<bool>,
    pub(super) topology: Result<Topology, String>,

    /// The running kubelet's configuration.
    pub(super) kubelet: Result<KubeletConfig, ConfigError>,
    /// kubeadm's file, where no kubelet runs: one that cannot start runs only for moments.
    pub(super) stopped: Option<Result<KubeletConfig, ConfigError>>,
    /// kubelet's root directory as the daemon reads it by its setting, or why it cannot be determined or is not the one that kubelet
    /// writes to.
    pub(super) home: Result<PathBuf, String>,
    /// Who chooses exclusive CPUs, and how: from steliad's configuration, or its defaults where it cannot be read.
    pub(super) allocator: AllocatorPolicies,
    pub(super) files: KubeletFiles,
    /// The machine as kubelet sees it; `None` where it cannot be read.
    pub(super) machine: Option<Machine>,
    /// The DRA drivers that give CPUs to containers by name, each with the file that shows it.
    pub(super) dra: BTreeMap<String, PathBuf>,
    /// A process of a pod in a cgroup that steliad does not read.
    pub(super) misplaced: Option<(i32, ProcessPlace)>,
    /// The containers whose CPU quota is below their exclusive CPUs, in words.
    pub(super) low_quotas: Result<Vec<String>, String>,
    /// Whether kubelet's plugin directory exists, or why that is not known.
    pub(super) has_plugin_folder: Result<bool, String>,

    /// What systemd says of steliad's services, by unit: its state, and its status as `systemctl status` shows it. Empty: no answer.
    pub(super) units: BTreeMap<String, (String, String)>,
    pub(super) described: Result<Description, Failure>,
}

impl Observed {
    /// Reads what is in files; `root` is `/`.
    pub(super) fn read(root: &Path, described: Result<Description, Failure>) -> Self {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
        let there = FILES.into_iter().filter(|file| root.join(file).exists());
        let texts = there.map(|file| {
            let path = Some(root.join(file)).filter(|path| path.is_file());
            let text = path.and_then(|path| fs::read_to_string(path).ok());
            (file, text.unwrap_or_default().trim().to_owned())
        });
        let kubelet = config::read(&proc, root, Search::SocketsThenNames);
        let stopped = matches!(kubelet, Err(ConfigError::NotRunning));
        let settings = stelia_settings::load(root).map_or_else(|_| Settings::default(), |loaded| loaded.settings);
        let home = home::by_setting(&settings.kubelet_root, root, None).map_err(|error| error.to_string());
        let real = |path: &Path| {
            let path = below(root, path);
            fs::canonicalize(&path).unwrap_or(path)
        };
        let running = kubelet.as_ref().ok().map(|kubelet| &kubelet.root_dir);
        let folder = running.or(home.as_ref().ok()).cloned();
        let folder = below(root, &folder.unwrap_or_else(|| KubeletConfig::default().root_dir));
        let files = KubeletFiles::read(root, &folder);
        let plugins = plugin_folder(root, &folder);
        let as_kubelet = Topology::read_as_kubelet(&sys).ok().zip(numa::read(&sys).ok());
        let drivers = stelia_kernel::dra::cpu_drivers(root, &folder).into_iter();
        Self {
            texts: texts.collect(),
            systemd: systemd(root),
            exclusive: has_exclusive(&sys.join("fs/cgroup")),
            topology: Topology::read(&sys).map_err(|error| error.to_string()),
            stopped: stopped.then(|| config::kubeadm(root)).flatten().map(|(_, read)| read),
            home: match (home.map(|path| without_root(root, &path)), &kubelet) {
                (Ok(read), Ok(kubelet)) if real(&read) != real(&kubelet.root_dir) => {
                    let written = kubelet.root_dir.display();
                    Err(format!("{} is read, but kubelet writes to {written}", read.display()))
                }
                (home, _) => home,
            },
            allocator: settings.policies.allocator,
            low_quotas: vms::low_quotas(root, files.cpus.as_ref().ok().and_then(Option::as_ref)),
            files,
            machine: as_kubelet.map(|(topology, numa)| machine(&topology, &topology.caches(&sys), &numa)),
            dra: drivers.map(|(name, path)| (name, without_root(root, &path))).collect(),
            misplaced: kubelet::misplaced(&proc),
            has_plugin_folder: plugins
                .try_exists()
                .map_err(|cause| format!("read {}: {cause}", plugins.display())),
            kubelet,
            units: BTreeMap::new(),
            described,
        }
    }

    /// What systemd says of this host's services; nothing where it does not answer.
    pub(super) async fn read_units(&mut self) {
        let text = printed("systemctl show --property=Id,ActiveState,StatusText steliad steliad-device-plugin").await;
        self.units = parse_units(&text.unwrap_or_default());
    }

    /// What one of the files has; empty where it is not there.
    pub(super) fn text(&self, file: &str) -> &str {
        self.texts.get(file).map_or("", String::as_str)
    }

    pub(super) fn has(&self, file: &str) -> bool {
        self.texts.contains_key(file)
    }

    pub(super) fn kubelet(&self) -> Result<&KubeletConfig, &'static str> {
        self.kubelet.as_ref().map_err(|_| KUBELET)
    }

    pub(super) fn description(&self) -> Result<&Description, &'static str> {
        self.described.as_ref().map_err(|_| DAEMON)
    }

    /// `cpu_manager_state`, where it is there and can be used.
    pub(super) fn state(&self) -> Option<&CpuManagerState> {
        self.files.cpus.as_ref().ok().and_then(Option::as_ref)
    }
}

/// Lines `NAME=VALUE`, and an empty one between two units.
pub(super) fn parse_units(text: &str) -> BTreeMap<String, (String, String)> {
    let units = text.split("\n\n").filter_map(|unit| {
        let value = |name| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let state = (
            value("ActiveState")?.to_owned(),
            value("StatusText").unwrap_or_default().to_owned(),
        );
        Some((value("Id")?.to_owned(), state))
    });
    units.collect()
}

/// PID 1 maps `libsystemd-shared-<version>[.suffix].so`.
pub(crate) fn systemd(root: &Path) -> Option<u32> {
    let libraries = ["lib*/systemd", "lib/*-linux-gnu/systemd"]
        .into_iter()
        .filter_map(|folder| {
            let pattern = root.join("usr").join(folder).join("libsystemd-shared-*");
            glob::glob(pattern.to_str()?).ok()
        });
    libraries.flatten().flatten().find_map(|path| {
        let version = path.file_name()?.to_str()?.strip_prefix("libsystemd-shared-")?;
        version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

/// The root cgroup does not have the file, so it is looked for in any child with a cpuset.
fn has_exclusive(cgroup: &Path) -> Option<bool> {
    let mut children = fs::read_dir(cgroup).ok()?.flatten().map(|entry| entry.path());
    let child = children.find(|path| path.join("cpuset.cpus.partition").exists())?;
    Some(child.join("cpuset.cpus.exclusive").exists())
}
