//! What only tests and benchmarks ask of a cluster.

use stelia_kubelet::Uid;

use super::Cluster;
use crate::evaluate::{Arrival, Placement, Refusal};
use crate::node::NodeError;
use crate::request::SharedRequest;

impl Cluster {
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
