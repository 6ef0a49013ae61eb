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
use crate::node::{NodeError, NodeShape, ParsedNode, ShapeKey};
use crate::request::{Request, SharedRequest};

pub use question::{Evaluation, Question};
use requests::Requests;
use states::{State, States};
pub use verdict::NodeVerdict;

/// The nodes of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    nodes: HashMap<Arc<str>, Node>,
    shapes: HashMap<ShapeKey, Arc<NodeShape>>,
    states: States,
    requests: Requests,
}

#[derive(Debug, Default)]
struct Node {
    /// What its object says; `None` without one.
    known: Option<Result<NodeRecord, NodeError>>,
    /// The pods on their way to the node, in the order of the state's arrivals; also stored while the object cannot be used.
    coming: Vec<(Uid, Arrival)>,
}

#[derive(Debug)]
struct NodeRecord {
    state: Arc<State>,
    /// Those that the object shows, with their CPUs, ascending.
    pods: Box<[(Uid, CpuSet)]>,
}

impl Node {
    fn state(&self) -> Option<Result<&Arc<State>, &NodeError>> {
        let known = self.known.as_ref()?.as_ref();
        Some(known.map(|known| &known.state))
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.coming.iter().map(|(_, arrival)| arrival.clone()).collect()
    }
}

impl Cluster {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Stores a node's object. If it cannot be used, nothing is placed on the node until there is another. Returns the pods on their way that the object
    /// shows: they have arrived.
    ///
    /// # Errors
    /// The object cannot be used.
    pub fn put_parsed(&mut self, name: &str, parsed: Result<ParsedNode, NodeError>) -> Result<Vec<Uid>, NodeError> {
        let parsed = parsed.and_then(|parsed| Ok((self.shape(&parsed.shape)?, parsed)));
        let node = self.nodes.entry(name.into()).or_default();
        let before = node.known.take();
        let outcome = match parsed {
            Ok((shape, parsed)) => {
                let there = |uid: &Uid| parsed.pods.iter().any(|(pod, _)| pod == uid);
                let arrived = node.coming.iter().map(|(uid, _)| *uid).filter(there).collect();
                node.coming.retain(|(uid, _)| !there(uid));
                let state = State::new(shape, parsed.available, node.arrivals());
                node.known = Some(Ok(NodeRecord {
                    state: self.states.enter(state),
                    pods: parsed.pods.into(),
                }));
                Ok(arrived)
            }
            Err(cause) => {
                node.known = Some(Err(cause.clone()));
                Err(cause)
            }
        };
        if let Some(Ok(before)) = before {
            self.states.leave(&before.state);
        }
        outcome
    }

    /// Removes a node, whose object was deleted.
    pub fn remove(&mut self, name: &str) {
        if let Some(Ok(known)) = self.nodes.remove(name).and_then(|node| node.known) {
            self.states.leave(&known.state);
        }
    }

    /// Replaces the pods on their way to a node, in the order in which they were placed, for callers that store claims themselves. A node
    /// without an object stores them until it has one. They count even if there is no room for them.
    pub fn set_held(&mut self, name: &str, held: Vec<(Uid, Arrival)>) {
        let node = self.nodes.entry(name.into()).or_default();
        if held.is_empty() && node.known.is_none() {
            self.remove(name);
        } else if node.coming != held {
            node.coming = held;
            self.update_state(name);
        }
    }

    /// The pods on their way to a node, in the order in which they were placed.
    pub fn on_their_way(&self, name: &str) -> &[(Uid, Arrival)] {
        self.nodes.get(name).map_or(&[], |node| &node.coming)
    }

    /// The pods that the node's object has CPUs of their own for, with these, ascending.
    pub fn pods(&self, name: &str) -> &[(Uid, CpuSet)] {
        let known = self.nodes.get(name).and_then(|node| node.known.as_ref()?.as_ref().ok());
        known.map_or(&[], |known| &known.pods)
    }

    /// Whether the node's object shows a pod once it has its CPUs.
    pub fn shows_pod(&self, name: &str, uid: Uid) -> bool {
        self.pods(name).binary_search_by_key(&uid, |(pod, _)| *pod).is_ok()
    }

    /// Whether and when the node would give the pod CPUs of its own, so that its object shows the pod. `None` if the object cannot be used.
    pub fn own_cpus(&self, name: &str, request: &Request) -> Option<OwnCpus> {
        Some(own_cpus(&self.usable_state(name).ok()?.shape, request))
    }

    /// The nodes' names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(|name| &**name)
    }

    /// What a node has in common with others, and what is left on it; `None` if its object cannot be used.
    #[cfg(any(test, feature = "testing"))]
    pub fn forecast(&self, name: &str) -> Option<(&Arc<NodeShape>, &crate::evaluate::NodeForecast)> {
        let state = self.usable_state(name).ok()?;
        Some((&state.shape, state.forecast()))
    }

    /// The request, stored once: equal requests are the same one. The answers to 1024 are stored, until as many others were asked about.
    pub fn request(&mut self, request: Request) -> SharedRequest {
        let (request, taken) = self.requests.enter(request);
        if let Some(place) = taken {
            self.states.forget(place);
        }
        request
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
    fn update_state(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let arrivals = node.arrivals();
        let Some(Ok(known)) = &mut node.known else { return };
        let (shape, published) = (Arc::clone(&known.state.shape), known.state.published.clone());
        let state = self.states.enter(State::new(shape, published, arrivals));
        let before = std::mem::replace(&mut known.state, state);
        self.states.leave(&before);
    }
}
