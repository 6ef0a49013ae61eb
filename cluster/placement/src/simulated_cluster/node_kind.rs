//! The kinds of nodes that there are in the cluster.

use std::collections::BTreeMap;

use kubelet_planner::cpus::{CpuGroups, CpuOptions};
use kubelet_planner::merge::{Policy, Scope};
use kubelet_planner::{CpuManager, Machine, Node, NodeState, NumaNode, Settings};
use stelia_cpus::testing::Shape;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, NumaTopologyAlignmentPolicy, RequiredBind};

/// A kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// kubelet, single-numa-node: what it refuses loops for ever.
    Single,
    /// kubelet, single-numa-node and full-pcpus-only.
    Whole,
    /// kubelet, restricted, CPUs distributed over NUMA nodes.
    Restricted,
    /// steliad's allocator, one NUMA node, whole cores.
    Steliad,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Single, Kind::Whole, Kind::Restricted, Kind::Steliad];

/// Two NUMA nodes of 16 CPUs.
pub(crate) fn topology() -> Topology {
    let shape = Shape {
        nodes: 2,
        cores: 8,
        threads: 2,
        interleaved: false,
    };
    shape.topology()
}

/// A core of each NUMA node.
pub(crate) fn reserved() -> CpuSet {
    let topology = topology();
    let mut reserved = topology.siblings(0);
    let second = topology.cpus.iter().find(|(_, cpu)| cpu.node == 1).map(|(id, _)| *id);
    reserved.union_with(&topology.siblings(second.unwrap()));
    reserved
}

fn options(kind: Kind) -> CpuOptions {
    CpuOptions {
        full_pcpus_only: kind == Kind::Whole,
        distribute_cpus_across_numa: kind == Kind::Restricted,
        ..CpuOptions::default()
    }
}

pub(crate) fn option_texts(kind: Kind) -> BTreeMap<String, String> {
    options(kind)
        .on()
        .map(|name| (name.to_owned(), "true".to_owned()))
        .collect()
}

/// kubelet on it, with nothing allocated.
pub(crate) fn kubelet(kind: Kind) -> Node {
    let numa = |row: [u64; 2]| NumaNode {
        memory: 512 << 30,
        distances: row.to_vec(),
        ..NumaNode::default()
    };
    let machine = Machine {
        cpus: CpuGroups::new(&topology(), &BTreeMap::new()),
        numa: BTreeMap::from([(0, numa([10, 21])), (1, numa([21, 10]))]),
    };
    let own = || CpuManager::reserving(options(kind), reserved());
    let (cpu_manager, topology_policy) = match kind {
        Kind::Single | Kind::Whole => (own(), Policy::SingleNumaNode),
        Kind::Restricted => (own(), Policy::Restricted),
        Kind::Steliad => (CpuManager::None, Policy::None),
    };
    let settings = Settings {
        cpu_manager,
        topology_policy,
        topology_scope: Scope::Container,
        ..Settings::default()
    };
    Node::start(machine, settings, NodeState::default()).unwrap()
}

/// The allocator's policies, where steliad chooses.
pub(crate) fn policies(kind: Kind) -> Option<AllocatorPolicies> {
    (kind == Kind::Steliad).then(|| AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: reserved(),
        required: RequiredBind::FullPcpusOnly,
        alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        ..AllocatorPolicies::default()
    })
}
