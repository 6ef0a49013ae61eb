//! What many nodes of a cluster have in common.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kubelet_planner::cpus::{CpuGroups, CpuOptions, Kubelet};
use kubelet_planner::merge::{self, Policy, Scope};
use kubelet_planner::{CpuManager, MAX_NODES, Machine, MemoryManager, Node, NodeState, NumaNode, Pod, Settings};
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HostTables};
use stelia_koordinator::report::NodeResourceTopology;
use stelia_koordinator::report::compact::{Compact, Policies};

use super::zones::Zones;
use super::{Amount, NodeError, attribute, invalid};

/// What distinguishes two nodes apart from their allocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeKey {
    topology: Topology,
    /// CPUs that are never allocated: the allocator's, or kubelet's.
    reserved: CpuSet,
    /// kubelet's.
    settings: Settings,
    /// Kinds of memory that kubelet's static policy assigns; `None`: it assigns none.
    kinds: Option<Vec<String>>,
    /// How many NUMA nodes kubelet's Memory Manager and Device Manager look at the sets of.
    compared: usize,
    /// The NUMA nodes, each with its row of distances.
    distances: BTreeMap<u32, BTreeMap<u32, u64>>,
    caches: BTreeMap<u32, u32>,
    /// The allocator's policies, where steliad chooses.
    policies: Option<Policies>,
}

impl Hash for ShapeKey {
    /// Hashes only a part, by which most shapes differ.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.topology.hash(state);
        self.reserved.hash(state);
        (self.settings.topology_policy, self.settings.topology_scope).hash(state);
        self.kinds.hash(state);
    }
}

/// The topology as tables, and who chooses CPUs by which rules.
#[derive(Debug)]
pub struct NodeShape {
    pub(crate) key: ShapeKey,
    pub(crate) host: Arc<HostTables>,
    /// kubelet with nothing allocated.
    pub(crate) kubelet: Node,
    /// CPUs that kubelet's static policy never assigns; `None` with the policy `none`.
    pub(crate) kubelet_reserved: Option<CpuSet>,
    /// Whether reserved CPUs are outside of kubelet's shared pool.
    pub(crate) strict: bool,
    /// `None` where kubelet chooses.
    pub(crate) allocator: Option<AllocatorPolicies>,
}

impl NodeShape {
    /// The tables.
    ///
    /// # Errors
    /// kubelet would not start with what the object tells, or cannot be predicted by it.
    pub fn new(key: ShapeKey) -> Result<Self, NodeError> {
        let machine = Machine {
            cpus: CpuGroups::new(&key.topology, &key.caches),
            numa: key.distances.iter().map(|(id, row)| (*id, numa(row))).collect(),
        };
        if !key.settings.go_together() {
            let why = "it does not go with the policy single-numa-node";
            return Err(invalid("options", "align-by-socket", why));
        }
        let kubelet = Node::running(machine, key.settings.clone(), NodeState::default())?;
        Ok(Self {
            host: Arc::new(HostTables::new(&key.topology)),
            kubelet_reserved: (key.settings.cpu_manager != CpuManager::None).then(|| kubelet.reserved_cpus()),
            strict: matches!(&key.settings.cpu_manager, CpuManager::Static { options, .. } if options.strict_cpu_reservation),
            allocator: key.policies.map(|policies| allocator(policies, &key.reserved)),
            kubelet,
            key,
        })
    }

    /// Whether steliad chooses exclusive CPUs there, and not kubelet.
    pub fn steliad_chooses(&self) -> bool {
        self.allocator.is_some()
    }

    /// The online CPUs that can be allocated at all.
    pub fn capacity(&self) -> CpuSet {
        self.host.online().difference(&self.key.reserved)
    }

    /// CPUs that are never allocated.
    pub(crate) fn reserved(&self) -> &CpuSet {
        &self.key.reserved
    }

    /// kubelet's kinds of memory, where it assigns any.
    pub(crate) fn kinds(&self) -> Option<&[String]> {
        self.key.kinds.as_deref()
    }

    /// The ids of the NUMA nodes, ascending.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.key.distances.keys().copied()
    }

    /// The distance between two NUMA nodes; `None` where the object does not tell it.
    pub(crate) fn distance(&self, from: u32, to: u32) -> Option<u64> {
        self.key.distances.get(&from)?.get(&to).copied()
    }

    /// What it costs to admit the pod: its containers, and more where kubelet looks at more sets of NUMA nodes.
    pub(crate) fn effort(&self, pod: &Pod) -> usize {
        pod.containers.len().max(1) << self.key.compared.saturating_sub(MAX_COMPARED_NODES).min(MAX_NODES)
    }

    /// Whether kubelet may refuse a pod, or decides anything by the order in which pods arrive.
    pub(crate) fn kubelet_decides(&self) -> bool {
        self.key.settings.cpu_manager != CpuManager::None || self.key.kinds.is_some()
    }
}

fn numa(row: &BTreeMap<u32, u64>) -> NumaNode {
    NumaNode {
        distances: row.values().copied().collect(),
        ..NumaNode::default()
    }
}

