#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`report`] | the object of a node, by its [`Facts`] |
//! | [`described`] | the object read back |
//! | [`numa`] | memory, huge pages and distances of the NUMA nodes, from `/sys` |
//! | [`name`] | the Node's name |

mod annotations;
pub mod described;
pub mod name;
pub mod numa;
mod object;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use numa::NumaNode;
pub use object::{ApiVersion, NodeResourceTopology};
use stelia_allocator::{AllocatorNode, AllocatorPolicies, HeldCpus, Pools};
use stelia_api::Error;
use stelia_cpus::quantity::bytes::of_bytes;
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::PodUid;

use object::{Attribute, Cost, Metadata, Resource, Zone};

/// The label that names the writer of the object.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "steliad");

/// What the object reports of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    pub topology: Topology,
    /// The NUMA nodes by id; empty where the kernel has no NUMA.
    pub numa: BTreeMap<u32, NumaNode>,
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// CPUs that one pod has exclusively.
    pub exclusive: CpuSet,
    /// Where pods without exclusive CPUs run.
    pub shared: CpuSet,
    /// The pods with exclusive CPUs, as far as their owners are known.
    pub allocations: Vec<PodAllocation>,
    pub kubelet: Kubelet,
    /// steliad's allocator, where it chooses exclusive CPUs.
    pub allocator: Option<Allocator>,
}

impl Facts {
    /// The node as steliad's allocator takes it.
    ///
    /// # Errors
    /// kubelet chooses the CPUs of this node.
    pub fn allocator_node(&self) -> Result<AllocatorNode, Error> {
        let Some(Allocator { policies, held, lsr }) = &self.allocator else {
            return Err(stelia_allocator::chosen_by_kubelet());
        };
        let closed = self.exclusive.difference(lsr);
        let pools = Pools::new(&self.topology, &policies.reserved, &closed, lsr);
        Ok(AllocatorNode::new(&self.topology, pools, held, policies.clone()))
    }
}

/// steliad's allocator, beyond what follows from the pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocator {
    pub policies: AllocatorPolicies,
    /// CPUs that instances hold with an exclusive policy.
    pub held: HeldCpus,
    /// CPUs of LSR instances, on which BE may run too.
    pub lsr: CpuSet,
}

/// A pod's exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAllocation {
    /// Names and namespaces of pods are not known on the node.
    pub pod: PodUid,
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
        let attribute = |name: &str, value: &str| Attribute {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        vec![
            attribute("topologyManagerPolicy", &self.policy),
            attribute("topologyManagerScope", &self.scope),
        ]
    }
}

/// The object that describes a node.
pub fn report(facts: &Facts, version: ApiVersion) -> NodeResourceTopology {
    let alignment = facts.kubelet.alignment.as_ref();
    let policies = || alignment.and_then(Alignment::policy_name);
    let (topology_policies, attributes) = match version {
        // The field is required, even empty.
        ApiVersion::V1Alpha1 => (Some(policies().into_iter().map(str::to_owned).collect()), Vec::new()),
        ApiVersion::V1Alpha2 => (None, alignment.map(Alignment::attributes).unwrap_or_default()),
    };
    let (label, manager) = MANAGED_BY;
    NodeResourceTopology {
        api_version: version.api_version(),
        kind: object::KIND.to_owned(),
        metadata: Metadata {
            name: facts.name.clone(),
            labels: BTreeMap::from([(label.to_owned(), manager.to_owned())]),
            annotations: annotations::of(facts),
        },
        topology_policies,
        attributes,
        zones: nodes(facts).into_iter().map(|node| zone(facts, node)).collect(),
    }
}

/// Every NUMA node: those with CPUs online, and those with memory only.
fn nodes(facts: &Facts) -> BTreeSet<u32> {
    let of_cpus = facts.topology.cpus.values().map(|cpu| cpu.node);
    of_cpus.chain(facts.numa.keys().copied()).collect()
}

fn zone_name(node: u32) -> String {
    format!("node-{node}")
}

fn zone(facts: &Facts, node: u32) -> Zone {
    let described = facts.numa.get(&node);
    let distances = described.into_iter().flat_map(|node| &node.distances);
    let mut resources = vec![cpus(facts, node)];
    if let Some(described) = described {
        resources.extend(memory(described));
        resources.extend(huge_pages(described));
    }
    Zone {
        name: zone_name(node),
        kind: "Node".to_owned(),
        costs: distances
            .map(|(other, distance)| Cost {
                name: zone_name(*other),
                value: i64::from(*distance),
            })
            .collect(),
        resources,
    }
}

fn cpus(facts: &Facts, node: u32) -> Resource {
    let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
    let online: CpuSet = here.map(|(number, _)| *number).collect();
    let allocatable = online.difference(&facts.reserved);
    let available = allocatable.difference(&facts.exclusive);
    Resource {
        name: "cpu".to_owned(),
        capacity: online.len().to_string(),
        allocatable: allocatable.len().to_string(),
        available: available.len().to_string(),
    }
}

/// Memory set aside as huge pages is not allocatable as memory.
fn memory(node: &NumaNode) -> Option<Resource> {
    let memory = node.memory?;
    let aside = node
        .huge_pages
        .iter()
        .map(|(size, pages)| size.saturating_mul(pages.total));
    let allocatable = aside.fold(memory.total, u64::saturating_sub);
    Some(Resource {
        name: "memory".to_owned(),
        capacity: of_bytes(memory.total),
        allocatable: of_bytes(allocatable),
        available: of_bytes(memory.free.min(allocatable)),
    })
}

fn huge_pages(node: &NumaNode) -> impl Iterator<Item = Resource> {
    node.huge_pages.iter().map(|(size, pages)| Resource {
        name: format!("hugepages-{}", of_bytes(*size)),
        capacity: of_bytes(size.saturating_mul(pages.total)),
        allocatable: of_bytes(size.saturating_mul(pages.total)),
        available: of_bytes(size.saturating_mul(pages.free)),
    })
}
