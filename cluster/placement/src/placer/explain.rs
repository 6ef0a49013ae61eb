//! Why a pod waits, or where it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use stelia_placement_rules::evaluate::Placement;

use super::{Placer, PlacerAnswer};
use crate::reservations::{Moment, NodeName, ReservationStatus};

/// Limit of the best nodes that are described in full.
const MAX_EXPLAINED_NODES: usize = 5;

/// What is known of a pod.
#[derive(Debug, Serialize)]
pub struct Explanation {
    pub pod: Arc<str>,
    pub uid: String,
    /// Where it holds CPUs, or is bound.
    pub claims: Vec<Claimed>,
    /// How many nodes would take it.
    pub fit: usize,
    /// How many would not, by the reason's name.
    pub refused: BTreeMap<&'static str, usize>,
    /// The best of those that would, in full.
    pub best: Vec<Candidate>,
}

/// A claim of a pod.
#[derive(Debug, Serialize)]
pub struct Claimed {
    pub node: NodeName,
    /// `binding`, `unseen` (bound, and not in the node's object) or `bound`.
    pub state: &'static str,
    pub cpus: Option<String>,
    /// For how long.
    pub seconds: u64,
}

/// A node that would take it.
#[derive(Debug, Serialize)]
pub struct Candidate {
    pub node: NodeName,
    pub score: u16,
    pub placement: Option<Placement>,
}

fn claimed(standing: ReservationStatus, now: Moment) -> Claimed {
    Claimed {
        node: standing.node,
        state: standing.state,
        cpus: standing.cpus.map(|cpus| cpus.to_string()),
        seconds: now.saturating_sub(standing.since).as_secs(),
    }
}

impl Placer {
    /// What is known of a pod that was asked about, `namespace/name`; `None` of others.
    pub fn explain(&self, name: &str) -> Option<Explanation> {
        let now = self.now();
        let state = self.state();
        let (uid, asked) = state.filtered.named(name)?;
        let asked = asked.clone();
        let claims = state
            .reservations
            .statuses(uid)
            .into_iter()
            .map(|standing| claimed(standing, now))
            .collect();
        let mut explanation = Explanation {
            pod: asked.name,
            uid: uid.to_string(),
            claims,
            fit: 0,
            refused: BTreeMap::new(),
            best: Vec::new(),
        };
        let Some(request) = asked.request else {
            return Some(explanation);
        };
        let names: Vec<String> = state.reservations.rules().cluster.names().map(str::to_owned).collect();
        let named: Vec<&str> = names.iter().map(String::as_str).collect();
        drop(state);
        let mut fits: Vec<(u16, &str)> = Vec::new();
        self.evaluate_nodes(&request, &named, |name, answer| match answer {
            PlacerAnswer::Fits(score) => fits.push((score, name)),
            PlacerAnswer::Refused(why) => *explanation.refused.entry(why).or_default() += 1,
        });
        explanation.fit = fits.len();
        fits.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(other.1)));
        fits.truncate(MAX_EXPLAINED_NODES);
        let mut state = self.state();
        let id = state.request_id(&request, now);
        let cluster = &mut state.reservations.rules_mut().cluster;
        let best = fits.iter().map(|(_, node)| cluster.evaluation(node, id));
        let best: Vec<_> = best.collect();
        drop(state);
        let best = fits.into_iter().zip(best).map(|((score, node), evaluation)| Candidate {
            node: node.into(),
            score,
            placement: evaluation.and_then(|evaluation| evaluation.evaluate()).ok(),
        });
        explanation.best = best.collect();
        Some(explanation)
    }
}
