#![doc = include_str!("README.md")]

mod annotations;
pub mod compact;
pub mod described;
pub mod fingerprint;
pub mod memory_and_devices;
pub mod meta;
pub mod name;
pub mod numa;
mod object;
pub mod profile;
pub mod stored;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod warnings;
mod zone;

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{AllocatorNode, AllocatorPolicies, HeldCpus, Pools};
use compact::is_default;
use numa::KernelNumaNode;
pub use object::{ApiVersion, NodeResourceTopology, Resource, Zone};
use serde::{Deserialize, Serialize};
use stelia_api::Error;
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::{PodName, PodUid};

use memory_and_devices::Devices;
use meta::ObjectMeta;
use object::Attribute;

/// The label that names the writer of the object.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "steliad");

/// What the object reports of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    pub topology: Topology,
    /// The NUMA nodes by id; empty where the kernel has no NUMA.
    pub numa: BTreeMap<u32, KernelNumaNode>,
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// CPUs that one pod has exclusively.
    pub exclusive: CpuSet,
    /// Where pods without exclusive CPUs run.
    pub shared: CpuSet,
    /// The pods with exclusive CPUs, as far as their owners are known.
    pub allocations: Vec<PodAllocation>,
    /// Those of these pods whose instance is a container without a VM. Only the profile `stelia` has them.
    pub containers: BTreeSet<PodUid>,
    pub kubelet: Kubelet,
    /// steliad's allocator, where it chooses exclusive CPUs.
    pub allocator: Option<Allocator>,
    /// The pods that have a cgroup; `None` where they are not known.
    pub pods: Option<BTreeMap<PodUid, ReportedPod>>,
    /// Devices by NUMA node and resource; those of a resource all of whose devices' places are known.
    pub devices: BTreeMap<u32, BTreeMap<String, Devices>>,
    /// What could not be read of the node, and is not in the object therefore.
    pub problems: Vec<String>,
}

impl Facts {
    /// The node as steliad's allocator takes it.
    ///
    /// # Errors
    /// kubelet chooses the CPUs of this node.
    pub fn allocator_node(&self) -> Result<AllocatorNode, Error> {
        let Some(Allocator { policies, held, lsr }) = &self.allocator else {
            return Err(crate::allocator::chosen_by_kubelet());
        };
        let closed = self.exclusive.difference(lsr);
        let pools = Pools::new(&self.topology, &policies.reserved, &closed, lsr);
        Ok(AllocatorNode::new(&self.topology, pools, held, policies.clone()))
    }
}

/// steliad's allocator, beyond what follows from the pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    pub policies: AllocatorPolicies,
    /// CPUs that instances hold with an exclusive policy.
    pub held: HeldCpus,
    /// CPUs of LSR instances, on which BE may run too.
    pub lsr: CpuSet,
}

/// A pod of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedPod {
    /// `None` where nothing on the node tells it.
    pub name: Option<PodName>,
    /// Whether kube-scheduler's plugin counts it among those with exclusive resources; see [`fingerprint::Method`].
    pub exclusive: bool,
}

/// A pod's exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAllocation {
    pub pod: PodUid,
    /// `None` where nothing on the node tells it.
    pub name: Option<PodName>,
    pub cpus: CpuSet,
    /// Whether kubelet assigned them; else steliad did.
    pub by_kubelet: bool,
}

/// The configuration of kubelet's managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kubelet {
    /// `cpuManagerPolicy`.
    pub cpu_policy: String,
    /// `cpuManagerPolicyOptions`.
    pub cpu_options: BTreeMap<String, String>,
    /// `reservedSystemCPUs`.
    pub reserved: CpuSet,
    /// The topology manager; `None` where kubelet's configuration cannot be read.
    pub alignment: Option<Alignment>,
    /// With how many NUMA nodes at most the topology manager starts (`max-allowable-numa-nodes`); `None` where
    /// kubelet's configuration cannot be read.
    pub max_numa_nodes: Option<u32>,
    /// What its managers decide by besides.
    pub managers: Managers,
}

