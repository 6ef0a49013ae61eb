//! All nodes, and a cache of their answers.
//!
//! Nodes that are in the same state share it, and with it their answers: a state is what is left on a node, and which pods are on their way to it.
//! A state is evaluated once for each request; an update of a node gives that node another state and changes no other node.

mod question;
mod requests;
mod states;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;

use stelia_cpus::CpuSet;
use stelia_kubelet::Uid;

use crate::evaluate::{Arrival, OwnCpus, own_cpus};
use crate::node::{self, NodeError, NodeShape, ParsedNode, ShapeKey};
use crate::request::{Request, SharedRequest};

pub use question::{Evaluation, Question};
use requests::Requests;
use states::{StateId, States, StoredState};
pub use verdict::NodeVerdict;

/// The nodes of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    names: HashMap<Arc<str>, usize>,
    nodes: Vec<Slot>,
    /// Places in `nodes` that no node has any more.
    vacant: Vec<usize>,
    shapes: HashMap<ShapeKey, Arc<NodeShape>>,
    states: States,
    requests: Requests,
    /// The reasons of refusals, by number: the cell of an answer has no room for a text. There are few: kubelet's reasons, steliad's errors.
    reasons: Vec<&'static str>,
}

#[derive(Debug)]
struct Slot {
    known: Result<NodeRecord, NodeError>,
    /// Whether `known` is of an object.
    has_object: bool,
    /// The pods on their way to the node, in the order of the state's arrivals; also stored while the object cannot be used.
    coming: Vec<(Uid, Arrival)>,
}

#[derive(Debug)]
struct NodeRecord {
    state: StateId,
    pods: Box<[Uid]>,
    owners: Box<[Option<u16>]>,
}

/// A pod's VM on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub uid: Uid,
    pub cpus: CpuSet,
}

impl Cluster {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Stores a node's object, JSON. If it cannot be used, nothing is placed on the node until there is another. Returns the pods on their way that the
    /// object shows: they have arrived.
    ///
    /// # Errors
    /// The object cannot be used.
    pub fn put(&mut self, name: &str, object: &[u8]) -> Result<Vec<Uid>, NodeError> {
        self.put_parsed(name, node::parse(object))
    }

    /// Stores a node's object that was parsed before.
    ///
    /// # Errors
    /// The object cannot be used.
    pub fn put_parsed(&mut self, name: &str, parsed: Result<ParsedNode, NodeError>) -> Result<Vec<Uid>, NodeError> {
        let parsed = parsed.and_then(|parsed| Ok((self.shape(&parsed.shape)?, parsed)));
        let at = self.slot(name);
        let before = self.state(at);
        let Some(slot) = self.nodes.get_mut(at) else {
            return Ok(Vec::new());
        };
        slot.has_object = true;
        let outcome = match parsed {
            Ok((shape, parsed)) => {
                let there = |uid: &Uid| parsed.pods.binary_search(uid).is_ok();
                let arrived = slot.coming.iter().map(|(uid, _)| *uid).filter(there).collect();
                slot.coming.retain(|(uid, _)| !there(uid));
                let arrivals = slot.coming.iter().map(|(_, arrival)| arrival.clone()).collect();
                slot.known = Ok(NodeRecord {
                    state: self.states.enter(StoredState::new(shape, parsed.available, arrivals)),
                    pods: parsed.pods.into(),
                    owners: parsed.owners.into(),
                });
                Ok(arrived)
            }
            Err(cause) => {
                slot.known = Err(cause.clone());
                Err(cause)
            }
        };
        if let Some(state) = before {
            self.states.leave(state);
        }
        outcome
    }

    /// Removes a node, whose object was deleted.
    pub fn remove(&mut self, name: &str) {
        let Some(at) = self.names.remove(name) else { return };
        if let Some(slot) = self.nodes.get_mut(at) {
            if let Ok(known) = &slot.known {
                self.states.leave(known.state);
            }
            slot.known = Err(NodeError::NoAttribute(stelia_koordinator::report::compact::ATTRIBUTE));
            slot.coming.clear();
            self.vacant.push(at);
        }
    }

    /// Replaces the pods on their way to a node, in the order in which they were placed, for callers that store claims themselves. A node
    /// without an object stores them until it has one. They count even if there is no room for them.
    pub fn set_held(&mut self, name: &str, held: Vec<(Uid, Arrival)>) {
        let at = self.slot(name);
        let Some(slot) = self.nodes.get_mut(at) else { return };
        if held.is_empty() && !slot.has_object {
            return self.remove(name);
        }
        if slot.coming != held {
            slot.coming = held;
            self.update_state(at);
        }
    }

