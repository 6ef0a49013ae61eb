//! The states that nodes are in, each once, with its answers.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::NodeVerdict;
use crate::evaluate::{Arrival, NodeForecast, Placement, Refusal, evaluate};
use crate::node::{FreeResources, NodeShape};
use crate::request::Request;

/// What is left on a node, which pods are on their way to it, and what it answers.
#[derive(Debug)]
pub(super) struct State {
    pub(super) shape: Arc<NodeShape>,
    pub(super) published: FreeResources,
    pub(super) arrivals: Vec<Arrival>,
    /// Made by the first who asks, and so not under a lock that others wait for.
    forecast: OnceLock<NodeForecast>,
    answers: Mutex<Answers>,
}

/// A state's answers, two bytes each.
#[derive(Debug, Default)]
struct Answers {
    /// By the request's place: 0 without an answer, the score's total and 1, or [`REFUSED`] and the place of the reason.
    cells: Vec<u16>,
    /// There are few: kubelet's reasons, steliad's errors.
    reasons: Vec<&'static str>,
}

const REFUSED: u16 = 0x8000;

impl State {
    pub(super) fn new(shape: Arc<NodeShape>, published: FreeResources, arrivals: Vec<Arrival>) -> Self {
        Self {
            shape,
            published,
            arrivals,
            forecast: OnceLock::new(),
            answers: Mutex::default(),
        }
    }

    pub(super) fn evaluate(&self, request: &Request) -> Result<Placement, Refusal> {
        evaluate(&self.shape, self.forecast(), request)
    }

    pub(super) fn forecast(&self) -> &NodeForecast {
        let made = || NodeForecast::new(&self.shape, self.published.clone(), self.arrivals.clone());
        self.forecast.get_or_init(made)
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to the request of this place, if there is one.
    pub(super) fn answer(&self, place: usize) -> Option<NodeVerdict> {
        let answers = self.answers();
        match *answers.cells.get(place)? {
            0 => None,
            refused if refused & REFUSED != 0 => {
                let reason = answers.reasons.get(usize::from(refused & !REFUSED))?;
                Some(NodeVerdict::Refused(reason))
            }
            fits => Some(NodeVerdict::Fits(fits - 1)),
        }
    }

    /// Stores the answer to the request of this place; `None` once another request has the place.
    pub(super) fn set_answer(&self, place: usize, answer: Option<NodeVerdict>) {
        let mut answers = self.answers();
        let cell = match answer {
            None => 0,
            Some(NodeVerdict::Fits(total)) => total.saturating_add(1).min(REFUSED - 1),
            Some(NodeVerdict::Refused(name)) => {
                let known = answers.reasons.iter().position(|known| *known == name);
                let at = known.unwrap_or(answers.reasons.len());
                if known.is_none() {
                    answers.reasons.push(name);
                }
                REFUSED | u16::try_from(at).unwrap_or(u16::MAX)
            }
        };
        if answers.cells.len() <= place {
            answers.cells.resize(place + 1, 0);
        }
        answers.cells[place] = cell;
    }
}

/// Equal states are of the same shape and have the same left.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shape, &other.shape) && self.published == other.published && self.arrivals == other.arrivals
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.shape).hash(state);
        self.published.hash(state);
        self.arrivals.hash(state);
    }
}

/// All states, with the number of nodes that are in each.
#[derive(Debug, Default)]
pub(super) struct States(HashMap<Arc<State>, usize>);

impl States {
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a node to this state, and returns it as it is stored.
    pub(super) fn enter(&mut self, state: State) -> Arc<State> {
        let entry = self.0.entry(Arc::new(state));
        let stored = Arc::clone(entry.key());
        *entry.or_default() += 1;
        stored
    }

    /// Removes a node from the state.
    pub(super) fn leave(&mut self, state: &State) {
        if let Some(nodes) = self.0.get_mut(state) {
            *nodes -= 1;
            if *nodes == 0 {
                self.0.remove(state);
            }
        }
    }

    /// Drops the answers to a request, whose place another request has now.
    pub(super) fn forget(&self, place: usize) {
        let answered = self.0.keys().filter(|state| state.answer(place).is_some());
        answered.for_each(|state| state.set_answer(place, None));
    }
}
