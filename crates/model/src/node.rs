//! The node as the engine last saw it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stelia_api::ledger::LedgerSummary;
use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_cpus::text::named;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, HeldCpus};
use stelia_kubelet::cpu_manager_state::Entries;
use stelia_kubelet::{PodName, PodUid};

use crate::{Instance, Job, members};

/// The node; `Default` is one of which nothing is known. What is large or changes seldom is shared between one view and the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What chooses exclusive CPUs.
    pub cpu_source: CpuSource,
    /// The shared pool, kubelet's or steliad's; `None` while kubelet's file cannot be used.
    pub pool: Option<CpuSet>,
    /// `None` where kubelet chooses.
    pub pools: Option<Arc<Pools>>,
    /// Why kubelet's file cannot be used; `None` where it can.
    pub kubelet_problem: Option<String>,
    /// Keys of kubelet's file that are not known, beside entries that are followed.
    pub kubelet_unknown_keys: Vec<String>,
    /// That systemd has not answered for more than 5 s, and about which unit; `None` while it answers.
    pub systemd_problem: Option<String>,
    /// Why the node is not watched, and is read every 2 s instead; `None` while the node is watched.
    pub watch_problem: Option<String>,
    /// Why KVM's events cannot be received, so that VMs to adopt are looked for every 5 s; `None` while they are, and without a rule.
    pub kvm_problem: Option<String>,
    /// kubelet's exclusive CPUs by pod and container, instances or not.
    pub entries: Arc<Entries>,
    /// kubelet's CPUs of whole pods (pod-level resources).
    pub pod_entries: Arc<BTreeMap<PodUid, CpuSet>>,
    /// Every CPU that an entry of kubelet's names, of whatever schema.
    pub kubelet_cpus: CpuSet,
    /// kubelet's CPU manager policy, as its file has it; `None` while that cannot be used.
    pub kubelet_policy: Option<String>,
    /// When kubelet last wrote its file; `None` without one.
    pub kubelet_modified_us: Option<u64>,
    /// The online CPUs.
    pub topology: Arc<Topology>,
    /// CPUs that are present and not online.
    pub offline: CpuSet,
    /// `cpuset.cpus.exclusive` of stelia.slice.
    pub slice_exclusive: CpuSet,
    /// Whether this kernel has `cpuset.cpus.exclusive`, without which VMs are `pinned`; `None` before the first instance, as
    /// the slice has no cpuset files then.
    pub partitions: Option<bool>,
    /// Units outside stelia.slice that are restricted for pinned instances, with their cpuset before.
    pub restricted: BTreeMap<String, String>,
    /// Drift since the daemon started.
    pub counters: Counters,
    /// The last pass that came to its end.
    pub last_pass: Option<LastPass>,
    /// By pod UID.
    pub instances: BTreeMap<PodUid, Arc<Instance>>,
    /// The VMs that were released or ended last, the newest first.
    pub former: Arc<Vec<FormerVm>>,
    /// The last rebind jobs.
    pub jobs: Vec<Job>,
    /// Scopes whose record cannot be used, with the reason; the daemon does not touch them.
    pub unreadable: Vec<(String, String)>,
    /// VMs that a rule is of and that are not adopted.
    pub unadopted: Arc<Vec<Unadopted>>,
    /// What is done about device interrupts and other disturbances (`docs/quiet-cpus.md`).
    pub quiet: Arc<Quiet>,
    /// Who ran on the VMs' CPUs (`docs/ledger.md`).
    pub ledger: Arc<LedgerSummary>,
    /// Whether the file for the cluster's publisher is current.
    pub publishing: Arc<Publishing>,
    /// How many VMs the node has room for ([`Self::room_for_vms`]); 0 where it is not known. In no description: a client reads the property.
    #[serde(skip)]
    pub vm_capacity: u32,
}

/// How many former VMs are remembered.
const MAX_FORMER: usize = 64;

impl Node {
    /// Remembers a VM that is none any more.
    pub fn remember(&mut self, was: &Instance, ended_us: u64) {
        let former = FormerVm {
            pod: was.pod.clone(),
            pod_name: was.pod_name.clone(),
            cpus: was.exclusive.clone(),
            ended_us,
        };
        let all = Arc::make_mut(&mut self.former);
        all.insert(0, former);
        all.truncate(MAX_FORMER);
    }

    /// The unassigned CPUs; empty while kubelet's file cannot be used.
    pub fn shared_cpus(&self) -> CpuSet {
        let instances = self.instances.values();
        let owned: CpuSet = instances.flat_map(|instance| instance.exclusive.iter()).collect();
        let pool = self.pool.as_ref();
        pool.map(|pool| pool.difference(&owned)).unwrap_or_default()
    }
}

/// The online CPUs as steliad's allocator divides them, and what that was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// The setting `reserved-cpus`: never allocated, part of the shared pools.
    pub reserved: CpuSet,
    /// CPUs that kubelet's static CPU manager assigned, or had assigned to containers that still run: never allocated,
    /// in no pool.
    pub kubelet: CpuSet,
    /// The node's own choices.
    pub policies: AllocatorPolicies,
    /// CPUs of instances with an exclusive policy.
    pub held: HeldCpus,
    #[serde(flatten)]
    pub pools: stelia_koordinator::allocator::Pools,
}

/// Drift: what another program changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub drift_found: u64,
    /// Those repaired in the pass that found them.
    pub drift_repaired: u64,
}

/// What the last pass did, in all its rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPass {
    /// Counted since the daemon started.
    pub number: u32,
    /// What asked for it.
    pub trigger: Trigger,
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

named! {
    /// What makes a pass happen.
    pub enum Trigger {
        /// inotify, systemd or a timer.
        Event = "event",
        Audit = "audit",
        Call = "call",
        Reload = "reload",
    }
}

/// A VM that was released, and may run on without isolation, or has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerVm {
    pub pod: PodUid,
    /// `None` where the runtime did not tell it.
    #[serde(flatten, with = "members::pod_name")]
    pub pod_name: Option<PodName>,
    /// Its exclusive CPUs.
    pub cpus: CpuSet,
    pub ended_us: u64,
}

/// A VM or container to which a rule applies and that is not adopted (`docs/adopt.md`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unadopted {
    pub pod: PodUid,
    /// `None` where the runtime does not tell it.
    #[serde(flatten, with = "members::pod_name")]
    pub pod_name: Option<PodName>,
    pub container: String,
    /// The rule's name.
    pub rule: String,
    /// The name of the reason: one of the rules', or of the error that registration answers.
    pub reason: String,
    pub text: String,
    /// When it was first refused.
    pub since_us: u64,
}
