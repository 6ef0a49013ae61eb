//! What the allocator would answer, for schedulers: whether a pod fits, which CPUs it would get, and the documents' score.
//!
//! It asks the allocator itself, so a pod that fits is admitted with these CPUs, and one that does not is refused in these words,
//! as long as nothing else is registered meanwhile. Every request of a call is answered as if it were the only one: two
//! that fit may not fit together. [`score`] says how the score is made.

mod answer;
mod request;
pub mod score;

pub use answer::{EvaluateAnswer, Fit};
pub use request::{EvaluateRequest, MAX_REQUESTS, SchedulerOptions};
pub use score::{Score, ScoringStrategy};
use stelia_api::Error;
use stelia_cpus::{CpuSet, NodeSet};

use crate::allocator::{Allocation, AllocatorNode, Requester};

/// Answer requests, each alone.
pub fn evaluate(node: &AllocatorNode, requests: &[EvaluateRequest]) -> Vec<Result<Fit, Error>> {
    requests.iter().map(|request| answer(node, request)).collect()
}

/// Answer one.
///
/// # Errors
/// As [`AllocatorNode::allot`].
pub fn answer(node: &AllocatorNode, request: &EvaluateRequest) -> Result<Fit, Error> {
    answer_near(node, request, &NodeSet::new())
}

/// Answer one whose container would have devices at these NUMA nodes.
///
/// # Errors
/// As [`AllocatorNode::allot`].
pub fn answer_near(node: &AllocatorNode, request: &EvaluateRequest, devices: &NodeSet) -> Result<Fit, Error> {
    let requester = Requester {
        devices: devices.clone(),
        ..request.requester()
    };
    let (cpus, allocation) = node.allot(&request.wanted(), &requester)?;
    let runs_on = runs_on(node, &allocation, &cpus);
    let numa_nodes = node.host().nodes_of(&runs_on);
    let strategy = request.options.scoring_strategy;
    Ok(Fit {
        qos: allocation.qos,
        aligned: numa_nodes.len() == 1,
        numa_nodes,
        exclusivity: allocation.exclusivity,
        score: score::of(node, &allocation, &cpus, occupied(request, &cpus), strategy),
        runs_on,
        cpus,
    })
}

/// How many CPUs it runs on at once: its own, or as many as its limit makes.
fn occupied(request: &EvaluateRequest, cpus: &CpuSet) -> usize {
    let limit = request.allocation.cpu_limit.unwrap_or(0).div_ceil(1000).max(1);
    match cpus.len() {
        0 => limit as usize,
        own => own,
    }
}

fn runs_on(node: &AllocatorNode, allocation: &Allocation, cpus: &CpuSet) -> CpuSet {
    let pools = node.pools();
    let pool = allocation.numa_node.and_then(|node| pools.shared_by_node.get(&node));
    match pool {
        Some(pool) => pool.cpus.clone(),
        None => pools.cpus_of(allocation.qos, cpus).clone(),
    }
}
