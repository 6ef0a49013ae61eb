//! What only tests and benchmarks ask of a cluster.

use stelia_kubelet::Uid;

use super::{Cluster, verdict};
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
        let at = self.slot(name);
        let Some(slot) = self.nodes.get_mut(at) else {
            return Err(verdict::no_object());
        };
        let arrival = Arrival {
            request: request.clone(),
            cpus: placement.assigned_cpus.clone(),
            is_late: false,
            is_ours: true,
        };
        slot.coming.retain(|(other, _)| *other != uid);
        slot.coming.push((uid, arrival));
        self.update_state(at);
        Ok(placement)
    }

    /// Removes a pod from those on their way to the node. Returns whether it was among them.
    pub fn release(&mut self, name: &str, uid: Uid) -> bool {
        let Some(at) = self.names.get(name).copied() else {
            return false;
        };
        let Some(slot) = self.nodes.get_mut(at) else {
            return false;
        };
        let before = slot.coming.len();
        slot.coming.retain(|(other, _)| *other != uid);
        let was = slot.coming.len() < before;
        if was {
            self.update_state(at);
        }
        was
    }

    /// Why a node's object cannot be used.
    pub fn problem(&self, name: &str) -> Option<&NodeError> {
        let slot = self.names.get(name).and_then(|at| self.nodes.get(*at))?;
        slot.known.as_ref().err()
    }

    /// How many different states nodes are in, and how many shapes they have.
    pub fn variety(&self) -> (usize, usize) {
        (self.states.len(), self.shapes.len())
    }
}
