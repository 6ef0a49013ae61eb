//! The rules of the reservations: each node would decide as in [`stelia_placement_rules`].

use stelia_cpus::CpuSet;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::{Cluster, Evaluation};
use stelia_placement_rules::evaluate::{OwnCpus, Placement, Refusal};
use stelia_placement_rules::node::{NodeError, ParsedNode};
use stelia_placement_rules::request::SharedRequest;

use crate::reservations::{Held, Rules};

/// The nodes, with a cache of their answers.
#[derive(Debug, Default)]
pub struct NodeRules {
    pub cluster: Cluster,
    /// An answer that was evaluated apart. It decides the next bind, if that is of the same request and the node is in the same state still.
    pub evaluated: Option<Evaluated>,
}

/// A node's answer, and which pod on which node it is about.
pub type Evaluated = (Result<Placement, Refusal>, Evaluation);

/// Why a pod is not placed on a node.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PlaceError {
    #[error("{0}")]
    Refused(Refusal),
    /// The node was not asked yet: that takes time, and is done without the lock that protects these rules.
    #[error("the node changed each time that the pod was evaluated")]
    NotEvaluated(Evaluation),
}

impl Rules for NodeRules {
    type Node = Result<ParsedNode, NodeError>;
    type Request = SharedRequest;
    type Rejection = PlaceError;

    fn put_node(&mut self, node: &str, described: Option<Self::Node>) -> bool {
        match described {
            Some(described) => self.cluster.put_parsed(node, described).is_ok(),
            None => {
                self.cluster.remove(node);
                false
            }
        }
    }

    fn place(
        &mut self,
        node: &str,
        held: Held<SharedRequest>,
        request: &SharedRequest,
    ) -> Result<Option<CpuSet>, PlaceError> {
        self.cluster.set_held(node, held);
        let evaluation = self.cluster.evaluation(node, request).map_err(PlaceError::Refused)?;
        match self.evaluated.take() {
            Some((outcome, known)) if known == evaluation => {
                let placement = outcome.map_err(PlaceError::Refused)?;
                Ok(placement.assigned_cpus)
            }
            _ => Err(PlaceError::NotEvaluated(evaluation)),
        }
    }

    fn own_cpus(&self, node: &str, request: &SharedRequest) -> OwnCpus {
        match self.cluster.own_cpus(node, request) {
            // Whether kubelet gives CPUs to a pod that could not be read is not known.
            Some(OwnCpus::AtAdmission) if request.is_estimate => OwnCpus::AtRegistration,
            own => own.unwrap_or(OwnCpus::AtRegistration),
        }
    }

    fn object_shows(&self, node: &str, pod: Uid) -> bool {
        self.cluster.shows_pod(node, pod)
    }
}
