//! A question to many nodes, evaluated without the cluster.
//!
//! A caller that shares the cluster between threads holds its lock for a short time only: [`Cluster::question`] copies the stored answers
//! and the states that have none, [`Question::evaluate`] evaluates these while the cluster may change, and [`Cluster::keep_answers`]
//! stores the new answers. An answer is therefore of the moment of the question. A bind evaluates once more.

use std::collections::HashMap;
use std::sync::Arc;

use super::states::{Cell, StateId, StoredState};
use super::verdict::NodeVerdict;
use super::{Cluster, NodeRecord, Slot};
use crate::evaluate::refusal_names::{NO_ANSWER, NO_OBJECT};
use crate::evaluate::{Placement, Refusal};
use crate::request::SharedRequest;

/// What some nodes would do with a request.
#[derive(Debug)]
pub struct Question {
    request: SharedRequest,
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

const NO_OBJECT_VERDICT: NodeAnswer = NodeAnswer::Answered(NodeVerdict::Refused(NO_OBJECT));

impl Question {
    /// How many evaluations are left to [`Self::evaluate`].
    pub fn unanswered(&self) -> usize {
        let pending = self.unanswered.iter().filter(|one| one.answer.is_none());
        pending.count()
    }

    /// Evaluates the states without an answer.
    pub fn evaluate(&mut self) {
        for unanswered in self.unanswered.iter_mut().filter(|one| one.answer.is_none()) {
            let placement = unanswered.state.evaluate(&self.request);
            unanswered.answer = Some(placement.map(|placement| placement.score.total));
        }
    }

    /// The answers, in the order of the names; a node that was not evaluated is refused.
    pub fn verdicts(&self) -> impl Iterator<Item = NodeVerdict> {
        self.nodes.iter().map(|node_answer| match node_answer {
            NodeAnswer::Answered(verdict) => *verdict,
            NodeAnswer::Pending(place) => match self.unanswered.get(*place).and_then(|one| one.answer.as_ref()) {
                Some(Ok(total)) => NodeVerdict::Fits(*total),
                Some(Err(refusal)) => NodeVerdict::Refused(refusal.name),
                None => NodeVerdict::Refused(NO_ANSWER),
            },
        })
    }
}

/// A node's state and a request, to be evaluated apart from the cluster.
#[derive(Debug)]
pub struct Evaluation {
    pub(super) state: Arc<StoredState>,
    pub(super) request: SharedRequest,
}

impl Evaluation {
    /// What the node would do, in full.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn evaluate(&self) -> Result<Placement, Refusal> {
        self.state.evaluate(&self.request)
    }
}

/// Two that are of the same state of a node and the same request are equal, because their answers are.
impl PartialEq for Evaluation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state) && self.request == other.request
    }
}

impl Cluster {
    /// A question to these nodes, with the answers that are stored.
    pub fn question<'n>(&mut self, request: &SharedRequest, names: impl IntoIterator<Item = &'n str>) -> Question {
        let place = self.requests.place(request);
        let (mut unanswered, mut places) = (Vec::new(), HashMap::new());
        let names = names.into_iter();
        let nodes = names.map(|name| match self.names.get(name) {
            None => NO_OBJECT_VERDICT,
            Some(at) => self.node_answer(*at, place, &mut unanswered, &mut places),
        });
        Question {
            nodes: nodes.collect(),
            request: request.clone(),
            unanswered,
        }
    }

    fn node_answer(
        &self,
        at: usize,
        place: Option<usize>,
        unanswered: &mut Vec<UnansweredState>,
        places: &mut HashMap<StateId, usize>,
    ) -> NodeAnswer {
        let state = match self.nodes.get(at) {
            Some(Slot {
                known: Ok(NodeRecord { state, .. }),
                ..
            }) => *state,
            Some(Slot { known: Err(cause), .. }) => {
                return NodeAnswer::Answered(NodeVerdict::Refused(cause.name()));
            }
            None => return NO_OBJECT_VERDICT,
        };
        match place.and_then(|place| self.states.cell(state, place).answer()) {
            Some(Ok(total)) => NodeAnswer::Answered(NodeVerdict::Fits(total)),
            Some(Err(reason)) => {
                let reason = self.reasons.get(usize::from(reason)).copied();
                NodeAnswer::Answered(NodeVerdict::Refused(reason.unwrap_or(NO_ANSWER)))
            }
            None => match self.states.get(Some(state)) {
                None => NO_OBJECT_VERDICT,
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
        let Some(place) = self.requests.place(&question.request) else {
            return;
        };
        for unanswered in &question.unanswered {
            let cell = match &unanswered.answer {
                Some(Ok(total)) => Cell::fits(*total),
                Some(Err(refusal)) => Cell::refused(self.reason_number(refusal.name)),
                None => continue,
            };
            if self.states.has(unanswered.at, &unanswered.state) {
                self.states.set(unanswered.at, place, cell);
            }
        }
    }

    fn reason_number(&mut self, name: &'static str) -> u16 {
        let found = self.reasons.iter().position(|known| *known == name);
        let at = found.unwrap_or_else(|| {
            self.reasons.push(name);
            self.reasons.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}
