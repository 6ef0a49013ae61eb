//! What kubelet's next start and its admissions depend on: its state files, and the machine as kubelet sees it.

use std::collections::BTreeMap;
use std::path::Path;

use stelia_cpus::Topology;
use stelia_kubelet::checkpoint::CPU_MANAGER_STATE;
use stelia_kubelet::config::{Flags, Fragment, KubeletConfig};
use stelia_kubelet::devices::DEVICE_MANAGER_STATE;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, DeviceManagerState, MemoryManagerState};
use stelia_node_report::numa;

use crate::{input, plan};

/// The path of kubelet's configuration on nodes set up by kubeadm.
pub(super) const KUBEADM: &str = "/var/lib/kubelet/config.yaml";
/// A longer file is not taken for a configuration, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Plain values; an error says why one could not be read. `None`: the state file does not exist.
#[derive(Debug, Clone)]
pub(crate) struct KubeletFiles {
    /// kubeadm's file, where no kubelet runs: one that cannot start runs only for moments.
    pub stopped: Option<KubeletConfig>,
    pub cpus: Result<Option<CpuManagerState>, String>,
    pub memory: Result<Option<MemoryManagerState>, String>,
    pub devices: Result<Option<DeviceManagerState>, String>,
    pub numa: Result<BTreeMap<u32, numa::NumaNode>, String>,
    pub caches: BTreeMap<u32, u32>,
}

impl KubeletFiles {
    /// Reads the files; `folder` is kubelet's root directory below `root`. `stopped`: no kubelet runs.
    pub(super) fn read(root: &Path, folder: &Path, stopped: bool, topology: Option<&Topology>) -> Self {
        let sys = root.join("sys");
        let devices = folder.join("device-plugins").join(DEVICE_MANAGER_STATE);
        Self {
            stopped: stopped.then(|| kubeadm(root)).flatten(),
            cpus: plan::state(&folder.join(CPU_MANAGER_STATE), CpuManagerState::parse),
            memory: plan::state(&folder.join(MEMORY_MANAGER_STATE), MemoryManagerState::parse),
            devices: plan::state(&devices, DeviceManagerState::parse),
            numa: numa::read(&sys).map_err(|error| error.to_string()),
            caches: topology.map(|topology| topology.caches(&sys)).unwrap_or_default(),
        }
    }
}

/// The configuration of a kubelet set up by kubeadm, from its file alone.
fn kubeadm(root: &Path) -> Option<KubeletConfig> {
    let text = input::text(&root.join(KUBEADM.trim_start_matches('/')), MAX_BYTES).ok()?;
    let fragment = Fragment::parse(&text, KUBEADM).ok()?;
    KubeletConfig::new([fragment], Flags::default()).ok()
}
