//! Answers against the node's own, of its full description.

mod devices;
mod kubelet;
mod steliad;

use std::collections::BTreeMap;

use kubelet_planner::cpus::{CpuGroups, CpuOptions};
use kubelet_planner::devices::Device;
use kubelet_planner::merge::{self, Policy, Scope};
use kubelet_planner::{
    Amounts, Container, ContainerKind, CpuManager, Cpus, Machine, MemoryManager, Node, NodeState, NumaNode, Pod,
    Resources, Settings, admit,
};
use proptest::collection::vec;
use proptest::prelude::*;
use stelia_cpus::testing::Shape;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::{
    AllocationRequest, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HeldCpus, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy, Qos, Requester, RequiredBind,
};
use stelia_koordinator::report::{Allocator, Facts};
use stelia_kubelet::QosClass;

use super::*;
use crate::node::{self, ParsedNode};
use crate::testing::{self, facts_of, published, uid};

/// So many, or as many as are asked for.
fn cases(few: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(few),
    }
}

fn read(facts: &Facts) -> (NodeShape, ParsedNode) {
    let described = node::parse(published(facts).as_bytes()).unwrap();
    (NodeShape::new(described.shape.clone()).unwrap(), described)
}

fn forecast(shape: &NodeShape, described: ParsedNode, arrivals: Vec<Arrival>) -> NodeForecast {
    let count = arrivals.len();
    let forecast = NodeForecast::new(shape, described.available, arrivals);
    assert_eq!(forecast.arrivals.len(), count, "all find room");
    forecast
}

fn host(nodes: u32, cores: u32, threads: u32) -> Shape {
    Shape {
        nodes,
        cores,
        threads,
        interleaved: false,
    }
}

fn any_host() -> impl Strategy<Value = Shape> {
    (1u32..=4, 1u32..=6, 1u32..=2, any::<bool>()).prop_map(|(nodes, cores, threads, interleaved)| Shape {
        interleaved,
        ..host(nodes, cores, threads)
    })
}

/// NUMA nodes without memory, each with its own CPUs.
fn machine(topology: &Topology, distances: &[[u64; 2]; 2]) -> Machine {
    let numa = |(id, row): (u32, &[u64; 2])| {
        let node = NumaNode {
            distances: row.to_vec(),
            ..NumaNode::default()
        };
        (id, node)
    };
    Machine {
        cpus: CpuGroups::new(topology, &BTreeMap::new()),
        numa: (0..).zip(distances).map(numa).collect(),
    }
}

/// What a node of which the object is read would do with the request, beside pods that are on their way.
fn ask(facts: &Facts, arrivals: Vec<Arrival>, request: &Request) -> Result<Placement, Refusal> {
    let (shape, described) = read(facts);
    evaluate(&shape, &forecast(&shape, described, arrivals), request)
}

fn plain(pod: &Pod) -> Request {
    Request::new(pod.clone(), None, Default::default())
}

fn coming(request: Request, cpus: Option<CpuSet>) -> Arrival {
    Arrival {
        request: SharedRequest::new(request),
        cpus,
        is_late: false,
        is_ours: true,
    }
}
