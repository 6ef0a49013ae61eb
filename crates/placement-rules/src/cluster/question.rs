//! A question to many nodes, worked out apart from the cluster.
//!
//! Whoever shares the cluster holds its lock for what is remembered only: [`Cluster::prepare`] takes down what is known of each node, and the
//! states that were never asked; [`Question::work_out`] evaluates these without the cluster, while it may change; [`Cluster::learn`] keeps
//! the answers. So an answer is of the moment of the look, as any answer is by the time that it arrives. A bind evaluates once more.

use std::collections::HashMap;
use std::sync::Arc;

use super::reasons::Reason;
use super::requests::RequestId;
use super::states::{Cell, State, StateId};
use super::verdict::{Verdict, forgotten, no_object};
use super::{Cluster, NodeRecord, Slot};
use crate::evaluate::{Arrival, By, NodeForecast, Placement, Refusal, evaluate};
use crate::node::{Available, Shape};
use crate::request::SharedRequest;
use crate::score::Weights;

/// What some nodes would do with a request.
#[derive(Debug)]
pub struct Question {
    number: RequestId,
    /// `None`: it is forgotten.
    request: Option<SharedRequest>,
    weights: Weights,
    /// In the order of the names.
    nodes: Vec<NodeAnswer>,
    open: Vec<OpenState>,
}

#[derive(Debug)]
enum NodeAnswer {
    Answered(Verdict),
    /// A place in `open`.
    Pending(usize),
}

/// A state that was never asked.
#[derive(Debug)]
struct OpenState {
    at: StateId,
    state: Arc<State>,
    answer: Option<Result<u16, Refusal>>,
}

pub(super) fn refused(refusal: &Refusal) -> Verdict {
    Verdict::Refused(Reason {
        by: refusal.by,
        name: refusal.name,
    })
}

impl Question {
    /// How many evaluations are left to [`Self::work_out`].
    pub fn open(&self) -> usize {
        self.open.iter().filter(|open| open.answer.is_none()).count()
    }

    /// Evaluates what is not known.
    pub fn work_out(&mut self) {
        let Some(request) = &self.request else { return };
        for open in self.open.iter_mut().filter(|open| open.answer.is_none()) {
            let placement = evaluate(&open.state.shape, &open.state.forecast, &request.0, &self.weights);
            open.answer = Some(placement.map(|placement| placement.score.total));
        }
    }

    /// The answers, in the order of the names; a node that was not worked out counts as one that is not asked about.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.nodes.iter().map(|node_answer| match node_answer {
            NodeAnswer::Answered(verdict) => *verdict,
            NodeAnswer::Pending(place) => match self.open.get(*place).and_then(|open| open.answer.as_ref()) {
                Some(Ok(total)) => Verdict::Fits(*total),
                Some(Err(refusal)) => refused(refusal),
                None => refused(&forgotten()),
            },
        })
    }
}

/// A node's state without some of its pods, to be evaluated apart from the cluster.
#[derive(Debug)]
pub struct Emptied {
    pub(super) shape: Arc<Shape>,
    pub(super) published: Available,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) request: SharedRequest,
    pub(super) weights: Weights,
}

impl Emptied {
    /// What the node would do.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn evaluate(self) -> Result<Placement, Refusal> {
        let (forecast, _) = NodeForecast::new(&self.shape, self.published, self.arrivals);
        evaluate(&self.shape, &forecast, &self.request.0, &self.weights)
    }
}

impl Cluster {
    /// What is known of these nodes' answers.
    pub fn prepare<'n>(&mut self, number: RequestId, names: impl IntoIterator<Item = &'n str>) -> Question {
        let request = self.requests.shared(number);
        let (mut open, mut places) = (Vec::new(), HashMap::new());
        let names = names.into_iter();
        let nodes = names.map(|name| match (&request, self.names.get(name)) {
            (None, _) => NodeAnswer::Answered(refused(&forgotten())),
            (_, None) => NodeAnswer::Answered(refused(&no_object())),
            (_, Some(at)) => self.node_answer(*at, number, &mut open, &mut places),
        });
        Question {
            nodes: nodes.collect(),
            number,
            request,
            weights: self.weights,
            open,
        }
    }

    fn node_answer(
        &self,
        at: usize,
        number: RequestId,
        open: &mut Vec<OpenState>,
        places: &mut HashMap<StateId, usize>,
    ) -> NodeAnswer {
        let state = match self.nodes.get(at) {
            Some(Slot {
                known: Ok(NodeRecord { state, .. }),
                ..
            }) => *state,
            Some(Slot { known: Err(cause), .. }) => {
                return NodeAnswer::Answered(Verdict::Refused(Reason {
                    by: By::Scheduler,
                    name: cause.name(),
                }));
            }
            None => return NodeAnswer::Answered(refused(&no_object())),
        };
        match self.states.cell(state, number).answer() {
            Some(Ok(total)) => NodeAnswer::Answered(Verdict::Fits(total)),
            Some(Err(reason)) => NodeAnswer::Answered(match self.reasons.get(reason) {
                Some(reason) => Verdict::Refused(reason),
                None => refused(&forgotten()),
            }),
            None => match self.states.shared(state) {
                None => NodeAnswer::Answered(refused(&no_object())),
                Some(of) => NodeAnswer::Pending(*places.entry(state).or_insert_with(|| {
                    open.push(OpenState {
                        at: state,
                        state: of,
                        answer: None,
                    });
                    open.len() - 1
                })),
            },
        }
    }

    /// Keeps what was worked out, for the states that nodes are in still.
    pub fn learn(&mut self, question: &Question) {
        if self.requests.peek(question.number).is_none() {
            return;
        }
        for open in &question.open {
            let cell = match &open.answer {
                Some(Ok(total)) => Cell::fits(*total),
                Some(Err(refusal)) => Cell::refused(self.reasons.number(refusal)),
                None => continue,
            };
            if self.states.is(open.at, &open.state) {
                self.states.set(open.at, question.number, cell);
            }
        }
    }
}
