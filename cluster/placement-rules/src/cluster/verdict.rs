//! Nodes' answers, in short and in full.

use std::collections::HashMap;
use std::sync::Arc;

use stelia_kubelet::Uid;

use super::question::Evaluation;
use super::states::State;
use super::{Cluster, Node};
use crate::evaluate::refusal_names::NO_OBJECT;
use crate::evaluate::{Placement, Refusal};
use crate::node::NodeError;
use crate::request::SharedRequest;

/// A node's answer in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerdict {
    /// It has room; the score's total.
    Fits(u16),
    /// The reason's name.
    Refused(&'static str),
}

impl NodeVerdict {
    /// An answer without its reasons.
    pub fn of(answer: &Result<Placement, Refusal>) -> Self {
        match answer {
            Ok(placement) => Self::Fits(placement.score.total),
            Err(refusal) => Self::Refused(refusal.name),
        }
    }
}

pub(super) fn no_object() -> Refusal {
    let text = "the node has no NodeResourceTopology of profile stelia";
    Refusal::new(NO_OBJECT, text)
}

fn unusable(cause: &NodeError) -> Refusal {
    Refusal::new(cause.name(), cause.to_string())
}

impl Cluster {
    /// A node as it is now, to be evaluated apart from the cluster.
    ///
    /// # Errors
    /// The node refuses every request.
    pub fn evaluation(&self, name: &str, request: &SharedRequest) -> Result<Evaluation, Refusal> {
        Ok(Evaluation {
            state: Arc::clone(self.usable_state(name)?),
            request: request.clone(),
        })
    }

    /// A node without these pods, each with its request, as far as that is known. A pod that the node's object does not show, and that is
    /// not on its way there, frees nothing.
    ///
    /// # Errors
    /// The node refuses every request.
    pub fn without(
        &self,
        name: &str,
        request: &SharedRequest,
        gone: &HashMap<Uid, Option<SharedRequest>>,
    ) -> Result<Evaluation, Refusal> {
        let state = self.usable_state(name)?;
        let (shape, mut published) = (&state.shape, state.published.clone());
        for (uid, cpus) in self.pods(name) {
            if let Some(asked) = gone.get(uid) {
                let pod = asked.as_ref().map(|asked| &asked.pod);
                published = published.freed(shape, cpus, pod);
            }
        }
        let coming = self.on_their_way(name).iter();
        let stay = coming.filter(|(uid, _)| !gone.contains_key(uid));
        let arrivals = stay.map(|(_, arrival)| arrival.clone()).collect();
        Ok(Evaluation {
            state: Arc::new(State::new(Arc::clone(shape), published, arrivals)),
            request: request.clone(),
        })
    }

    /// The state of a node whose object can be used.
    pub(super) fn usable_state(&self, name: &str) -> Result<&Arc<State>, Refusal> {
        let state = self.nodes.get(name).and_then(Node::state);
        state.ok_or_else(no_object)?.map_err(unusable)
    }
}
