//! Audits of one instance. Those that a pod asks for begin at least [`MIN_SPACING`] apart.

use std::any::Any;
use std::time::{Duration, Instant};

use stelia_api::Error;
use stelia_kubelet::PodUid;

use super::{Asker, Call, Calls, Goal, Postponed, Reply, all_closed, no_instance};
use crate::engine::handle::Handle;
use crate::engine::pass::{Numbers, Report};
use crate::engine::state::State;

/// How long after one audit that a pod asked for the next one begins. An audit reads everything of an instance, and the socket lets
/// through 20 calls a second.
const MIN_SPACING: Duration = Duration::from_secs(1);

struct AuditCall {
    pod: PodUid,
    replies: Vec<Reply<Report>>,
}

impl Handle {
    /// Audit one instance now.
    pub(crate) async fn audit(&self, pod: PodUid) -> Result<Report, Error> {
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
    fn begin(self: Box<Self>, state: &mut State, asker: Asker) {
        let own = asker.as_ref();
        if let Some(due) = own.and_then(|own| state.calls.begin_audit(own, Instant::now())) {
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

impl Calls {
    /// When an audit that a pod asks for now may begin; `None`: now, and it has begun.
    fn begin_audit(&mut self, pod: &PodUid, now: Instant) -> Option<Instant> {
        let began = &mut self.audits_began;
        began.retain(|_, began| now.saturating_duration_since(*began) < MIN_SPACING);
        let due = began.get(pod).map(|began| *began + MIN_SPACING);
        if due.is_none() {
            began.insert(pod.clone(), now);
        }
        due
    }
}

/// The instance was read by an audit.
struct Audited {
    replies: Vec<Reply<Report>>,
    before: Numbers,
}

impl Goal for Audited {
    fn settle(self: Box<Self>, state: &mut State, pod: &PodUid, asker: Asker) {
        let report = state.report_on(pod, self.before);
        state.finish(&asker, self.replies, Ok(report));
    }

    fn ended(self: Box<Self>, state: &mut State, pod: &PodUid, asker: Asker) {
        state.finish(&asker, self.replies, Err(no_instance(pod)));
    }
}

impl State {
    /// What was done for one instance since `before`, and why it is degraded. What was done for others is not counted, because a tenant
    /// must not learn of it.
    fn report_on(&self, pod: &PodUid, before: Numbers) -> Report {
        let now = self.passes.did_for(pod);
        let degraded = self.amiss(pod).into_iter();
        let degraded = degraded.map(|reason| (Some(pod.clone()), reason)).collect();
        Report {
            pod: Some(pod.clone()),
            pass: now.looks,
            did: now.since(before),
            degraded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audits_of_one_pod_are_a_second_apart_and_nobody_elses_wait() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let (mut calls, now) = (Calls::default(), Instant::now());
        assert_eq!(calls.begin_audit(&pod(1), now), None);
        assert_eq!(calls.begin_audit(&pod(2), now), None);
        assert_eq!(calls.begin_audit(&pod(1), now), Some(now + MIN_SPACING));
        assert_eq!(calls.begin_audit(&pod(1), now + MIN_SPACING), None);
        assert_eq!(calls.audits_began.len(), 1);
    }
}
