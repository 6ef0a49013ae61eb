//! kubelet's settings, as KubeletConfiguration names them.

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_cpus::CpuSet;

use super::cpus::{self, Kubelet};
use super::merge;

/// kubelet's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// `cpuManagerPolicy`
    pub cpu_manager: CpuManager,
    /// `memoryManagerPolicy`
    pub memory_manager: MemoryManager,
    /// `topologyManagerPolicy`
    pub topology_policy: merge::Policy,
    /// `topologyManagerScope`
    pub topology_scope: merge::Scope,
    /// `topologyManagerPolicyOptions`
    pub topology_options: merge::MergeOptions,
    /// Differences between kubelets, feature gates included.
    #[serde(skip)]
    pub kubelet: Kubelet,
}

impl Default for Settings {
    /// kubelet's defaults.
    fn default() -> Self {
        Self {
            cpu_manager: CpuManager::None,
            memory_manager: MemoryManager::None,
            topology_policy: merge::Policy::None,
            topology_scope: merge::Scope::Container,
            topology_options: merge::MergeOptions::default(),
            kubelet: Kubelet::default(),
        }
    }
}

impl Settings {
    /// Whether kubelet starts with the settings of both its managers: `align-by-socket` does not go with `single-numa-node`. What a manager
    /// requires of its own settings alone is not checked here.
    pub fn go_together(&self) -> bool {
        let by_socket = matches!(&self.cpu_manager, CpuManager::Static { options, .. } if options.align_by_socket);
        !(by_socket && self.topology_policy == merge::Policy::SingleNumaNode)
    }
}

/// `cpuManagerPolicy`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "policy", rename_all = "lowercase")]
pub enum CpuManager {
    /// No container has exclusive CPUs.
    None,
    /// Guaranteed containers of whole CPUs have them to themselves.
    Static {
        /// `cpuManagerPolicyOptions`
        options: cpus::CpuOptions,
        /// How many CPUs are reserved: `kubeReserved` and `systemReserved` together, rounded up.
        count: usize,
        /// The CPUs of `reservedSystemCPUs`. Empty: kubelet chooses `count` CPUs.
        reserved: CpuSet,
    },
}

impl CpuManager {
    /// The static policy with these CPUs reserved.
    pub fn reserving(options: cpus::CpuOptions, reserved: CpuSet) -> Self {
        Self::Static {
            options,
            count: reserved.len(),
            reserved,
        }
    }
}

/// `memoryManagerPolicy`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "policy")]
pub enum MemoryManager {
    /// Memory is not bound to NUMA nodes.
    None,
    /// Memory of Guaranteed pods is bound to NUMA nodes.
    Static {
        /// `reservedMemory`: bytes by NUMA node and [kind](super::memory::kind).
        reserved: BTreeMap<u32, BTreeMap<String, u64>>,
    },
}
