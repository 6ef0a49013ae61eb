//! What `Describe` answers, as JSON. Times are microseconds since the epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stelia_api::Reason;
use stelia_api::metrics::Counted;
use stelia_cpus::CpuSet;
use stelia_kernel::locality::Localities;
use stelia_kubelet::PodUid;

use crate::Node;

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub version: String,
    /// What is wrong on the node.
    pub problems: Vec<Reason>,
    /// As the engine last saw it.
    pub node: Node,
    /// The running kubelet's configuration under kubelet's own names, or `problem`: why it is not known.
    pub kubelet_config: Value,
    /// The NUMA nodes of each instance's CPUs, memory and devices.
    pub locality: Localities,
    /// What each instance uses, by pod.
    pub usage: BTreeMap<PodUid, Usage>,
    /// Counted since the daemon started.
    pub metrics: Counted,
}

impl Description {
    /// kubelet's `reservedSystemCPUs`; empty where its configuration is not known.
    pub fn kubelet_reserved(&self) -> CpuSet {
        let reserved = self.kubelet_config.get("reservedSystemCPUs").and_then(Value::as_str);
        reserved.and_then(|list| list.parse().ok()).unwrap_or_default()
    }
}

/// What an instance uses now, in its scope and in the container's own cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// `memory.current` of the scope, bytes.
    pub memory_bytes: u64,
    /// `memory.current` of the container's own cgroup, bytes: what was charged before the move stays there.
    pub origin_memory_bytes: u64,
    /// `usage_usec` of the scope's `cpu.stat`, microseconds.
    pub cpu_usec: u64,
}
