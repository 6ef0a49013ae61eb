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
use stelia_kubelet::home::{self, Search};
use stelia_node_plan::machine;
use stelia_settings::Settings;

use super::{DAEMON, KUBELET};
use crate::check::printed;
use crate::shared::daemon::{Description, Failure};
use crate::shared::files::{KubeletFiles, below, without_root};

/// What several checks look at. An error says why it could not be read.
#[derive(Debug)]
pub(super) struct Observed {
    /// `/`, where each check reads the files that it alone looks at.
    pub(super) root: PathBuf,
    /// kubelet's root directory, below `root`.
    pub(super) folder: PathBuf,
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
    /// What systemd says of steliad's services, by unit: its state, and its status as `systemctl status` shows it. Empty: no answer.
    pub(super) units: BTreeMap<&'static str, [String; 2]>,
    pub(super) described: Result<Description, Failure>,
}

impl Observed {
    /// Reads what is in files; `root` is `/`.
    pub(super) fn read(root: &Path, described: Result<Description, Failure>) -> Self {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
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
        let as_kubelet = Topology::read_as_kubelet(&sys).ok().zip(numa::read(&sys).ok());
        Self {
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
            files: KubeletFiles::read(root, &folder),
            machine: as_kubelet.map(|(topology, numa)| machine(&topology, &topology.caches(&sys), &numa)),
            kubelet,
            units: BTreeMap::new(),
            described,
            root: root.to_owned(),
            folder,
        }
    }

    /// What systemd says of this host's services; nothing where it does not answer.
    pub(super) async fn read_units(&mut self) {
        for unit in ["steliad", "steliad-device-plugin"] {
            let show = |property| format!("systemctl show --value --property={property} {unit}");
            if let Ok(state) = printed(&show("ActiveState")).await {
                let status = printed(&show("StatusText")).await.unwrap_or_default();
                self.units
                    .insert(unit, [state, status].map(|text| text.trim().to_owned()));
            }
        }
    }

    /// What is in a file of the node's; empty where it cannot be read.
    pub(super) fn text(&self, file: &str) -> String {
        let text = fs::read_to_string(self.root.join(file)).unwrap_or_default();
        text.trim().to_owned()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        self.root.join(file).exists()
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
