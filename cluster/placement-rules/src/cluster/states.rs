//! The states that nodes are in, each once, with its answers.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::evaluate::{Arrival, NodeForecast, Placement, Refusal, evaluate};
use crate::node::{FreeResources, NodeShape};
use crate::request::Request;

/// A state's place.
pub(super) type StateId = usize;

/// An answer in two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell(u16);

const REFUSED: u16 = 0x8000;

impl Cell {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn fits(total: u16) -> Self {
        Self(total.saturating_add(1).min(REFUSED - 1))
    }

    pub(super) fn refused(reason: u16) -> Self {
        Self(REFUSED | reason)
    }

    /// The score's total, or the number of the reason; `None` if there is no answer yet.
    pub(super) fn answer(self) -> Option<Result<u16, u16>> {
        match self.0 {
            0 => None,
            refused if refused & REFUSED != 0 => Some(Err(refused & !REFUSED)),
            fits => Some(Ok(fits - 1)),
        }
    }
}

#[derive(Debug)]
pub(super) struct StoredState {
    pub(super) shape: Arc<NodeShape>,
    pub(super) published: FreeResources,
    pub(super) arrivals: Vec<Arrival>,
    /// Made by the first who asks, and so not under a lock that others wait for.
    forecast: OnceLock<NodeForecast>,
}

impl StoredState {
    pub(super) fn new(shape: Arc<NodeShape>, published: FreeResources, arrivals: Vec<Arrival>) -> Arc<Self> {
        Arc::new(Self {
            shape,
            published,
            arrivals,
            forecast: OnceLock::new(),
        })
    }

    pub(super) fn evaluate(&self, request: &Request) -> Result<Placement, Refusal> {
        evaluate(&self.shape, self.forecast(), request)
    }

    pub(super) fn forecast(&self) -> &NodeForecast {
        let made = || NodeForecast::new(&self.shape, self.published.clone(), self.arrivals.clone());
        self.forecast.get_or_init(made)
    }
}

/// Equal states are of the same shape and have the same left.
impl PartialEq for StoredState {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shape, &other.shape) && self.published == other.published && self.arrivals == other.arrivals
    }
}

impl Eq for StoredState {}

impl Hash for StoredState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.shape).hash(state);
        self.published.hash(state);
        self.arrivals.hash(state);
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// `None` if no node is in the state.
    state: Option<Arc<StoredState>>,
    nodes: u32,
    /// By the request's place.
    cells: Vec<Cell>,
}

#[derive(Debug, Default)]
pub(super) struct States {
    places: HashMap<Arc<StoredState>, StateId>,
    entries: Vec<Entry>,
    vacant: Vec<StateId>,
}

impl States {
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds a node to this state.
    pub(super) fn enter(&mut self, state: Arc<StoredState>) -> StateId {
        let found = self.places.get(&state).copied();
        let at = found.or_else(|| self.vacant.pop()).unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() - 1
        });
        if let Some(entry) = self.entries.get_mut(at) {
            entry.nodes += 1;
            if found.is_none() {
                entry.cells.clear();
                entry.state = Some(Arc::clone(&state));
                self.places.insert(state, at);
            }
        }
        at
    }

    /// Removes a node from the state.
    pub(super) fn leave(&mut self, at: StateId) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        entry.nodes = entry.nodes.saturating_sub(1);
        if entry.nodes == 0
            && let Some(state) = entry.state.take()
        {
            self.places.remove(&state);
            self.vacant.push(at);
        }
    }

    pub(super) fn get(&self, at: Option<StateId>) -> Option<&Arc<StoredState>> {
        self.entries.get(at?)?.state.as_ref()
    }

    /// Whether the place is still this state's.
    pub(super) fn has(&self, at: StateId, state: &Arc<StoredState>) -> bool {
        let known = self.entries.get(at).and_then(|entry| entry.state.as_ref());
        known.is_some_and(|known| Arc::ptr_eq(known, state))
    }

    /// The state's answer to the request of this place.
    pub(super) fn cell(&self, at: StateId, place: usize) -> Cell {
        let cell = self.entries.get(at).and_then(|entry| entry.cells.get(place));
        cell.copied().unwrap_or(Cell::EMPTY)
    }

    pub(super) fn set(&mut self, at: StateId, place: usize, cell: Cell) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        if entry.cells.len() <= place {
            entry.cells.resize(place + 1, Cell::EMPTY);
        }
        entry.cells[place] = cell;
    }

    /// Drops the answers to a request, whose place another request has now.
    pub(super) fn forget(&mut self, place: usize) {
        for entry in &mut self.entries {
            if let Some(cell) = entry.cells.get_mut(place) {
                *cell = Cell::EMPTY;
            }
        }
    }
}
