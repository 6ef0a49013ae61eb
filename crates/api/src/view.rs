//! What `Describe` answers, as JSON: the daemon writes it, steliactl reads it.
//!
//! A field that an older daemon does not send is empty; fields that only a newer one sends are ignored. States, classes
//! and policies are text, so that words of a newer daemon are shown as they are. Times are microseconds since the
//! epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stelia_cpus::{CpuSet, Topology};

use crate::ledger::LedgerSummary;
use crate::metrics::Counted;
use crate::publishing::Publishing;
use crate::quiet::Quiet;
use crate::reason::Reason;

/// The answer. `L` is `stelia_node::locality::Localities`, which this crate cannot name: stelia-node depends on it. `N` is
/// [`Node`], or what the daemon writes as such.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description<L, N = Node> {
    pub version: String,
    /// As the engine last saw it.
    pub node: N,
    /// The running kubelet's configuration under kubelet's own names, or `problem`: why it is not known.
    pub kubelet_config: Value,
    /// The NUMA nodes of each instance's CPUs, memory and devices.
    pub locality: L,
    /// What each instance uses, by pod.
    pub usage: BTreeMap<String, Usage>,
    /// Counted since the daemon started.
    pub metrics: Counted,
}

impl<L> Description<L> {
    /// kubelet's `reservedSystemCPUs`; empty where its configuration is not known.
    pub fn kubelet_reserved(&self) -> CpuSet {
        let reserved = self.kubelet_config.get("reservedSystemCPUs").and_then(Value::as_str);
        reserved.and_then(|list| list.parse().ok()).unwrap_or_default()
    }
}

/// The node; `Default` is one of which nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// What chooses exclusive CPUs: `kubelet` or `steliad`. `None`: the daemon is older than the setting `cpu-source`.
    pub cpu_source: Option<String>,
    /// The shared pool, kubelet's or steliad's; `None` while kubelet's file cannot be used.
    pub pool: Option<CpuSet>,
    /// `None` where kubelet chooses.
    pub pools: Option<Pools>,
    /// Why kubelet's file cannot be used; `None` where it can.
    pub kubelet_problem: Option<String>,
    /// That systemd has not answered for more than 5 s, and about which unit; `None` while it answers.
    pub systemd_problem: Option<String>,
    /// kubelet's exclusive CPUs by pod and container, instances or not.
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// kubelet's CPUs of whole pods (pod-level resources).
    pub pod_entries: BTreeMap<String, CpuSet>,
    /// Every CPU that an entry of kubelet's names, of whatever schema.
    pub kubelet_cpus: CpuSet,
    /// kubelet's CPU manager policy, as its file has it.
    pub kubelet_policy: Option<String>,
    /// When kubelet last wrote its file.
    pub kubelet_modified_us: Option<u64>,
    /// The online CPUs.
    pub topology: Topology,
    /// CPUs that are present and not online.
    pub offline: CpuSet,
    /// `cpuset.cpus.exclusive` of stelia.slice.
    pub slice_exclusive: CpuSet,
    /// Whether this kernel has `cpuset.cpus.exclusive`, without which VMs are `contained`; `None` before the first
    /// instance.
    pub partitions: Option<bool>,
    /// Units outside stelia.slice that are restricted for contained instances, with their cpuset before.
    pub restricted: BTreeMap<String, String>,
    /// Drift since the daemon started.
    pub counters: Counters,
    /// The last pass that came to its end.
    pub last_pass: Option<LastPass>,
    /// By pod UID.
    pub instances: BTreeMap<String, Instance>,
    /// The last rebind jobs, as the Job objects have them.
    pub jobs: Vec<Value>,
    /// Scopes whose record cannot be used, with the reason; the daemon does not touch them.
    pub unreadable: Vec<(String, String)>,
    /// VMs that a rule is of and that are not adopted; empty also where the daemon is older.
    pub unadopted: Vec<Unadopted>,
    /// What is done about device interrupts and other disturbances (`docs/quiet-cpus.md`).
    pub quiet: Quiet,
    /// Who ran on the VMs' CPUs (`docs/ledger.md`); `None`: the daemon is older.
    pub ledger: Option<LedgerSummary>,
    /// Whether the file for the cluster's publisher is current; `None`: the daemon is older.
    pub publishing: Option<Publishing>,
}

/// Drift: what another program changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub drift_found: u64,
    /// Those repaired in the pass that found them.
    pub drift_repaired: u64,
}

