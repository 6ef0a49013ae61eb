//! A question to many nodes, worked out apart from the cluster.
//!
//! Whoever shares the cluster holds its lock for what is remembered only: [`Cluster::look`] takes down what is known of each node, and the
//! states that were never asked; [`Question::work_out`] evaluates these without the cluster, while it may change; [`Cluster::learn`] keeps
//! the answers. So an answer is of the moment of the look, as any answer is by the time that it arrives. A bind evaluates once more.

use std::collections::HashMap;
use std::sync::Arc;

use super::ask::{Verdict, forgotten, no_object};
use super::reasons::Reason;
use super::requests::RequestId;
use super::states::{Cell, State, StateId};
use super::{Cluster, Known, Slot};
use crate::evaluate::{Arrival, By, Placement, Refusal, Standing, evaluate};
use crate::node::{Available, Shape};
use crate::request::Shared;
use crate::score::Weights;

/// What some nodes would do with a request.
#[derive(Debug)]
pub struct Question {
    number: RequestId,
    /// `None`: it is forgotten.
    request: Option<Shared>,
    weights: Weights,
    /// In the order of the names.
    nodes: Vec<Told>,
    open: Vec<Open>,
}

#[derive(Debug)]
enum Told {
    Known(Verdict),
    /// A place in `open`.
    Open(usize),
}

/// A state that was never asked.
#[derive(Debug)]
struct Open {
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
            let placement = evaluate(&open.state.shape, &open.state.standing, &request.0, &self.weights);
            open.answer = Some(placement.map(|placement| placement.score.total));
        }
    }

    /// The answers, in the order of the names; a node that was not worked out counts as one that is not asked about.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.nodes.iter().map(|told| match told {
            Told::Known(verdict) => *verdict,
            Told::Open(place) => match self.open.get(*place).and_then(|open| open.answer.as_ref()) {
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
    pub(super) request: Shared,
    pub(super) weights: Weights,
}

impl Emptied {
    /// What the node would do.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn evaluate(self) -> Result<Placement, Refusal> {
        let (standing, _) = Standing::new(&self.shape, self.published, self.arrivals);
        evaluate(&self.shape, &standing, &self.request.0, &self.weights)
    }
}

impl Cluster {
    /// What is known of these nodes' answers.
    pub fn look<'n>(&mut self, number: RequestId, names: impl IntoIterator<Item = &'n str>) -> Question {
        let request = self.requests.shared(number);
        let (mut open, mut places) = (Vec::new(), HashMap::new());
        let names = names.into_iter();
        let nodes = names.map(|name| match (&request, self.names.get(name)) {
            (None, _) => Told::Known(refused(&forgotten())),
            (_, None) => Told::Known(refused(&no_object())),
            (_, Some(at)) => self.told(*at, number, &mut open, &mut places),
        });
        Question {
            nodes: nodes.collect(),
            number,
            request,
            weights: self.weights,
            open,
        }
    }

    fn told(&self, at: usize, number: RequestId, open: &mut Vec<Open>, places: &mut HashMap<StateId, usize>) -> Told {
        let state = match self.nodes.get(at) {
            Some(Slot {
                known: Ok(Known { state, .. }),
                ..
            }) => *state,
            Some(Slot { known: Err(cause), .. }) => {
                return Told::Known(Verdict::Refused(Reason {
                    by: By::Scheduler,
                    name: cause.name(),
                }));
            }
            None => return Told::Known(refused(&no_object())),
        };
        match self.states.cell(state, number).answer() {
            Some(Ok(total)) => Told::Known(Verdict::Fits(total)),
            Some(Err(reason)) => Told::Known(match self.reasons.get(reason) {
                Some(reason) => Verdict::Refused(reason),
                None => refused(&forgotten()),
            }),
            None => match self.states.shared(state) {
                None => Told::Known(refused(&no_object())),
                Some(of) => Told::Open(*places.entry(state).or_insert_with(|| {
                    open.push(Open {
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
