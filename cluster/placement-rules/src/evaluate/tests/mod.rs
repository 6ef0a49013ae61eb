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
use stelia_koordinator::report::{Allocator, Facts, PodAllocation};
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

fn any_host() -> impl Strategy<Value = Shape> {
    (1u32..=4, 1u32..=6, prop_oneof![Just(1u32), Just(2)], any::<bool>()).prop_map(
        |(nodes, cores, threads, interleaved)| Shape {
            nodes,
            cores,
            threads,
            interleaved,
        },
    )
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
