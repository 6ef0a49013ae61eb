//! What only tests and benchmarks ask of a cluster.

use stelia_kubelet::Uid;

use super::{Cluster, NodeVerdict};
use crate::evaluate::{Arrival, Placement, Refusal};
use crate::node::{self, NodeError};
use crate::request::SharedRequest;

impl Cluster {
    /// As [`Self::put_parsed`], of an object in JSON.
    ///
    /// # Errors
    /// The object cannot be used.
    pub fn put(&mut self, name: &str, object: &[u8]) -> Result<Vec<Uid>, NodeError> {
        self.put_parsed(name, node::parse(object))
    }

    /// What each of these nodes would do, in their order. States with a stored answer are not evaluated again.
    pub fn verdicts<'n>(
        &mut self,
        request: &SharedRequest,
        names: impl IntoIterator<Item = &'n str, IntoIter: Clone>,
        mut report: impl FnMut(&'n str, NodeVerdict),
    ) {
        let names = names.into_iter();
        let mut question = self.question(request, names.clone());
        question.evaluate();
        self.keep_answers(&question);
        for (name, verdict) in names.zip(question.verdicts()) {
            report(name, verdict);
        }
    }

    /// What a node would do, in full, evaluated anew.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn explain(&self, name: &str, request: &SharedRequest) -> Result<Placement, Refusal> {
        self.evaluation(name, request)?.evaluate()
    }

    /// Evaluates once more and reserves the CPUs for the pod: it is on its way to the node until the object shows it, or until
    /// [`Self::release`]. A pod without CPUs of its own is in no object, so it must be released once it runs.
    ///
    /// # Errors
    /// The node would refuse it.
    pub fn reserve(&mut self, name: &str, uid: Uid, request: &SharedRequest) -> Result<Placement, Refusal> {
        let placement = self.explain(name, request)?;
        let node = self.nodes.entry(name.into()).or_default();
        let arrival = Arrival {
            request: request.clone(),
            cpus: placement.assigned_cpus.clone(),
            is_late: false,
            is_ours: true,
        };
        node.coming.retain(|(other, _)| *other != uid);
        node.coming.push((uid, arrival));
        self.update_state(name);
        Ok(placement)
    }

    /// Removes a pod from those on their way to the node. Returns whether it was among them.
    pub fn release(&mut self, name: &str, uid: Uid) -> bool {
        let Some(node) = self.nodes.get_mut(name) else {
            return false;
        };
        let before = node.coming.len();
        node.coming.retain(|(other, _)| *other != uid);
        let was = node.coming.len() < before;
        if was {
            self.update_state(name);
        }
        was
    }

    /// Why a node's object cannot be used.
    pub fn problem(&self, name: &str) -> Option<&NodeError> {
        self.nodes.get(name)?.known.as_ref()?.as_ref().err()
    }

    /// How many different states nodes are in, and how many shapes they have.
    pub fn variety(&self) -> (usize, usize) {
        (self.states.len(), self.shapes.len())
    }
}
