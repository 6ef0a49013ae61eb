//! Reconcile: everything is audited, and the caller gets a report of what was done.

use std::any::Any;

use stelia_api::{Error, Reason, ReasonCode};
use stelia_decide::Whom;
use stelia_model::Trigger;

use super::{Asker, Call, Reply, all_closed};
use crate::engine::handle::Handle;
use crate::engine::pass::{Numbers, PassReport};
use crate::engine::state::EngineState;

struct ReconcileCall {
    replies: Vec<Reply<PassReport>>,
}

impl Handle {
    /// Audit everything now.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn reconcile(&self) -> Result<PassReport, Error> {
        let report = self.call(|reply| ReconcileCall { replies: vec![reply] }).await?;
        self.reconciled.send_replace(());
        Ok(self.restrict(report))
    }
}

impl Call for ReconcileCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        state.audit(Trigger::Call);
        state.sweep(Box::new(move |state: &EngineState, before: Numbers| {
            let report = state.report(before);
            for reply in self.replies {
                let _ = reply.send(Ok(report.clone()));
            }
        }));
        state.inbox.release(&asker);
    }

    fn is_given_up(&self) -> bool {
        all_closed(&self.replies)
    }

    fn join(&mut self, other: &mut (dyn Call + 'static)) -> bool {
        let other: &mut dyn Any = other;
        let same = other.downcast_mut::<Self>();
        same.map(|same| self.replies.append(&mut same.replies)).is_some()
    }
}

impl EngineState {
    /// What was done since `before`, and what is degraded.
    fn report(&self, before: Numbers) -> PassReport {
        let view = self.view_writer.view();
        let instances = view.instances.iter();
        let reasons = instances.flat_map(|(pod, instance)| {
            let reasons = instance.degraded.iter().cloned();
            reasons.map(move |reason| (Whom::Instance(pod.clone()), reason))
        });
        let failures = self.retries.failures();
        let failures = failures.chain(&self.picture.problems);
        let failures = failures.map(|text| (Whom::Node, Reason::of_node(ReasonCode::StepFailed, text)));
        let problems = view.problems().into_iter().map(|problem| (Whom::Node, problem));
        let degraded = problems.chain(failures).chain(reasons).collect();
        PassReport {
            whom: Whom::Node,
            pass: self.passes.count,
            did: self.passes.total.since(before),
            degraded,
        }
    }
}
