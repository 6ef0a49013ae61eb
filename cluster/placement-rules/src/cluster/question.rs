//! A question to many nodes, evaluated without the cluster.
//!
//! A caller that shares the cluster between threads holds its lock for a short time only: [`Cluster::question`] copies the stored answers
//! and the states that have none, [`Question::evaluate`] evaluates these while the cluster may change, and [`Cluster::keep_answers`]
//! stores the new answers. An answer is therefore of the moment of the question. A bind evaluates once more.

use std::collections::HashMap;
use std::sync::Arc;

use super::reason_numbers::RefusalReason;
use super::requests::RequestId;
use super::states::{Cell, StateId, StoredState};
use super::verdict::{NodeVerdict, forgotten, no_object};
use super::{Cluster, NodeRecord, Slot};
use crate::evaluate::{Arrival, DecidedBy, NodeForecast, Placement, Refusal, evaluate};
use crate::node::{FreeResources, NodeShape};
use crate::request::SharedRequest;
use crate::score::Weights;

/// What some nodes would do with a request.
#[derive(Debug)]
pub struct Question {
    id: RequestId,
    /// `None` if the request was dropped.
    request: Option<SharedRequest>,
    weights: Weights,
    /// In the order of the names.
    nodes: Vec<NodeAnswer>,
    unanswered: Vec<UnansweredState>,
}

#[derive(Debug)]
enum NodeAnswer {
    Answered(NodeVerdict),
    /// A place in `unanswered`.
    Pending(usize),
}

/// A state without an answer.
#[derive(Debug)]
struct UnansweredState {
    at: StateId,
    state: Arc<StoredState>,
    answer: Option<Result<u16, Refusal>>,
}

pub(super) fn refused(refusal: &Refusal) -> NodeVerdict {
    NodeVerdict::Refused(refusal.into())
}

impl Question {
    /// How many evaluations are left to [`Self::evaluate`].
    pub fn unanswered(&self) -> usize {
        self.unanswered
            .iter()
            .filter(|unanswered| unanswered.answer.is_none())
            .count()
    }

    /// Evaluates the states without an answer.
    pub fn evaluate(&mut self) {
        let Some(request) = &self.request else { return };
        for unanswered in self
            .unanswered
            .iter_mut()
            .filter(|unanswered| unanswered.answer.is_none())
        {
            let placement = evaluate(
                &unanswered.state.shape,
                unanswered.state.forecast(),
                request,
                &self.weights,
            );
            unanswered.answer = Some(placement.map(|placement| placement.score.total));
        }
    }

    /// The answers, in the order of the names; a node that was not evaluated is refused.
    pub fn verdicts(&self) -> impl Iterator<Item = NodeVerdict> {
        self.nodes.iter().map(|node_answer| match node_answer {
            NodeAnswer::Answered(verdict) => *verdict,
            NodeAnswer::Pending(place) => match self
                .unanswered
                .get(*place)
                .and_then(|unanswered| unanswered.answer.as_ref())
            {
                Some(Ok(total)) => NodeVerdict::Fits(*total),
                Some(Err(refusal)) => refused(refusal),
                None => refused(&forgotten()),
            },
        })
    }
}

/// A node's state and a request, to be evaluated apart from the cluster.
#[derive(Debug)]
pub struct Evaluation {
    pub(super) state: Arc<StoredState>,
    pub(super) request: SharedRequest,
    pub(super) weights: Weights,
}

impl Evaluation {
    /// What the node would do, in full.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn evaluate(&self) -> Result<Placement, Refusal> {
        evaluate(&self.state.shape, self.state.forecast(), &self.request, &self.weights)
    }
}

/// Two that are of the same state of a node and the same request are equal, because their answers are.
impl PartialEq for Evaluation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state) && self.request == other.request
    }
}

/// A node's state without some of its pods, to be evaluated apart from the cluster.
#[derive(Debug)]
pub struct NodeWithoutPods {
    pub(super) shape: Arc<NodeShape>,
    pub(super) published: FreeResources,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) request: SharedRequest,
    pub(super) weights: Weights,
}

impl NodeWithoutPods {
    /// What the node would do.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn evaluate(self) -> Result<Placement, Refusal> {
        let forecast = NodeForecast::new(&self.shape, self.published, self.arrivals);
        evaluate(&self.shape, &forecast, &self.request, &self.weights)
    }
}

impl Cluster {
    /// A question to these nodes, with the answers that are stored.
    pub fn question<'n>(&mut self, id: RequestId, names: impl IntoIterator<Item = &'n str>) -> Question {
        let request = self.requests.shared(id);
        let (mut unanswered, mut places) = (Vec::new(), HashMap::new());
        let names = names.into_iter();
        let nodes = names.map(|name| match (&request, self.names.get(name)) {
            (None, _) => NodeAnswer::Answered(refused(&forgotten())),
            (_, None) => NodeAnswer::Answered(refused(&no_object())),
            (_, Some(at)) => self.node_answer(*at, id, &mut unanswered, &mut places),
        });
        Question {
            nodes: nodes.collect(),
            id,
            request,
            weights: self.weights,
            unanswered,
        }
    }

    fn node_answer(
        &self,
        at: usize,
        id: RequestId,
        unanswered: &mut Vec<UnansweredState>,
        places: &mut HashMap<StateId, usize>,
    ) -> NodeAnswer {
        let state = match self.nodes.get(at) {
            Some(Slot {
                known: Ok(NodeRecord { state, .. }),
                ..
            }) => *state,
            Some(Slot { known: Err(cause), .. }) => {
                return NodeAnswer::Answered(NodeVerdict::Refused(RefusalReason {
                    by: DecidedBy::Scheduler,
                    name: cause.name(),
                }));
            }
            None => return NodeAnswer::Answered(refused(&no_object())),
        };
        match self.states.cell(state, id).answer() {
            Some(Ok(total)) => NodeAnswer::Answered(NodeVerdict::Fits(total)),
            Some(Err(reason)) => NodeAnswer::Answered(match self.reasons.get(reason) {
                Some(reason) => NodeVerdict::Refused(reason),
                None => refused(&forgotten()),
            }),
            None => match self.states.get(Some(state)) {
                None => NodeAnswer::Answered(refused(&no_object())),
                Some(of) => NodeAnswer::Pending(*places.entry(state).or_insert_with(|| {
                    unanswered.push(UnansweredState {
                        at: state,
                        state: Arc::clone(of),
                        answer: None,
                    });
                    unanswered.len() - 1
                })),
            },
        }
    }

    /// Stores the answers for the states that nodes are still in.
    pub fn keep_answers(&mut self, question: &Question) {
        if self.requests.peek(question.id).is_none() {
            return;
        }
        for unanswered in &question.unanswered {
            let cell = match &unanswered.answer {
                Some(Ok(total)) => Cell::fits(*total),
                Some(Err(refusal)) => Cell::refused(self.reasons.number(refusal)),
                None => continue,
            };
            if self.states.has(unanswered.at, &unanswered.state) {
                self.states.set(unanswered.at, question.id, cell);
            }
        }
    }
}
