//! Audits that pods ask for: those of one pod begin at least [`MIN_SPACING`] apart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

use super::Report;
use super::calls::{Goal, no_instance};
use super::handle::Reply;
use super::inbox::Asker;
use super::task::Engine;

/// How long after one audit that a pod asked for the next one begins. An audit reads everything of an instance, and the socket lets
/// through 20 calls a second.
const MIN_SPACING: Duration = Duration::from_secs(1);

/// An audit that a pod asked for too soon after its last one.
struct LaterAudit {
    due: Instant,
    asker: Asker,
    replies: Vec<Reply<Report>>,
}

/// The audits that pods asked for in the last second, and those that wait.
#[derive(Default)]
pub(super) struct OwnAudits {
    /// When the last one of each pod began.
    began: BTreeMap<PodUid, Instant>,
    later: BTreeMap<PodUid, LaterAudit>,
}

impl OwnAudits {
    /// When the next one that waits is to begin.
    pub(super) fn next(&self) -> Option<Instant> {
        self.later.values().map(|audit| audit.due).min()
    }

    /// When an audit that a pod asks for now may begin; `None`: now, and it has begun.
    fn begin(&mut self, pod: &PodUid, now: Instant) -> Option<Instant> {
        self.began
            .retain(|_, began| now.saturating_duration_since(*began) < MIN_SPACING);
        let due = self.began.get(pod).map(|began| *began + MIN_SPACING);
        if due.is_none() {
            self.began.insert(pod.clone(), now);
        }
        due
    }
}

impl Engine {
    /// Audit one instance, later where its pod has just had an audit.
    pub(super) fn audit_one_in_time(&mut self, pod: PodUid, asker: Asker, replies: Vec<Reply<Report>>) {
        let own = asker.as_ref();
        match own.and_then(|own| self.calls.own_audits.begin(own, Instant::now())) {
            None => self.audit_one(&pod, asker, replies),
            Some(due) => {
                let later = LaterAudit { due, asker, replies };
                self.calls.own_audits.later.insert(pod, later);
            }
        }
    }

    /// Begin the audits whose time has come.
    pub(super) fn later_audits_in_time(&mut self, now: Instant) {
        let later = &mut self.calls.own_audits.later;
        let is_due = |(pod, audit): (&PodUid, &LaterAudit)| (audit.due <= now).then(|| pod.clone());
        let due: Vec<PodUid> = later.iter().filter_map(is_due).collect();
        let due: Vec<(PodUid, LaterAudit)> = due.iter().filter_map(|pod| later.remove_entry(pod)).collect();
        for (pod, LaterAudit { asker, replies, .. }) in due {
            if let Some(own) = &asker {
                self.calls.own_audits.began.insert(own.clone(), now);
            }
            self.audit_one(&pod, asker, replies);
        }
    }

    /// Read one instance as by the periodic audit, but a rest is not ended, or a tenant could keep the engine busy.
    fn audit_one(&mut self, pod: &PodUid, asker: Asker, replies: Vec<Reply<Report>>) {
        if self.picture.find(pod).is_none() {
            return self.finish(&asker, replies, Err(no_instance(pod)));
        }
        self.dirty.audit.insert(pod.clone());
        let before = self.passes.did_for(pod);
        self.wait(pod, asker, Goal::Audited { replies, before });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audits_of_one_pod_are_a_second_apart_and_nobody_elses_wait() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let (mut audits, now) = (OwnAudits::default(), Instant::now());
        assert_eq!(audits.begin(&pod(1), now), None);
        assert_eq!(audits.begin(&pod(2), now), None);
        assert_eq!(audits.begin(&pod(1), now), Some(now + MIN_SPACING));
        assert_eq!(audits.begin(&pod(1), now + MIN_SPACING), None);
        assert_eq!(audits.began.len(), 1);
    }
}