/// What the last pass did, in all its rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastPass {
    /// Counted since the daemon started.
    pub number: u32,
    /// What asked for it: audit, event, call or reload.
    pub trigger: String,
    pub ended_us: u64,
    /// Microseconds.
    pub duration_us: u64,
    pub steps: u32,
    /// Writes to cgroup files.
    pub writes: u32,
    /// Processes and threads moved between cgroups.
    pub moves: u32,
    pub failures: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    pub pod: String,
    /// Empty, as `pod_name` is, where the runtime does not tell it.
    pub pod_namespace: String,
    pub pod_name: String,
    /// The container's name in kubelet's state.
    pub container: String,
    /// The rule that made it an instance; empty where its pod registered itself.
    pub adopted_by: String,
    /// The D-Bus property `State`.
    pub state: String,
    /// The reasons of degradation; empty where there are none.
    pub degraded: Vec<String>,
    /// The same with their kinds; empty also where the daemon is older.
    pub reasons: Vec<ReasonOf>,
    /// The instance's exclusive CPUs.
    pub exclusive: CpuSet,
    /// What steliad's allocator gave it; `None` where kubelet chose its CPUs.
    pub allocation: Option<Allocation>,
    /// `cpuset.cpus` of its float.
    pub float: CpuSet,
    /// What decided which CPUs these are: `pod-pool`, `near`, `too-few-near`, `pool`, `node-pool`, `be-pool`, `spare`,
    /// `until-attached` or `kept`; empty: the daemon is older.
    pub float_reason: String,
    /// Why it is contained: `class`, `no-partitions`, `setting`, `rule` or `refused`; `None` unless it is.
    pub contained_reason: Option<String>,
    /// The pod's own memory nodes, as `cpuset.mems` has them.
    pub mems: String,
    /// `cpuset.cpus.partition` of its `vcpu/`.
    pub partition: String,
    pub placement: String,
    /// The scope's cgroup, relative to the cgroup root.
    pub scope: String,
    /// The container's own cgroup, relative to the cgroup root.
    pub origin: String,
    /// When it was registered.
    pub registered_us: u64,
    /// When its vCPUs were isolated; 0 before.
    pub isolated_us: u64,
    /// The vCPU threads, and I/O threads that are pinned.
    pub vcpus: Vec<VcpuThread>,
}

/// A VM that a rule is of and that is not adopted (`docs/adopt.md`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unadopted {
    pub pod: String,
    /// Empty, as `pod_name` is, where the runtime does not tell it.
    pub pod_namespace: String,
    pub pod_name: String,
    pub container: String,
    /// The rule's name.
    pub rule: String,
    /// The name of the reason: one of the rules', or of the error that registration answers.
    pub reason: String,
    pub text: String,
    /// When it was first refused.
    pub since_us: u64,
}

/// A reason of degradation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReasonOf {
    /// By the name of [`ReasonKind`](crate::ReasonKind).
    pub kind: String,
    pub text: String,
    /// Whether it is of the whole node: each instance it concerns has it in the same words.
    pub of_node: bool,
}

impl From<&Reason> for ReasonOf {
    fn from(reason: &Reason) -> Self {
        Self {
            kind: reason.kind.name().to_owned(),
            text: reason.text.clone(),
            of_node: reason.pod.is_none(),
        }
    }
}

impl Instance {
    /// Its QoS class; empty where kubelet chose its CPUs.
    pub fn class(&self) -> &str {
        self.allocation.as_ref().map_or("", |allocation| &allocation.qos)
    }
}

/// A pinned thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VcpuThread {
    /// The guest's number of the vCPU; from 2³¹ on it is an I/O thread.
    pub index: u32,
    /// The thread on the host.
    pub task: Task,
    /// The CPU it is pinned to; `None`: it may use all of the instance's.
    pub cpu: Option<u32>,
    /// The guest's NUMA node, of a vCPU; `None` where QEMU has none for the guest.
    pub guest_node: Option<u32>,
}

/// A thread that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// Its number on the host.
    pub id: i32,
    /// When it started, clock ticks since boot.
    pub start: u64,
}

/// What an instance asked of steliad's allocator, and what it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// LSE, LSR, LS or BE.
    pub qos: String,
    /// How many exclusive CPUs; 0 for LS and BE.
    pub cpus: u32,
    pub bind: String,
    /// Whether the node or the pod requires the bind policy.
    pub required: bool,
    pub exclusive: String,
    pub strategy: String,
    pub alignment: String,
    /// The pod's CPU limit in thousandths of a CPU; 0: none.
    pub limit_milli: u64,
    /// The NUMA node whose shared pool it runs on; `None`: the pool of all.
    pub numa_node: Option<u32>,
    /// Whether the exclusive policy is satisfied: `not-asked`, `kept`, `downgraded` or `dropped`.
    pub exclusivity: String,
    /// Why the allocator chose these CPUs, line by line.
    pub explanation: Vec<String>,
}

/// The online CPUs as steliad's allocator divides them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    /// The setting `reserved-cpus`: never allocated, part of the shared pools.
    pub reserved: CpuSet,
    /// CPUs that kubelet's static CPU manager assigned, or had assigned to containers that still run: never allocated,
    /// in no pool.
    pub kubelet: CpuSet,
    pub policies: Value,
    /// CPUs of instances with an exclusive policy.
    pub held: Value,
    /// What a new LSE or LSR instance may get.
    pub allocatable: CpuSet,
    /// CPUs of LSE, LSR and of kubelet's pods.
    pub exclusive: CpuSet,
    /// Where LS and Burstable pods run.
    pub shared: CpuSet,
    /// `shared` by NUMA node.
    pub shared_by_node: BTreeMap<u32, SharedPool>,
    /// Where BE and BestEffort pods run.
    pub be_shared: CpuSet,
}

/// A NUMA node's part of the shared pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedPool {
    /// The socket it is in.
    pub socket: u32,
    pub cpus: CpuSet,
}

/// What an instance uses now, in its scope and in the container's own cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// `memory.current` of the scope, bytes.
    pub memory_bytes: u64,
    /// `memory.current` of the container's own cgroup, bytes: what was charged before the move stays there.
    pub origin_memory_bytes: u64,
    /// `usage_usec` of the scope's `cpu.stat`, microseconds.
    pub cpu_usec: u64,
}