    /// The pods on their way to a node, in the order in which they were placed.
    pub fn on_their_way(&self, name: &str) -> &[(Uid, Arrival)] {
        let slot = self.names.get(name).and_then(|at| self.nodes.get(*at));
        slot.map_or(&[], |slot| &slot.coming)
    }

    /// The pods that the node's object has CPUs of their own for, ascending.
    pub fn pods(&self, name: &str) -> &[Uid] {
        self.known(name).map_or(&[], |known| &known.pods)
    }

    /// Whether the node's object shows a pod once it has its CPUs.
    pub fn shows_pod(&self, name: &str, uid: Uid) -> bool {
        self.pods(name).binary_search(&uid).is_ok()
    }

    /// Whether and when the node would give the pod CPUs of its own, so that its object shows the pod. `None` if the object cannot be used.
    pub fn own_cpus(&self, name: &str, request: &Request) -> Option<OwnCpus> {
        Some(own_cpus(&self.usable_state(name).ok()?.shape, request))
    }

    /// The nodes' names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }

    /// What a node has in common with others, and what is left on it; `None` if its object cannot be used.
    #[cfg(any(test, feature = "testing"))]
    pub fn forecast(&self, name: &str) -> Option<(&Arc<NodeShape>, &crate::evaluate::NodeForecast)> {
        let state = self.usable_state(name).ok()?;
        Some((&state.shape, state.forecast()))
    }

    /// The pods of a node with their CPUs, as far as the object shows them.
    pub fn tenants(&self, name: &str) -> Vec<Tenant> {
        let (Some(known), Ok(state)) = (self.known(name), self.usable_state(name)) else {
            return Vec::new();
        };
        let mut sets = vec![CpuSet::new(); known.pods.len()];
        let taken = state.published.taken(&state.shape);
        for (cpu, owner) in taken.iter().zip(&known.owners) {
            if let Some(set) = owner.and_then(|owner| sets.get_mut(usize::from(owner))) {
                set.insert(cpu);
            }
        }
        let tenants = known.pods.iter().zip(sets);
        tenants.map(|(uid, cpus)| Tenant { uid: *uid, cpus }).collect()
    }

    /// The request, stored once: equal requests are the same one. The answers to 1024 are stored, until as many others were asked about.
    pub fn request(&mut self, request: Request) -> SharedRequest {
        let (request, taken) = self.requests.enter(request);
        if let Some(place) = taken {
            self.states.forget(place);
        }
        request
    }

    fn known(&self, name: &str) -> Option<&NodeRecord> {
        let slot = self.names.get(name).and_then(|at| self.nodes.get(*at))?;
        slot.known.as_ref().ok()
    }

    fn state(&self, at: usize) -> Option<StateId> {
        self.nodes.get(at)?.known.as_ref().ok().map(|known| known.state)
    }

    /// The place of a node; a new one has no object yet.
    fn slot(&mut self, name: &str) -> usize {
        if let Some(at) = self.names.get(name) {
            return *at;
        }
        let slot = Slot {
            known: Err(NodeError::NoAttribute(stelia_koordinator::report::compact::ATTRIBUTE)),
            coming: Vec::new(),
            has_object: false,
        };
        let at = self.vacant.pop().unwrap_or(self.nodes.len());
        match self.nodes.get_mut(at) {
            Some(vacant) => *vacant = slot,
            None => self.nodes.push(slot),
        }
        self.names.insert(name.into(), at);
        at
    }

    /// The shape of these facts, made once.
    fn shape(&mut self, key: &ShapeKey) -> Result<Arc<NodeShape>, NodeError> {
        if let Some(shape) = self.shapes.get(key) {
            return Ok(Arc::clone(shape));
        }
        // Those of nodes that are gone, looked for as seldom as their number doubles.
        if self.shapes.len().is_power_of_two() {
            self.shapes.retain(|_, shape| Arc::strong_count(shape) > 1);
        }
        let shape = Arc::new(NodeShape::new(key.clone())?);
        self.shapes.insert(key.clone(), Arc::clone(&shape));
        Ok(shape)
    }

    /// Gives a node the state that follows from its object and the pods on their way.
    fn update_state(&mut self, at: usize) {
        let before = self.state(at);
        let (Some(known), Some(slot)) = (self.states.get(before).cloned(), self.nodes.get_mut(at)) else {
            return;
        };
        let arrivals = slot.coming.iter().map(|(_, arrival)| arrival.clone()).collect();
        let state = StoredState::new(Arc::clone(&known.shape), known.published.clone(), arrivals);
        let state = self.states.enter(state);
        if let Ok(known) = &mut slot.known {
            known.state = state;
        }
        if let Some(state) = before {
            self.states.leave(state);
        }
    }
}