/// What kubelet's managers decide by beyond their policies; in the profile `stelia` alone, where this differs from kubelet's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Managers {
    /// The topology manager's option `prefer-closest-numa-nodes`.
    #[serde(skip_serializing_if = "is_default")]
    pub prefer_closest: bool,
    /// The feature gates PodLevelResources and PodLevelResourceManagers are on.
    #[serde(skip_serializing_if = "is_default")]
    pub pod_level: bool,
    /// How many CPUs kubelet reserves by its own choice (`kubeReserved` and `systemReserved`, rounded up, without
    /// `reservedSystemCPUs`); 0 where they are named.
    #[serde(skip_serializing_if = "is_default")]
    pub reserved_count: u32,
    /// For each NUMA node whose memory containers have, the NUMA nodes that kubelet takes it to be used with (its cells), itself
    /// mostly included; `None` where the Memory Manager assigns none.
    #[serde(deserialize_with = "compact::groups", skip_serializing_if = "Option::is_none")]
    pub memory_groups: Option<BTreeMap<u32, NodeSet>>,
    /// The L3 cache of each CPU, where the option `prefer-align-cpus-by-uncorecache` makes kubelet look at them.
    #[serde(with = "compact::by_cache", skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<u32, u32>,
}

/// The topology manager's configuration, in kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub policy: String,
    /// `container` or `pod`.
    pub scope: String,
}

/// v1alpha1's names of the topology manager's policies, each with kubelet's policy and scope.
const POLICIES: [(&str, &str, &str); 5] = [
    ("None", "none", "container"),
    ("BestEffort", "best-effort", "container"),
    ("Restricted", "restricted", "container"),
    ("SingleNUMANodePodLevel", "single-numa-node", "pod"),
    ("SingleNUMANodeContainerLevel", "single-numa-node", "container"),
];

/// Names of policies that other writers use, as koordlet does.
const OTHERS_POLICIES: [(&str, &str, &str); 4] = [
    ("BestEffortContainerLevel", "best-effort", "container"),
    ("BestEffortPodLevel", "best-effort", "pod"),
    ("RestrictedContainerLevel", "restricted", "container"),
    ("RestrictedPodLevel", "restricted", "pod"),
];

impl Alignment {
    /// v1alpha1's name of the policy, which depends on the scope; `None` where v1alpha1 has no name for it.
    fn policy_name(&self) -> Option<&'static str> {
        let of = |scope| {
            POLICIES
                .iter()
                .find(|(_, policy, its)| (*policy, *its) == (&self.policy, scope))
        };
        let (name, ..) = of(&self.scope).or_else(|| of("container"))?;
        Some(name)
    }

    /// The attributes that schedulers look for in v1alpha2.
    fn attributes(&self) -> Vec<Attribute> {
        vec![
            Attribute::new("topologyManagerPolicy", &self.policy),
            Attribute::new("topologyManagerScope", &self.scope),
        ]
    }
}

/// The object that describes a node, with Koordinator's annotations. It can be read back: [`described`].
pub fn report(facts: &Facts, version: ApiVersion) -> NodeResourceTopology {
    let alignment = facts.kubelet.alignment.as_ref();
    let policies = || alignment.and_then(Alignment::policy_name);
    let (topology_policies, attributes) = match version {
        // The field is required, even empty.
        ApiVersion::V1Alpha1 => (Some(policies().into_iter().map(str::to_owned).collect()), Vec::new()),
        ApiVersion::V1Alpha2 => (None, alignment.map(Alignment::attributes).unwrap_or_default()),
    };
    NodeResourceTopology {
        api_version: version.api_version(),
        kind: object::KIND.to_owned(),
        metadata: ObjectMeta {
            name: facts.name.clone(),
            labels: labels(),
            annotations: annotations::of(facts),
            ..ObjectMeta::default()
        },
        topology_policies,
        attributes,
        zones: zone::all(facts),
    }
}

fn labels() -> BTreeMap<String, String> {
    let (label, manager) = MANAGED_BY;
    BTreeMap::from([(label.to_owned(), manager.to_owned())])
}

/// Every NUMA node: those with CPUs online, and those with memory only.
fn nodes(facts: &Facts) -> NodeSet {
    let of_cpus = facts.topology.cpus.values().map(|cpu| cpu.node);
    of_cpus.chain(facts.numa.keys().copied()).collect()
}
