//! What kubelet's next start and its admissions depend on: its state files, and the machine as kubelet sees it.

use std::collections::BTreeMap;
use std::path::Path;

use stelia_cpus::Topology;
use stelia_koordinator::report::numa;
use stelia_kubelet::allocated_pods::{ACTUATED_PODS_STATE, ALLOCATED_PODS_STATE};
use stelia_kubelet::config::{self, ConfigError, KubeletConfig};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::dra_manager_state::{self, DRA_MANAGER_STATE};
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{AllocatedPods, CpuManagerState, DeviceManagerState, MemoryManagerState};

use crate::shared::files::{UnusableState, kubelet_state};

/// Why kubelet's configuration cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ConfigProblem {
    pub(super) text: String,
    /// Whether kubelet does not start with it.
    pub(crate) keeps_kubelet_from_starting: bool,
}

impl From<ConfigError> for ConfigProblem {
    fn from(error: ConfigError) -> Self {
        Self {
            text: error.in_full(),
            keeps_kubelet_from_starting: error.keeps_kubelet_from_starting(),
        }
    }
}

/// Plain values; an error says why one could not be read. `None`: the state file does not exist.
#[derive(Debug, Clone)]
pub(crate) struct KubeletFiles {
    /// kubeadm's file with its path, where no kubelet runs: one that cannot start runs only for moments.
    pub stopped: Option<(&'static str, Result<KubeletConfig, ConfigProblem>)>,
    pub cpus: Result<Option<CpuManagerState>, UnusableState>,
    pub memory: Result<Option<MemoryManagerState>, UnusableState>,
    /// What is wrong with `allocated_pods_state`, `actuated_pods_state` and `dra_manager_state`, each by its name.
    pub pods: Vec<(&'static str, UnusableState)>,
    pub devices: Result<Option<DeviceManagerState>, UnusableState>,
    pub numa: Result<BTreeMap<u32, numa::KernelNumaNode>, String>,
    pub caches: BTreeMap<u32, u32>,
}

impl KubeletFiles {
    /// Reads the files; `folder` is kubelet's root directory below `root`. `stopped`: no kubelet runs.
    pub(super) fn read(root: &Path, folder: &Path, stopped: bool, topology: Option<&Topology>) -> Self {
        let sys = root.join("sys");
        let pods = [ALLOCATED_PODS_STATE, ACTUATED_PODS_STATE].into_iter();
        let pods = pods.filter_map(|name| Some((name, kubelet_state(&folder.join(name), AllocatedPods::parse).err()?)));
        let claims = kubelet_state(&folder.join(DRA_MANAGER_STATE), dra_manager_state::check).err();
        let claims = claims.map(|unusable| (DRA_MANAGER_STATE, unusable));
        Self {
            pods: pods.chain(claims).collect(),
            stopped: stopped.then(|| kubeadm(root)).flatten(),
            cpus: kubelet_state(&folder.join(CPU_MANAGER_STATE), CpuManagerState::parse),
            memory: kubelet_state(&folder.join(MEMORY_MANAGER_STATE), MemoryManagerState::parse),
            devices: kubelet_state(&device_manager_state(root, folder), DeviceManagerState::parse),
            numa: numa::read(&sys).map_err(|error| error.to_string()),
            caches: topology.map(|topology| topology.caches(&sys)).unwrap_or_default(),
        }
    }
}

fn kubeadm(root: &Path) -> Option<(&'static str, Result<KubeletConfig, ConfigProblem>)> {
    let (place, read) = config::kubeadm(root)?;
    Some((place, read.map_err(ConfigProblem::from)))
}
