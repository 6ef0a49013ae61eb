//! The node in one attribute of our own: what a scheduler needs that places VMs on whole cores, in some 2 kB at 256
//! CPUs and 32 VMs, where Koordinator's annotations need some 17 kB.
//!
//! The value is JSON. `v` is the version: it is raised when a field changes its meaning, and whoever reads ignores fields
//! that it does not know.

mod runs;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::marker::PhantomData;

use crate::allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HeldCpus, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy, Qos, RequiredBind,
};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stelia_cpus::text::excerpt;
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::PodUid;

use crate::report::numa::KernelNumaNode;
use crate::report::{Alignment, Allocator, Facts, Kubelet, Managers, annotations};

/// The attribute's name.
pub const ATTRIBUTE: &str = "isolation.stelia.io/node";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// The longest value that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 18;
/// The most NUMA nodes whose memory is read.
const MAX_GROUPS: usize = 1024;

/// What the attribute says of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compact {
    /// The online CPUs. Cores are counted over the whole host, as lscpu(1) counts.
    #[serde(with = "runs")]
    pub topology: Topology,
    /// CPUs that are never allocated.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub reserved: CpuSet,
    /// CPUs that are neither reserved nor a pod's own.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub free: CpuSet,
    /// CPUs that are reserved and a pod's own all the same.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub held: CpuSet,
    /// kubelet's `cpuManagerPolicy`.
    #[serde(rename = "policy")]
    pub cpu_policy: String,
    /// kubelet's `cpuManagerPolicyOptions`.
    #[serde(rename = "options", default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(deserialize_with = "unique")]
    pub cpu_options: BTreeMap<String, String>,
    /// What its managers decide by besides.
    #[serde(rename = "kubelet", default, skip_serializing_if = "is_default")]
    pub managers: Managers,
    /// Where steliad chooses the CPUs.
    #[serde(rename = "allocator", default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// The pods that have CPUs of their own, with these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "unique")]
    pub pods: BTreeMap<PodUid, CpuSet>,
    /// Those of the pods whose instance is a container without a VM.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub containers: BTreeSet<PodUid>,
}

/// How steliad's allocator chooses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Choice {
    /// Its policies; see [`crate::allocator::AllocatorPolicies`].
    pub policies: Policies,
    /// CPUs of LSR instances, where BE may run.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub lsr: CpuSet,
    /// CPUs held with the exclusive policy PCPULevel.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub pcpu_level: CpuSet,
    /// CPUs held with the exclusive policy NUMANodeLevel.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub numa_node_level: CpuSet,
    /// CPUs that kubelet assigned; it does not know which ones steliad did.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub kubelets: CpuSet,
    /// kubelet's `reservedSystemCPUs`, where its static policy is beside the allocator.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub kubelet_reserved: CpuSet,
    /// An instance's record cannot be read: until it can be, nothing is allocated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blocked: bool,
}

/// The class, what the bind policy Default means, the bind policy required of all, what the exclusive policy Default means,
/// the strategy and the alignment of requests that name none.
pub type Policies = (
    Qos,
    CpuBindPolicy,
    RequiredBind,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy,
);

/// Why a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompactError {
    #[error("the value has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    #[error("not a value of {ATTRIBUTE}: {0}")]
    Text(String),
    #[error("version {0} of {ATTRIBUTE} is not known, only {VERSION} is")]
    Version(u64),
}

impl Compact {
    /// What the attribute says of this node.
    pub fn of(facts: &Facts) -> Self {
        let by_kubelet = facts.allocations.iter().filter(|one| one.by_kubelet);
        let by_kubelet: CpuSet = by_kubelet.flat_map(|one| one.cpus.iter()).collect();
        let choice = |allocator: &Allocator| Choice {
            policies: (
                allocator.policies.qos,
                allocator.policies.bind,
                allocator.policies.required,
                allocator.policies.exclusive,
                allocator.policies.strategy,
                allocator.policies.alignment,
            ),
            lsr: allocator.lsr.clone(),
            pcpu_level: allocator.held.pcpu_level.clone(),
            numa_node_level: allocator.held.numa_node_level.clone(),
            kubelets: by_kubelet.clone(),
            kubelet_reserved: match facts.kubelet.cpu_policy.as_str() {
                "static" => facts.kubelet.reserved.clone(),
                _ => CpuSet::new(),
            },
            blocked: allocator.held.unreadable.is_some(),
        };
        let online = facts.topology.online();
        let mut compact = Self {
            topology: annotations::ranked(&facts.topology),
            reserved: facts.reserved.clone(),
            free: online.difference(&facts.reserved).difference(&facts.exclusive),
            held: facts.exclusive.intersection(&facts.reserved),
            cpu_policy: facts.kubelet.cpu_policy.clone(),
            cpu_options: facts.kubelet.cpu_options.clone(),
            managers: facts.kubelet.managers.clone(),
            choice: facts.allocator.as_ref().map(choice),
            ..Self::default()
        };
        // While kubelet moves a CPU from pod to pod, its file may give it to both.
        let mut taken = compact.taken();
        for one in &facts.allocations {
            let own = one.cpus.intersection(&taken);
            taken = taken.difference(&own);
            compact.pods.entry(one.pod.clone()).or_default().union_with(&own);
        }
        let known = |pod: &&PodUid| compact.pods.contains_key(*pod);
        compact.containers = facts.containers.iter().filter(known).cloned().collect();
        compact
    }

