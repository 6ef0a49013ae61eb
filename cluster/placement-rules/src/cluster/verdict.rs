//! Nodes' answers, in short and in full.

use std::collections::HashMap;
use std::sync::Arc;

use stelia_kubelet::Uid;

use super::Cluster;
use super::question::{Evaluation, NodeWithoutPods};
pub use super::reason_numbers::RefusalReason;
use super::requests::RequestId;
use crate::evaluate::refusal_names::{NO_OBJECT, REQUEST_FORGOTTEN};
use crate::evaluate::{DecidedBy, Placement, Refusal};
use crate::node::NodeError;
use crate::request::SharedRequest;

/// A node's answer in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerdict {
    /// It has room; the score's total.
    Fits(u16),
    Refused(RefusalReason),
}

pub(super) fn no_object() -> Refusal {
    let text = "the node has no NodeResourceTopology of profile stelia";
    Refusal::new(DecidedBy::Scheduler, NO_OBJECT, text)
}

pub(super) fn forgotten() -> Refusal {
    Refusal::new(
        DecidedBy::Scheduler,
        REQUEST_FORGOTTEN,
        "too many other requests were asked since",
    )
}

fn unusable(cause: &NodeError) -> Refusal {
    Refusal::new(DecidedBy::Scheduler, cause.name(), cause.to_string())
}

impl Cluster {
    /// What each of these nodes would do, in their order. States with a stored answer are not evaluated again.
    pub fn verdicts<'n>(
        &mut self,
        request: RequestId,
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
    pub fn explain(&mut self, name: &str, request: RequestId) -> Result<Placement, Refusal> {
        self.evaluation(name, request)?.evaluate()
    }

    /// A node as it is now, to be evaluated apart from the cluster.
    ///
    /// # Errors
    /// The node refuses every request.
    pub fn evaluation(&mut self, name: &str, request: RequestId) -> Result<Evaluation, Refusal> {
        let (at, request) = self.node_and_request(name, request)?;
        let state = self.states.get(self.state(at)).ok_or_else(no_object)?;
        Ok(Evaluation {
            state: Arc::clone(state),
            request,
            weights: self.weights,
        })
    }

    /// A node without these pods, each with its request, as far as that is known. A pod that the node's object does not show, and that is
    /// not on its way there, frees nothing.
    ///
    /// # Errors
    /// The node refuses every request.
    pub fn without(
        &mut self,
        name: &str,
        request: RequestId,
        gone: &HashMap<Uid, Option<SharedRequest>>,
    ) -> Result<NodeWithoutPods, Refusal> {
        let (at, request) = self.node_and_request(name, request)?;
        let state = self.states.get(self.state(at)).ok_or_else(no_object)?;
        let (shape, mut published) = (&state.shape, state.published.clone());
        for tenant in self.tenants(name) {
            if let Some(asked) = gone.get(&tenant.uid) {
                let pod = asked.as_ref().map(|asked| &asked.pod);
                published = published.freed(shape, &tenant.cpus, pod);
            }
        }
        let coming = self.nodes.get(at).into_iter().flat_map(|slot| &slot.coming);
        let stay = coming.filter(|(uid, _)| !gone.contains_key(uid));
        let arrivals = stay.map(|(_, arrival)| arrival.clone()).collect();
        Ok(NodeWithoutPods {
            shape: Arc::clone(shape),
            published,
            arrivals,
            request,
            weights: self.weights,
        })
    }

    /// The place of a node whose object can be used, and the request.
    fn node_and_request(&mut self, name: &str, request: RequestId) -> Result<(usize, SharedRequest), Refusal> {
        let at = *self.names.get(name).ok_or_else(no_object)?;
        let request = self.requests.shared(request).ok_or_else(forgotten)?;
        match self.nodes.get(at).map(|slot| &slot.known) {
            Some(Ok(_)) => Ok((at, request)),
            Some(Err(cause)) => Err(unusable(cause)),
            None => Err(no_object()),
        }
    }
}