fn allocator((qos, bind, required, exclusive, strategy, alignment): Policies, reserved: &CpuSet) -> AllocatorPolicies {
    AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: reserved.clone(),
        qos,
        bind: bind.or(CpuBindPolicy::FullPcpus),
        required,
        exclusive: exclusive.or(CpuExclusivePolicy::None),
        strategy,
        alignment,
    }
}

/// The most CPUs that kubelet reserves by its own choice, beyond which the object is not believed.
const MAX_RESERVED: u32 = stelia_cpus::MAX_CPUS;

/// The most NUMA nodes of a node whose kubelet compares all sets of them for each pod: it starts with no more, unless its administrator insists. 16 are 256
/// times as many sets, and whoever writes the object could make each answer take so much longer.
const MAX_COMPARED_NODES: usize = 8;

/// The most NUMA nodes that have CPUs or memory, or the same device.
fn compared_nodes(topology: &Topology, zones: &Zones) -> usize {
    let has_memory = |kinds: &BTreeMap<String, Amount>| kinds.values().any(|amount| amount.all > 0);
    let memory = zones.memory.iter().filter(|(_, kinds)| has_memory(kinds));
    let cpus = topology.cpus.values().map(|cpu| cpu.node);
    let nodes: NodeSet = memory.map(|(id, _)| *id).chain(cpus).collect();
    let of_devices = zones.devices.values().map(BTreeMap::len).max();
    nodes.len().max(of_devices.unwrap_or(0))
}

pub(super) fn parse_key(object: &NodeResourceTopology, compact: Compact, zones: Zones) -> Result<ShapeKey, NodeError> {
    check(&compact.topology)?;
    let managers = compact.managers;
    let reserved = match &compact.choice {
        Some(choice) => &choice.kubelet_reserved,
        None => &compact.reserved,
    };
    let count = if reserved.is_empty() {
        managers.reserved_count.min(MAX_RESERVED) as usize
    } else {
        reserved.len()
    };
    let cpu_manager = match compact.cpu_policy.as_str() {
        "none" | "" => CpuManager::None,
        "static" => CpuManager::Static {
            options: CpuOptions::parse(&compact.cpu_options)?,
            reserved: reserved.clone(),
            count,
        },
        other => return Err(invalid("policy", other, "there is no such CPU manager policy")),
    };
    let policy = attribute(object, "topologyManagerPolicy")?;
    let scope = attribute(object, "topologyManagerScope")?;
    let (topology_policy, topology_scope) = match (policy, scope, &compact.choice) {
        (Some(policy), scope, _) => {
            let scope = scope.unwrap_or("container");
            let policy = Policy::parse(policy)
                .ok_or_else(|| invalid("topologyManagerPolicy", policy, "there is no such policy"))?;
            let scope =
                Scope::parse(scope).ok_or_else(|| invalid("topologyManagerScope", scope, "there is no such scope"))?;
            (policy, scope)
        }
        // A node without kubelet, or whose kubelet is not described: nothing else refuses pods there.
        (None, _, Some(_)) => (Policy::None, Scope::Container),
        (None, _, None) => return Err(NodeError::KubeletUnknown),
    };
    let compared = compared_nodes(&compact.topology, &zones);
    if compared > MAX_COMPARED_NODES && !matches!(topology_policy, Policy::None | Policy::SingleNumaNode) {
        let why =
            "more than 8 NUMA nodes are not compared: the topology manager's policy must be none or single-numa-node";
        return Err(invalid("zones", &compared.to_string(), why));
    }
    let mut topology_options = merge::MergeOptions {
        prefer_closest_numa_nodes: managers.prefer_closest,
        ..merge::MergeOptions::default()
    };
    if let Some(text) = attribute(object, "topologyManagerMaxNUMANodes")? {
        let most = text
            .parse()
            .map_err(|_| invalid("topologyManagerMaxNUMANodes", text, "not a number"));
        topology_options.max_allowable_numa_nodes = most?;
    }
    let kinds = managers.memory_groups.is_some().then(|| {
        let mut kinds: Vec<String> = zones.memory.values().flat_map(BTreeMap::keys).cloned().collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    });
    let compares = kinds.is_some() || !zones.devices.is_empty();
    Ok(ShapeKey {
        topology: compact.topology,
        reserved: compact.reserved,
        settings: Settings {
            cpu_manager,
            memory_manager: match kinds {
                None => MemoryManager::None,
                Some(_) => MemoryManager::Static { reserved: [].into() },
            },
            topology_policy,
            topology_scope,
            topology_options,
            kubelet: Kubelet {
                pod_level_resource_managers: managers.pod_level,
                ..Kubelet::default()
            },
        },
        compared: if compares { compared } else { 0 },
        kinds,
        distances: zones.distances,
        caches: managers.caches,
        policies: compact.choice.map(|choice| choice.policies),
    })
}

/// A host has CPUs, and each core is on one NUMA node.
fn check(topology: &Topology) -> Result<(), NodeError> {
    if topology.cpus.is_empty() {
        return Err(invalid("topology", "", "there are no CPUs"));
    }
    let mut cores = BTreeMap::new();
    for cpu in topology.cpus.values() {
        if *cores.entry((cpu.package, cpu.core)).or_insert(cpu.node) != cpu.node {
            let why = "the CPUs of this core are on several NUMA nodes";
            return Err(invalid("topology", &cpu.core.to_string(), why));
        }
    }
    Ok(())
}