    /// The node as the allocator and kubelet's planner take it, as far as the attribute tells it: which CPUs are taken, not by
    /// whom.
    pub fn facts(self, name: String, alignment: Option<Alignment>, numa: BTreeMap<u32, KernelNumaNode>) -> Facts {
        let online = self.topology.online();
        let exclusive = self.taken();
        let allocator = self.choice.map(|choice| {
            let (qos, bind, required, exclusive, strategy, alignment) = choice.policies;
            let unreadable = ("an instance's scope".to_owned(), "its record cannot be read".to_owned());
            Allocator {
                policies: AllocatorPolicies {
                    source: CpuSource::Steliad,
                    reserved: self.reserved.clone(),
                    qos,
                    bind,
                    required,
                    exclusive,
                    strategy,
                    alignment,
                },
                held: HeldCpus {
                    pcpu_level: choice.pcpu_level,
                    numa_node_level: choice.numa_node_level,
                    unreadable: choice.blocked.then_some(unreadable),
                },
                lsr: choice.lsr,
            }
        });
        Facts {
            name,
            numa,
            shared: online.difference(&exclusive),
            reserved: self.reserved,
            exclusive,
            allocations: Vec::new(),
            containers: self.containers,
            kubelet: Kubelet {
                cpu_policy: self.cpu_policy,
                cpu_options: self.cpu_options,
                reserved: CpuSet::new(),
                alignment,
                max_numa_nodes: None,
                managers: self.managers,
            },
            allocator,
            pods: None,
            devices: BTreeMap::new(),
            problems: Vec::new(),
            topology: self.topology,
        }
    }

    /// The attribute's value.
    pub fn text(&self) -> String {
        #[derive(Serialize)]
        struct Versioned<'a> {
            v: u32,
            #[serde(flatten)]
            node: &'a Compact,
        }
        // It can fail only where a map's keys are not strings.
        serde_json::to_string(&Versioned { v: VERSION, node: self }).unwrap_or_default()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// The error says what is wrong. The value may come from anyone.
    pub fn parse(text: &str) -> Result<Self, CompactError> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        if text.len() > MAX_BYTES {
            return Err(CompactError::TooLarge(text.len()));
        }
        let told = |cause: serde_json::Error| CompactError::Text(excerpt::cause(&cause));
        let Versioned { v } = serde_json::from_str(text).map_err(told)?;
        if v != u64::from(VERSION) {
            return Err(CompactError::Version(v));
        }
        let read: Self = serde_json::from_str(text).map_err(told)?;
        let wrong = |what: String| Err(CompactError::Text(excerpt::cause(&what)));
        if !read.free.is_subset(&read.topology.online()) {
            return wrong(format!("not all of the free CPUs, {}, are in the topology", read.free));
        }
        let mut taken = read.taken();
        for (pod, cpus) in &read.pods {
            if !cpus.is_subset(&taken) {
                return wrong(format!("the CPUs {cpus} of pod {pod} are free, or another pod's too"));
            }
            taken = taken.difference(cpus);
        }
        match read.containers.iter().find(|pod| !read.pods.contains_key(*pod)) {
            Some(stranger) => wrong(format!("the container of pod {stranger} is none of the pods'")),
            None => Ok(read),
        }
    }

    /// The CPUs that are not free, without those that are only reserved.
    pub fn taken(&self) -> CpuSet {
        let reserved = self.reserved.difference(&self.held);
        self.topology.online().difference(&self.free).difference(&reserved)
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A map in which no key is there twice. In a plain one the last of JSON's members with one name would count, and the others be lost.
struct Unique<K, V>(BTreeMap<K, V>);

impl<'de, K: Deserialize<'de> + Ord + Display, V: Deserialize<'de>> Deserialize<'de> for Unique<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord + Display, V: Deserialize<'de>> Visitor<'de> for Members<K, V> {
            type Value = BTreeMap<K, V>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = members.next_key()? {
                    match map.entry(key) {
                        Entry::Vacant(free) => drop(free.insert(members.next_value()?)),
                        Entry::Occupied(there) => {
                            return Err(A::Error::custom(format!("{} is there twice", there.key())));
                        }
                    }
                }
                Ok(map)
            }
        }

        from.deserialize_map(Members(PhantomData)).map(Self)
    }
}

fn unique<'de, D, K, V>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + Display,
    V: Deserialize<'de>,
{
    Unique::deserialize(from).map(|Unique(map)| map)
}

/// Reads [`Managers::memory_groups`].
pub(super) fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeMap<u32, NodeSet>>, D::Error> {
    let groups: Option<Unique<u32, CpuSet>> = Option::deserialize(from)?;
    let groups = groups.map(|Unique(groups)| groups);
    if groups.as_ref().is_some_and(|groups| groups.len() > MAX_GROUPS) {
        return Err(D::Error::custom("memory of more NUMA nodes than are read"));
    }
    let cells = |(node, cells): (u32, CpuSet)| (node, cells.iter().collect());
    Ok(groups.map(|groups| groups.into_iter().map(cells).collect()))
}

/// [`Managers::caches`], as CPUs by cache.
pub(super) mod by_cache {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(caches: &BTreeMap<u32, u32>, to: S) -> Result<S::Ok, S::Error> {
        let mut by_cache: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (cpu, cache) in caches {
            by_cache.entry(*cache).or_default().insert(*cpu);
        }
        by_cache.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, u32>, D::Error> {
        let mut caches = BTreeMap::new();
        for (cache, cpus) in unique::<_, u32, CpuSet>(from)? {
            if cpus.iter().any(|cpu| caches.insert(cpu, cache).is_some()) {
                return Err(D::Error::custom("a CPU has two L3 caches"));
            }
        }
        Ok(caches)
    }
}
