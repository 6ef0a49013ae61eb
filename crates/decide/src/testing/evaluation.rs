//! Nodes where steliad's allocator chooses, and what it is asked.

use proptest::prelude::*;
use stelia_cpus::CpuSet;
use stelia_cpus::testing::{Shape, shapes};
use stelia_koordinator::allocator::evaluate::score::ScoringStrategy;
use stelia_koordinator::allocator::evaluate::*;
use stelia_koordinator::allocator::{
    Allocation, AllocationRequest, AllocatorNode, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource,
    NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos, RequiredBind,
};
use stelia_kubelet::{CpuManagerState, PodUid, QosClass};
use stelia_model::record::Record;
use stelia_settings::Policies;

use super::{instance, snapshot};
use crate::allocator::{allot, held};
use crate::{Derived, Instance, Snapshot};

/// A host where steliad chooses and nothing is held.
pub(crate) fn host(shape: Shape) -> Snapshot {
    let mut host = snapshot(vec![]);
    host.source = CpuSource::Steliad;
    host.kubelet = Ok(CpuManagerState::absent());
    host.topology = shape.topology();
    host
}

/// The defaults of a node where steliad chooses.
pub(crate) fn ours() -> AllocatorPolicies {
    AllocatorPolicies {
        source: CpuSource::Steliad,
        ..AllocatorPolicies::default()
    }
}

/// What is derived of a host with these policies.
pub(crate) fn facts(host: &Snapshot, node: &AllocatorPolicies) -> Derived {
    let policies = Policies {
        allocator: node.clone(),
        ..Policies::default()
    };
    Derived::of(host, &policies)
}

/// The same host as the allocator sees it.
pub fn allocator_node(host: &Snapshot, node: &AllocatorPolicies) -> AllocatorNode {
    AllocatorNode::new(
        &host.topology,
        facts(host, node).pools().cloned().unwrap(),
        &held(host),
        node.clone(),
    )
}

/// Take what was allotted as an instance of the host.
pub(crate) fn hold(host: &mut Snapshot, number: usize, (exclusive, allocation): (CpuSet, Allocation)) {
    let base = instance();
    host.put(Instance {
        record: Record {
            pod: PodUid::parse(&format!("{number:08}-0000-4000-8000-000000000000")).unwrap(),
            entry: exclusive.clone(),
            exclusive,
            allocation: Some(allocation),
            ..base.record
        },
        ..base
    });
}

fn any_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

fn some<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(any_of(all))
}

/// Any request for an evaluation.
pub fn any_request() -> impl Strategy<Value = EvaluateRequest> {
    (
        some(&QosClass::ALL),
        some(&Qos::ALL),
        proptest::option::of(0u32..80),
        proptest::option::of(0u32..80_000),
        some(&CpuBindPolicy::ALL),
        some(&CpuBindPolicy::ALL),
        some(&CpuExclusivePolicy::ALL),
        some(&NumaAllocateStrategy::ALL),
        some(&NumaTopologyAlignmentPolicy::ALL),
        any_of(&ScoringStrategy::ALL),
    )
        .prop_map(
            |(class, qos, cpus, limit, bind, required, exclusive, strategy, alignment, scoring)| EvaluateRequest {
                allocation: AllocationRequest {
                    qos,
                    cpus,
                    // Whole ones are what pods mostly have.
                    cpu_limit: limit.map(|limit| if limit % 3 == 0 { limit } else { limit / 1000 * 1000 }),
                    cpu_bind_policy: bind,
                    required_cpu_bind_policy: required,
                    cpu_exclusive_policy: exclusive,
                    numa_allocate_strategy: strategy,
                    numa_topology_alignment_policy: alignment,
                    ..AllocationRequest::default()
                },
                options: SchedulerOptions {
                    kubernetes_class: class,
                    scoring_strategy: scoring,
                },
            },
        )
}

/// A host with instances, and its own policies.
pub fn any_host() -> impl Strategy<Value = (Snapshot, AllocatorPolicies)> {
    let policies = (
        0u32..3,
        any_of(&Qos::ALL),
        any_of(&CpuBindPolicy::ALL[..3]),
        any_of(&RequiredBind::ALL),
        any_of(&CpuExclusivePolicy::ALL),
        any_of(&NumaAllocateStrategy::ALL),
        any_of(&NumaTopologyAlignmentPolicy::ALL),
    );
    let held = proptest::collection::vec(any_request(), 0..6);
    (shapes(), 0usize..4, policies, held, 0u8..8).prop_map(|(shape, kubelets, policies, held, unreadable)| {
        let mut host = host(shape);
        let (reserved, qos, bind, required, exclusive, strategy, alignment) = policies;
        let node = AllocatorPolicies {
            reserved: CpuSet::below(reserved),
            qos,
            bind,
            required,
            exclusive,
            strategy,
            alignment,
            ..ours()
        };
        let online: Vec<u32> = host.topology.online().iter().collect();
        host.leftover = online.into_iter().rev().take(kubelets).collect();
        for (number, request) in held.iter().enumerate() {
            if let Ok(allotted) = allot(
                &request.wanted(),
                &request.requester(),
                &host,
                &facts(&host, &node),
                &node,
            ) {
                hold(&mut host, number, allotted);
            }
        }
        if unreadable == 0 {
            host.unreadable.push(("x.scope".to_owned(), "no JSON".to_owned()));
        }
        (host, node)
    })
}
