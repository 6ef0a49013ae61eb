//! A question to many nodes, evaluated without the cluster.
//!
//! A caller that shares the cluster between threads holds its lock for a short time only: [`Cluster::question`] copies the stored answers
//! and the states that have none, [`Question::evaluate`] evaluates these while the cluster may change, and [`Cluster::keep_answers`]
//! stores the new answers. An answer is therefore of the moment of the question. A bind evaluates once more.

use std::collections::HashMap;
use std::sync::Arc;

use super::states::State;
use super::verdict::NodeVerdict;
use super::{Cluster, Node};
use crate::evaluate::refusal_names::{NO_ANSWER, NO_OBJECT};
use crate::evaluate::{Placement, Refusal};
use crate::request::SharedRequest;

/// What some nodes would do with a request.
#[derive(Debug)]
pub struct Question {
    request: SharedRequest,
    /// In the order of the names; of a node whose state has no answer the place of the state in `asked`.
    nodes: Vec<Result<NodeVerdict, usize>>,
    /// The states that had no answer, each once, with what was evaluated.
    asked: Vec<(Arc<State>, Option<NodeVerdict>)>,
}

impl Question {
    /// How many evaluations are left to [`Self::evaluate`].
    pub fn unanswered(&self) -> usize {
        let pending = self.asked.iter().filter(|(_, answer)| answer.is_none());
        pending.count()
    }

    /// Evaluates the states without an answer.
    pub fn evaluate(&mut self) {
        for (state, answer) in self.asked.iter_mut().filter(|(_, answer)| answer.is_none()) {
            *answer = Some(NodeVerdict::of(&state.evaluate(&self.request)));
        }
    }

    /// The answers, in the order of the names; a node that was not evaluated is refused.
    pub fn verdicts(&self) -> impl Iterator<Item = NodeVerdict> {
        self.nodes.iter().map(|answer| match answer {
            Ok(verdict) => *verdict,
            Err(place) => {
                let answer = self.asked.get(*place).and_then(|(_, answer)| *answer);
                answer.unwrap_or(NodeVerdict::Refused(NO_ANSWER))
            }
        })
    }
}

/// A node's state and a request, to be evaluated apart from the cluster.
#[derive(Debug)]
pub struct Evaluation {
    pub(super) state: Arc<State>,
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
        let (mut asked, mut places) = (Vec::new(), HashMap::new());
        let answer = |name: &str| match self.nodes.get(name).and_then(Node::state) {
            None => Ok(NodeVerdict::Refused(NO_OBJECT)),
            Some(Err(cause)) => Ok(NodeVerdict::Refused(cause.name())),
            Some(Ok(state)) => place.and_then(|place| state.answer(place)).ok_or_else(|| {
                *places.entry(Arc::as_ptr(state)).or_insert_with(|| {
                    asked.push((Arc::clone(state), None));
                    asked.len() - 1
                })
            }),
        };
        Question {
            nodes: names.into_iter().map(answer).collect(),
            request: request.clone(),
            asked,
        }
    }

    /// Stores the answers, unless the request gave way to others meanwhile.
    pub fn keep_answers(&mut self, question: &Question) {
        let Some(place) = self.requests.place(&question.request) else {
            return;
        };
        for (state, answer) in question.asked.iter().filter(|(_, answer)| answer.is_some()) {
            state.set_answer(place, *answer);
        }
    }
}
