//! What the engine shows to the doors, as plain values. Every turn publishes what it changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::SerializeMap as _;
use stelia_allocator::{Allocation, AllocatorNode, AllocatorPolicies, CpuSource, HeldCpus, Pools};
use stelia_api::ledger::LedgerSummary;
use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_api::view::ReasonOf;
pub use stelia_api::view::{Counters, LastPass, Usage};
use stelia_api::{Error, Reason};
use stelia_cpus::{CpuSet, Topology};
use stelia_decide::{Assessment, ContainedReason, Facts, Instance, Snapshot, allocator, placement_name};
use stelia_kubelet::checkpoint::Entries;
use stelia_kubelet::{CpuManagerState, PodName, PodUid};
use stelia_node::cgroup::{CgroupPath, Cgroups, File};
use stelia_record::{Phase, Record, VcpuThread};
use stelia_settings::{Policies, QuietRequest};

use super::jobs::Job;

/// The whole node as the engine last saw it. In JSON it is [`stelia_api::view::Node`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct View {
    pub cpu_source: CpuSource,
    /// The shared pool, kubelet's or steliad's; `None` when kubelet's file cannot be used.
    pub pool: Option<CpuSet>,
    /// Where steliad chooses the CPUs.
    pub pools: Option<Arc<PoolsView>>,
    /// Why kubelet's file cannot be used.
    pub kubelet_problem: Option<String>,
    /// That systemd has not answered for more than 5 s, and about which unit.
    pub systemd_problem: Option<String>,
    /// The exclusive CPUs of every container, instance or not, as kubelet has them.
    pub entries: Arc<Entries>,
    /// CPUs of whole pods, as kubelet has them (pod-level resources).
    pub pod_entries: Arc<BTreeMap<PodUid, CpuSet>>,
    /// Every CPU that an entry of kubelet names, of whatever schema.
    pub kubelet_cpus: CpuSet,
    /// kubelet's CPU manager policy, as its file has it; `None` when that cannot be used.
    pub kubelet_policy: Option<String>,
    /// When kubelet last wrote its file, microseconds since the epoch; `None` without one.
    pub kubelet_modified_us: Option<u64>,
    /// The host's online CPUs.
    pub topology: Arc<Topology>,
    /// CPUs that are there and not online.
    pub offline: CpuSet,
    /// `cpuset.cpus.exclusive` of stelia.slice.
    pub slice_exclusive: CpuSet,
    /// Whether this kernel has partitions; `None` without an instance, as the slice has no cpuset files then.
    pub partitions: Option<bool>,
    /// Units outside stelia.slice that are restricted for contained instances, with what they had before.
    pub restricted: BTreeMap<String, String>,
    pub counters: Counters,
    pub last_pass: Option<LastPass>,
    pub instances: BTreeMap<PodUid, Arc<InstanceView>>,
    pub jobs: Vec<Job>,
    /// Scopes whose record cannot be used, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// VMs that a rule is of and that are no instances.
    pub unadopted: Arc<Vec<Unadopted>>,
    /// What is done about interrupts and the like.
    pub quiet: Arc<Quiet>,
    /// Who ran on the CPUs of VMs.
    pub ledger: Arc<LedgerSummary>,
    /// Whether the cluster's publisher is told how things are.
    pub publishing: Arc<Publishing>,
}

/// A VM that a rule is of and that is not adopted. In JSON it is [`stelia_api::view::Unadopted`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unadopted {
    pub pod: PodUid,
    /// `None` where the runtime does not tell it.
    #[serde(flatten, serialize_with = "named")]
    pub pod_name: Option<PodName>,
    pub container: String,
    /// The rule's name.
    pub rule: String,
    /// The name of the reason: one of the rules', or of the error that registration answers.
    pub reason: String,
    pub text: String,
    /// When it was first refused, microseconds since the epoch.
    pub since_us: u64,
}

/// The pools of the online CPUs, and the CPUs and policies they were made from. In JSON it is [`stelia_api::view::Pools`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PoolsView {
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// CPUs that kubelet's static CPU manager assigned, or had assigned to containers that still run.
    pub kubelet: CpuSet,
    /// The node's own choices.
    pub policies: AllocatorPolicies,
    pub held: HeldCpus,
    #[serde(flatten)]
    pub pools: Pools,
}

