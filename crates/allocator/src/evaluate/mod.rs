//! What the allocator would answer, for schedulers: whether a pod fits, which CPUs it would get, and the documents' score.
//!
//! It asks the allocator itself, so a pod that fits is admitted with these CPUs, and one that does not is refused in these words,
//! as long as nothing else is registered meanwhile. Every request of a call is answered as if it were alone: two that fit need
//! not fit together. [`score`] says how the score is made.

mod request;
pub mod score;
mod told;

use std::collections::BTreeSet;

use crate::{Allocation, Asker, Ground};
use crate::{Exclusivity, Qos};
pub use request::{MAX_REQUESTS, Request, RequestsError, requests};
pub use score::{Score, ScoringStrategy};
use stelia_api::Error;
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;
pub use told::{Place, Told};

/// What a pod would get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its class.
    pub qos: Qos,
    /// CPUs of its own; none for LS and BE.
    pub cpus: CpuSet,
    /// What its vCPUs would run on: its own CPUs, or its pool.
    pub runs_on: CpuSet,
    /// The NUMA nodes of those.
    pub numa_nodes: BTreeSet<u32>,
    /// What would become of its exclusive policy.
    pub exclusivity: Exclusivity,
    /// How well it would lie here.
    pub score: Score,
}

/// Answer requests, each alone.
pub fn evaluate(ground: &Ground, requests: &[Request]) -> Vec<Result<Answer, Error>> {
    requests.iter().map(|request| answer(ground, request)).collect()
}

/// Answer one.
///
/// # Errors
/// As [`Ground::allot`].
pub fn answer(ground: &Ground, request: &Request) -> Result<Answer, Error> {
    let (cpus, allocation) = ground.allot(&request.wish(), &asker(request))?;
    let runs_on = pool(ground, &allocation, &cpus);
    Ok(Answer {
        qos: allocation.qos,
        numa_nodes: ground.host().nodes_of(&runs_on),
        exclusivity: allocation.exclusivity,
        score: score::of(
            ground,
            &allocation,
            &cpus,
            wanted(request, &cpus),
            request.scoring_strategy,
        ),
        runs_on,
        cpus,
    })
}

/// Without Kubernetes' class it is an administrator who asks, as on the system bus.
/// Who asks, as far as the request says it.
pub fn asker(request: &Request) -> Asker {
    let of_cpus = request.cpus.map(|cpus| 1000 * u64::from(cpus));
    Asker {
        class: request.kubernetes_class.unwrap_or(QosClass::Guaranteed),
        limit_milli: request.cpu_limit.map(u64::from).or(of_cpus),
        bound: request.kubernetes_class.is_some(),
        memory: None,
    }
}

/// How many CPUs it runs on at once: its own, or as many as its limit makes.
fn wanted(request: &Request, cpus: &CpuSet) -> usize {
    let limit = request.cpu_limit.unwrap_or(0).div_ceil(1000).max(1);
    match cpus.len() {
        0 => limit as usize,
        own => own,
    }
}

fn pool(ground: &Ground, allocation: &Allocation, cpus: &CpuSet) -> CpuSet {
    let pools = ground.pools();
    let of_node = allocation.numa_node.and_then(|node| pools.shared_by_node.get(&node));
    match of_node {
        Some(pool) => pool.cpus.clone(),
        None => pools.cpus_of(allocation.qos, cpus).clone(),
    }
}
