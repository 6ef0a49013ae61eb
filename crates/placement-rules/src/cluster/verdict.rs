//! What nodes answer.

use std::collections::HashMap;
use std::sync::Arc;

use stelia_kubelet::Uid;

use super::Cluster;
use super::question::Emptied;
pub use super::reasons::Reason;
use super::requests::RequestId;
use crate::evaluate::{By, Placement, Refusal, evaluate};
use crate::node::NodeError;
use crate::request::SharedRequest;

/// A node's answer in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has room; the score's total.
    Fits(u16),
    Refused(Reason),
}

pub(super) fn no_object() -> Refusal {
    let text = "the node has no NodeResourceTopology of profile stelia";
    Refusal::new(By::Scheduler, "NoObject", text)
}

pub(super) fn forgotten() -> Refusal {
    Refusal::new(
        By::Scheduler,
        "RequestForgotten",
        "too many other requests were asked since",
    )
}

fn unusable(cause: &NodeError) -> Refusal {
    Refusal::new(By::Scheduler, cause.name(), cause.to_string())
}

impl Cluster {
    /// What each of these nodes would do, in their order; a state that was asked before is not evaluated again.
    pub fn verdicts<'n>(
        &mut self,
        request: RequestId,
        names: impl IntoIterator<Item = &'n str, IntoIter: Clone>,
        mut told: impl FnMut(&'n str, Verdict),
    ) {
        let names = names.into_iter();
        let mut question = self.prepare(request, names.clone());
        question.work_out();
        self.learn(&question);
        for (name, verdict) in names.zip(question.verdicts()) {
            told(name, verdict);
        }
    }

    /// What a node would do, in full, evaluated anew.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn explain(&mut self, name: &str, request: RequestId) -> Result<Placement, Refusal> {
        self.placement(name, request).map(|(_, placement)| placement)
    }

    /// A node once these pods have left it, and no others; with what each of them asked for, as far as that is known. A pod that the node's
    /// object does not show, and that is not on its way there, gives nothing back.
    ///
    /// # Errors
    /// Why it would refuse whatever is asked.
    pub fn without(
        &mut self,
        name: &str,
        request: RequestId,
        gone: &HashMap<Uid, Option<SharedRequest>>,
    ) -> Result<Emptied, Refusal> {
        let (at, request) = self.question(name, request)?;
        let (shape, forecast) = self.states.of(self.state(at)).ok_or_else(no_object)?;
        let mut published = forecast.published.clone();
        for tenant in self.tenants(name) {
            if let Some(asked) = gone.get(&tenant.uid) {
                let pod = asked.as_ref().map(|asked| &asked.0.pod);
                published = published.freed(shape, &tenant.cpus, pod);
            }
        }
        let coming = self.nodes.get(at).into_iter().flat_map(|slot| &slot.coming);
        let stay = coming.filter(|(uid, _)| !gone.contains_key(uid));
        let arrivals = stay.map(|(_, arrival)| arrival.clone()).collect();
        Ok(Emptied {
            shape: Arc::clone(shape),
            published,
            arrivals,
            request,
            weights: self.weights,
        })
    }

    pub(super) fn placement(&mut self, name: &str, request: RequestId) -> Result<(usize, Placement), Refusal> {
        let (at, request) = self.question(name, request)?;
        let (shape, forecast) = self.states.of(self.state(at)).ok_or_else(no_object)?;
        Ok((at, evaluate(shape, forecast, &request.0, &self.weights)?))
    }

    /// The place of a node that can be asked, and the request.
    fn question(&mut self, name: &str, request: RequestId) -> Result<(usize, SharedRequest), Refusal> {
        let at = *self.names.get(name).ok_or_else(no_object)?;
        let request = self.requests.shared(request).ok_or_else(forgotten)?;
        match self.nodes.get(at).map(|slot| &slot.known) {
            Some(Ok(_)) => Ok((at, request)),
            Some(Err(cause)) => Err(unusable(cause)),
            None => Err(no_object()),
        }
    }
}
