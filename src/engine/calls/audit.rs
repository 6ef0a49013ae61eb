//! Audits of one instance. Those that a pod asks for have a rate.

use std::any::Any;
use std::time::Instant;

use stelia_api::Error;
use stelia_decide::Whom;
use stelia_kubelet::PodUid;

use super::{Asker, Call, Goal, Postponed, Reply, all_closed, no_instance};
use crate::engine::handle::Handle;
use crate::engine::pass::{Numbers, PassReport};
use crate::engine::state::EngineState;

struct AuditCall {
    pod: PodUid,
    replies: Vec<Reply<PassReport>>,
}

impl Handle {
    /// Audit one instance now.
    pub(crate) async fn audit(&self, pod: PodUid) -> Result<PassReport, Error> {
        let call = |reply| AuditCall {
            pod,
            replies: vec![reply],
        };
        let report = self.call(call).await?;
        Ok(self.restrict(report))
    }
}

impl Call for AuditCall {
    /// Read the instance as by the periodic audit, but a rest is not ended, or a tenant could keep the engine busy.
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let counted = asker.as_ref().map(|own| state.rates.audits.count(own, Instant::now()));
        if let Some(Err(due)) = counted {
            let (pod, call) = (self.pod.clone(), self);
            state.calls.audits.insert(pod, Postponed { due, asker, call });
            return;
        }
        let Self { pod, replies } = *self;
        if state.picture.find(&pod).is_none() {
            return state.finish(&asker, replies, Err(no_instance(&pod)));
        }
        state.dirty.audit.insert(pod.clone());
        let before = state.passes.did_for(&pod);
        state.wait(&pod, asker, Audited { replies, before });
    }

    fn is_given_up(&self) -> bool {
        all_closed(&self.replies)
    }

    fn join(&mut self, other: &mut (dyn Call + 'static)) -> bool {
        let other: &mut dyn Any = other;
        let same = other.downcast_mut::<Self>().filter(|other| other.pod == self.pod);
        same.map(|same| self.replies.append(&mut same.replies)).is_some()
    }
}

/// The instance was read by an audit.
struct Audited {
    replies: Vec<Reply<PassReport>>,
    before: Numbers,
}

impl Goal for Audited {
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        let report = state.report_on(pod, self.before);
        state.finish(&asker, self.replies, Ok(report));
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        state.finish(&asker, self.replies, Err(no_instance(pod)));
    }
}

impl EngineState {
    /// What was done for one instance since `before`, and why it is degraded. What was done for others is not counted, because a tenant
    /// must not learn of it.
    fn report_on(&self, pod: &PodUid, before: Numbers) -> PassReport {
        let now = self.passes.did_for(pod);
        let degraded = self.amiss(pod).into_iter();
        let whom = Whom::Instance(pod.clone());
        let degraded = degraded.map(|reason| (whom.clone(), reason)).collect();
        PassReport {
            whom,
            pass: now.looks,
            did: now.since(before),
            degraded,
        }
    }
}