/// One instance, as its D-Bus object shows it. In JSON it is [`stelia_api::view::Instance`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct InstanceView {
    pub pod: PodUid,
    /// `None` where the runtime does not tell it.
    #[serde(flatten, serialize_with = "named")]
    pub pod_name: Option<PodName>,
    /// The container's name in kubelet's state.
    pub container: String,
    /// The rule that made it an instance; `None` where its pod registered itself.
    #[serde(serialize_with = "or_empty")]
    pub adopted_by: Option<String>,
    /// Where it is in its life, by the names of the D-Bus property `State`.
    pub state: &'static str,
    /// The reasons of degradation; empty where there are none. In JSON `degraded` has their texts, `reasons` their kinds too.
    #[serde(flatten, serialize_with = "with_kinds")]
    pub degraded: Vec<Reason>,
    /// Its exclusive CPUs.
    pub exclusive: CpuSet,
    /// How steliad chose the CPUs or the pool; `None` where kubelet chose.
    pub allocation: Option<Allocation>,
    /// `cpuset.cpus` of its float.
    pub float: CpuSet,
    /// What decided which CPUs it floats on.
    pub float_reason: &'static str,
    /// What its pod ordered for its CPUs.
    #[serde(skip)]
    pub quiet: QuietRequest,
    /// Why it is contained; `None` unless it is.
    pub contained_reason: Option<&'static str>,
    /// The pod's own memory nodes, as text.
    pub mems: String,
    /// `cpuset.cpus.partition` of its `vcpu/`.
    pub partition: String,
    pub placement: &'static str,
    pub scope: CgroupPath,
    pub origin: CgroupPath,
    /// Microseconds since the epoch.
    pub registered_us: u64,
    /// Microseconds since the epoch; 0 before isolation.
    pub isolated_us: u64,
    pub vcpus: Vec<PinnedThread>,
}

/// A thread of `vcpu/`, and the guest's NUMA node that a vCPU is of. In JSON it is [`stelia_api::view::VcpuThread`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct PinnedThread {
    #[serde(flatten)]
    pub thread: VcpuThread,
    /// QMP's `node-id`; `None` where QEMU has no NUMA nodes for the guest.
    pub guest_node: Option<u32>,
}

impl PinnedThread {
    fn of(record: &Record) -> Vec<Self> {
        let node = |thread: &VcpuThread| {
            let props = record.props.get(&u32::from(thread.role))?;
            u32::try_from(*props.get("node-id")?).ok()
        };
        let threads = record.vcpus.iter();
        threads
            .map(|thread| Self {
                thread: *thread,
                guest_node: node(thread),
            })
            .collect()
    }
}

/// The members `degraded` and `reasons`.
fn with_kinds<S: serde::Serializer>(reasons: &[Reason], serializer: S) -> Result<S::Ok, S::Error> {
    let kinds: Vec<ReasonOf> = reasons.iter().map(ReasonOf::from).collect();
    let mut members = serializer.serialize_map(Some(2))?;
    members.serialize_entry("degraded", reasons)?;
    members.serialize_entry("reasons", &kinds)?;
    members.end()
}

fn or_empty<S: serde::Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text.as_deref().unwrap_or_default())
}

/// The members `pod_namespace` and `pod_name`, empty where they are not known.
fn named<S: serde::Serializer>(name: &Option<PodName>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut members = serializer.serialize_map(Some(2))?;
    members.serialize_entry("pod_namespace", name.as_ref().map_or("", PodName::namespace))?;
    members.serialize_entry("pod_name", name.as_ref().map_or("", PodName::name))?;
    members.end()
}

impl View {
    /// Show what depends on kubelet's file, the topology and the pools.
    pub(super) fn show_node(&mut self, snapshot: &Snapshot, facts: &Facts, policies: &Policies) {
        let kubelet = snapshot.kubelet.as_ref();
        let held = || kubelet.map(|state| allocator::kubelets(snapshot, facts, state));
        let pools = facts.pools();
        let pool = pools.map(|pools| pools.shared.clone());
        self.cpu_source = snapshot.source;
        self.pool = pool.or_else(|| kubelet.ok().map(CpuManagerState::shared_pool));
        self.pools = pools.map(|pools| {
            Arc::new(PoolsView {
                reserved: policies.allocator.reserved.clone(),
                kubelet: held().unwrap_or_default(),
                policies: policies.allocator.clone(),
                held: allocator::held(snapshot),
                pools: pools.clone(),
            })
        });
        self.kubelet_problem = kubelet.err().cloned();
        self.entries = Arc::new(kubelet.map(|state| state.entries.clone()).unwrap_or_default());
        self.pod_entries = Arc::new(kubelet.map(|state| state.pod_entries.clone()).unwrap_or_default());
        self.kubelet_cpus = held().unwrap_or_default();
        self.kubelet_policy = kubelet.ok().map(|state| state.policy.clone());
        self.topology = Arc::new(snapshot.topology.clone());
    }

