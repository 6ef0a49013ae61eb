//! Which VMs would have to move so that a pod that fits on no node finds room: a search for as few as possible. It moves nothing.
//!
//! On each node it looks for a set of VMs without which the pod would be admitted, the smallest sets first, and then for a place for each of
//! these: other CPUs of the same node (a rebind, the guest goes on; only where steliad chose its CPUs), or another node (a live
//! migration). Every step is asked of the nodes' own rules, each after the steps before it. The search is bounded; the answer says whether it
//! came to its end.
//!
//! A VM that moves frees its CPUs. Memory that kubelet's Memory Manager bound counts as freed on the NUMA node of its CPUs, and not at all if
//! these are on several; devices do not count as freed.

mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_kubelet::Uid;

use crate::cluster::{Cluster, NodeVerdict};
use crate::evaluate::{NodeForecast, Placement, Refusal, evaluate};
use crate::node::NodeShape;
use crate::request::{Request, SharedRequest};
use crate::score::Weights;

/// A VM that runs.
#[derive(Debug, Clone)]
pub struct Resident {
    pub uid: Uid,
    pub request: SharedRequest,
    /// Whether a rebind may give it other CPUs of its node.
    pub rebinds: bool,
    /// Whether it may be migrated to another node.
    pub migrates: bool,
}

/// VMs by node. Pods that are not named stay where they are.
pub type Residents = BTreeMap<String, Vec<Resident>>;

/// How far is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// VMs of one plan.
    pub moves: usize,
    /// Questions to nodes' rules, in all.
    pub tries: usize,
    /// Limit of the plans that are returned, the best ones.
    pub plans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            moves: 3,
            tries: 20_000,
            plans: 3,
        }
    }
}

/// How a VM moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveKind {
    /// To other CPUs of its node, by a rebind job.
    Rebind,
    /// To another node, live.
    Migrate,
}

/// One VM's move; a plan's moves are made one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    pub uid: Uid,
    pub how: MoveKind,
    /// The node that it goes to; its own for a rebind.
    pub to: String,
    pub from_cpus: CpuSet,
    pub cpus: CpuSet,
    /// Bytes that a migration copies: what the pod requests.
    pub memory: u64,
}

/// What would make room on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub node: String,
    pub moves: Vec<Move>,
    /// Where the pod runs afterwards.
    pub placement: Placement,
    pub gain: Gain,
}

/// The gain and the cost of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gain {
    /// CPUs that the pod gets.
    pub cpus: usize,
    /// CPUs of VMs that move.
    pub moved_cpus: usize,
    /// Bytes that migrations copy.
    pub copied: u64,
    /// Whole free cores of the node now, and when all is done.
    pub free_cores: (usize, usize),
}

/// What was searched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Search {
    /// Nodes that were searched for a set of VMs.
    pub nodes: usize,
    /// Nodes that were passed over, by the reason.
    pub passed_over: BTreeMap<&'static str, usize>,
    /// Questions to nodes' rules.
    pub tries: usize,
    /// Whether it ended at [`Limits::tries`]: there may be better plans, or one at all.
    pub cut: bool,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Rebalance {
    /// Nodes that have room already, the best one: nothing has to move.
    pub fits: Option<String>,
    /// The best first: fewest migrations, then least memory to copy, then fewest moves.
    pub plans: Vec<Plan>,
    pub search: Search,
}

/// A VM that is migrated away, and where to; `None`: to any node.
pub type Departure<'a> = (Uid, Option<&'a str>);

/// Whether the scheduler would bind the pod to a node, and the VMs to the nodes that they go to, once these have left it. It is asked for what the
/// nodes' own rules do not have: the sums of requests.
pub type Binds<'a> = dyn Fn(&str, &[Departure<'_>]) -> bool + 'a;

/// What keeps a node from being searched.
const UNUSABLE: &str = "its object cannot be used";
const NO_VMS: &str = "no VM there may move";
const TOO_SMALL: &str = "too few CPUs, even without the VMs that may move";

const REQUESTED: &str = "too little is left of what pods may request, even without the VMs that may move";

/// Searches.
pub fn rebalance(
    cluster: &mut Cluster,
    residents: &Residents,
    request: &Request,
    limits: Limits,
    binds: &Binds<'_>,
) -> Rebalance {
    let mut answer = Rebalance::default();
    let mut names: Vec<String> = cluster.names().map(str::to_owned).collect();
    names.sort_unstable();
    let id = cluster.request(request.clone());
    let mut best: Option<(u16, String)> = None;
    cluster.verdicts(id, names.iter().map(String::as_str), |name, verdict| {
        if let NodeVerdict::Fits(total) = verdict
            && best.as_ref().is_none_or(|(most, _)| total > *most)
            && binds(name, &[])
        {
            best = Some((total, name.to_owned()));
        }
    });
    if let Some((_, name)) = best {
        answer.fits = Some(name);
        return answer;
    }
    let mut search = search::Searcher {
        cluster,
        names: &names,
        request,
        limits,
        binds,
        tries: 0,
        destinations: BTreeMap::new(),
    };
    // The nodes with the fewest missing CPUs first.
    let mut candidates: Vec<(usize, &String, Vec<search::Victim>)> = Vec::new();
    for name in &names {
        match search.candidate(name, residents.get(name).map_or(&[], Vec::as_slice)) {
            Ok((missing, victims)) => candidates.push((missing, name, victims)),
            Err(why) => *answer.search.passed_over.entry(why).or_default() += 1,
        }
    }
    candidates.sort_by_key(|(missing, name, _)| (*missing, *name));
    // What few moves do is known of every node before more are tried of one.
    for size in 1..=limits.moves {
        candidates.retain(|(_, name, victims)| {
            if search.tries >= limits.tries || victims.len() < size {
                return false;
            }
            answer.search.nodes += usize::from(size == 1);
            let plan = search.plan(name, victims, size);
            let has_plan = plan.is_some();
            answer.plans.extend(plan);
            !has_plan
        });
    }
    answer.search.tries = search.tries;
    answer.search.cut = search.tries >= limits.tries;
    answer.plans.sort_by_key(|plan| {
        let migrations = plan.moves.iter().filter(|one| one.how == MoveKind::Migrate).count();
        (migrations, plan.gain.copied, plan.moves.len(), plan.gain.moved_cpus)
    });
    answer.plans.truncate(limits.plans);
    answer
}

/// As [`evaluate`] with the default weights: scores do not matter here.
fn evaluate_unweighted(shape: &NodeShape, forecast: &NodeForecast, request: &Request) -> Result<Placement, Refusal> {
    evaluate(shape, forecast, request, &Weights::default())
}
