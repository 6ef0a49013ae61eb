//! What steliad's own allocator gave, as the daemon describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;

/// What an instance asked of steliad's own allocator, and what became of it. The names are the allocator's; a newer daemon may
/// have others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct Allocation {
    /// LSE, LSR, LS or BE.
    #[serde(rename(serialize = "Class"))]
    pub qos: String,
    /// How many CPUs of its own.
    #[serde(rename(serialize = "Count"))]
    pub cpus: u32,
    /// The bind policy.
    #[serde(rename(serialize = "BindPolicy"))]
    pub bind: String,
    /// Whether it is required, by the node or by the pod.
    #[serde(rename(serialize = "BindPolicyRequired"))]
    pub required: bool,
    /// The exclusive policy.
    #[serde(rename(serialize = "ExclusivePolicy"))]
    pub exclusive: String,
    /// The allocate strategy.
    #[serde(rename(serialize = "AllocateStrategy"))]
    pub strategy: String,
    /// The alignment policy.
    #[serde(rename(serialize = "AlignmentPolicy"))]
    pub alignment: String,
    /// The pod's CPU limit in thousandths of a CPU; 0: none was asked for.
    #[serde(rename(serialize = "LimitMilliCPU"))]
    pub limit_milli: u64,
    /// The NUMA node whose shared pool it runs on; absent: the pool of all.
    #[serde(rename(serialize = "NUMANode"))]
    pub numa_node: Option<u32>,
    /// What became of the exclusive policy: `not-asked`, `kept`, `downgraded` or `dropped`.
    #[serde(rename(serialize = "Exclusivity"))]
    pub exclusivity: String,
    /// How the allocator came to its answer.
    pub explanation: Vec<String>,
}

/// The online CPUs as steliad's own allocator divides them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct Pools {
    /// Never allocated; in the shared pools.
    pub reserved: CpuSet,
    /// What kubelet still holds: never allocated, in no pool.
    pub kubelet: CpuSet,
    /// What a new instance with CPUs of its own may get.
    pub allocatable: CpuSet,
    /// CPUs of LSE, LSR and of kubelet's pods.
    pub exclusive: CpuSet,
    /// Where LS and Burstable pods run.
    pub shared: CpuSet,
    /// The same by NUMA node.
    pub shared_by_node: BTreeMap<u32, SharedPool>,
    /// Where BE and BestEffort pods run.
    #[serde(rename(serialize = "BEShared"))]
    pub be_shared: CpuSet,
}

/// A NUMA node's part of the shared pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct SharedPool {
    /// The socket it is in.
    pub socket: u32,
    /// Its CPUs; may be none.
    #[serde(rename(serialize = "CPUs"))]
    pub cpus: CpuSet,
}