    /// Show what any instance may change.
    pub(super) fn show_shared(&mut self, snapshot: &Snapshot) {
        let saved = snapshot.outside.iter();
        self.slice_exclusive = snapshot.slice.exclusive.clone().unwrap_or_default();
        // The slice has no cpuset files at all before the first scope asked for them.
        self.partitions = snapshot.live().next().map(|_| snapshot.has_partitions());
        self.restricted = saved
            .filter_map(|(unit, now)| Some((unit.clone(), now.saved.as_ref()?.to_string())))
            .collect();
        self.unreadable.clone_from(&snapshot.unreadable);
    }
}

impl View {
    /// The node as the allocator sees it.
    ///
    /// # Errors
    /// What RegisterInstance would answer whatever is asked: kubelet chooses, or its file cannot be used.
    pub fn allocator_node(&self) -> Result<AllocatorNode, Error> {
        match (&self.pools, &self.kubelet_problem, self.cpu_source) {
            (Some(pools), _, _) => Ok(AllocatorNode::new(
                &self.topology,
                pools.pools.clone(),
                &pools.held,
                pools.policies.clone(),
            )),
            (None, Some(reason), _) => Err(allocator::kubelet_unknown(reason)),
            (None, None, CpuSource::Kubelet) => Err(stelia_allocator::chosen_by_kubelet()),
            (None, None, CpuSource::Steliad) => Err(allocator::kubelet_unknown("it was not read yet")),
        }
    }

    /// The unassigned CPUs, as a CPU list; empty while kubelet's file cannot be used.
    pub fn shared_cpus(&self) -> String {
        let instances = self.instances.values();
        let owned: CpuSet = instances.flat_map(|instance| instance.exclusive.iter()).collect();
        let pool = self.pool.as_ref();
        pool.map(|pool| pool.difference(&owned).to_string()).unwrap_or_default()
    }
}

impl InstanceView {
    /// An instance without anything, for tests of those who show it.
    #[cfg(test)]
    pub(crate) fn registered(pod: PodUid) -> Self {
        Self {
            pod,
            pod_name: None,
            container: String::new(),
            adopted_by: None,
            state: Phase::Floating.name(),
            degraded: Vec::new(),
            exclusive: CpuSet::new(),
            allocation: None,
            float: CpuSet::new(),
            float_reason: stelia_decide::float::FloatReason::Pool.name(),
            quiet: QuietRequest::default(),
            contained_reason: None,
            mems: String::new(),
            partition: String::new(),
            placement: "linear",
            scope: CgroupPath::slice(),
            origin: CgroupPath::slice(),
            registered_us: 0,
            isolated_us: 0,
            vcpus: Vec::new(),
        }
    }

    pub(super) fn of(instance: &Instance, assessment: &Assessment) -> Self {
        let record = &instance.record;
        Self {
            pod: record.pod.clone(),
            pod_name: instance.pod_name.clone(),
            container: record.container.clone(),
            adopted_by: record.adopted.as_ref().map(|adopted| adopted.rule.clone()),
            state: if assessment.must_float || assessment.blocked.is_some() {
                Phase::Floating.name()
            } else {
                record.phase.state()
            },
            degraded: assessment.degraded.clone(),
            exclusive: record.exclusive.clone(),
            allocation: record.allocation.clone(),
            float: instance.float().map(|leaf| leaf.cpus.clone()).unwrap_or_default(),
            float_reason: assessment.float_reason.name(),
            quiet: record.quiet.clone(),
            contained_reason: assessment
                .contained
                .filter(|_| !assessment.must_float && assessment.blocked.is_none())
                .map(ContainedReason::name),
            mems: record.mems.clone(),
            partition: instance.vcpu().map(|leaf| leaf.partition.clone()).unwrap_or_default(),
            placement: placement_name(record),
            scope: instance.scope().clone(),
            origin: record.origin.clone(),
            registered_us: record.registered_us,
            isolated_us: record.isolated_us,
            vcpus: PinnedThread::of(record),
        }
    }
}

/// Read what every instance uses. What cannot be read counts as 0: an instance may end at any moment.
pub fn usage(cgroups: &dyn Cgroups, view: &View) -> BTreeMap<PodUid, Usage> {
    let memory = |cgroup: &CgroupPath| {
        let text = cgroups.read(cgroup, File::MemoryCurrent).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    let cpu = |cgroup: &CgroupPath| {
        let text = cgroups.read(cgroup, File::CpuStat).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let one = |instance: &InstanceView| Usage {
        memory_bytes: memory(&instance.scope),
        // In place it is the same cgroup.
        origin_memory_bytes: if instance.origin == instance.scope {
            0
        } else {
            memory(&instance.origin)
        },
        cpu_usec: cpu(&instance.scope),
    };
    let instances = view.instances.iter();
    instances.map(|(pod, instance)| (pod.clone(), one(instance))).collect()
}
