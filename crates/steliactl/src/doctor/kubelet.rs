//! What kubelet finds at its next start and goes through at an admission: its state files, and the machine as it sees it.

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

/// Where kubeadm puts kubelet's configuration.
pub(super) const KUBEADM: &str = "/var/lib/kubelet/config.yaml";
/// A longer file is no configuration, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Plain values; what could not be read says why. A state file that is not there is none.
#[derive(Debug, Clone)]
pub(crate) struct KubeletFiles {
    /// What kubeadm's file says, where no kubelet runs: one that cannot start runs only now and then.
    pub stopped: Option<KubeletConfig>,
    pub cpus: Result<Option<CpuManagerState>, String>,
    pub memory: Result<Option<MemoryManagerState>, String>,
    pub devices: Result<Option<DeviceManagerState>, String>,
    pub numa: Result<BTreeMap<u32, numa::NumaNode>, String>,
    pub caches: BTreeMap<u32, u32>,
}

impl KubeletFiles {
    /// Read them; `folder` is kubelet's root directory below `root`. With `stopped` no kubelet runs.
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

/// The configuration of a kubelet that kubeadm set up, as far as its file has it.
fn kubeadm(root: &Path) -> Option<KubeletConfig> {
    let text = input::text(&root.join(KUBEADM.trim_start_matches('/')), MAX_BYTES).ok()?;
    let fragment = Fragment::parse(&text, KUBEADM).ok()?;
    KubeletConfig::new([fragment], Flags::default()).ok()
}
