//! Reconcile and Reload, which are answered once each instance was looked at; and the reports of them and of one instance.

use std::collections::BTreeSet;
use std::sync::Arc;

use stelia_api::{Amiss, Reason};
use stelia_kubelet::PodUid;
use stelia_settings::Settings;

use super::handle::Reply;
use super::pass::Numbers;
use super::task::Engine;
use super::{Report, Trigger};

/// A call that is answered once nothing of `pending` has a step that could be taken now.
pub(super) struct Sweep {
    pending: BTreeSet<Option<PodUid>>,
    before: Numbers,
    answer: SweepAnswer,
}

pub(super) enum SweepAnswer {
    Reconcile(Vec<Reply<Report>>),
    Reload(Reply<()>),
}

impl Engine {
    pub(super) fn reload(&mut self, settings: Settings) {
        self.passes.trigger = Some(Trigger::Reload);
        self.next_audit_in(settings.audit_interval);
        self.settings = settings;
        self.shown_settings.send_replace(Arc::new(self.settings.clone()));
        self.picture.use_settings(&self.settings);
        self.audit(Trigger::Reload);
        self.dirty.everyone = true;
    }

    /// Answer when each of the instances that are there now has been looked at.
    pub(super) fn sweep(&mut self, answer: SweepAnswer) {
        // The node first, so that new scopes are included.
        let mut found = BTreeSet::new();
        self.dirty.everyone |= self.look_at_node(&mut found);
        self.dirty.plan.extend(found);
        // Not instances whose scopes systemd is making.
        let starting = &self.picture.starting;
        let pods = self.picture.snapshot.instances.keys();
        let pods = pods.filter(|pod| !starting.contains(*pod)).cloned().map(Some);
        self.calls.sweeps.push(Sweep {
            pending: pods.chain([None]).collect(),
            before: self.passes.total,
            answer,
        });
    }

    pub(super) fn settle_sweep(&mut self, mut sweep: Sweep, settled: &BTreeSet<Option<PodUid>>) {
        let picture = &self.picture;
        let rests = |pod: &PodUid| self.retries.instances.rests(pod);
        // The audit has not read it yet, or there is more to do for it. What failed is tried again after a rest, for which
        // nobody waits: it is in the report.
        let waits = |who: &Option<PodUid>| match who {
            Some(pod) => self.dirty.audit.contains(pod) || self.dirty.has(pod) && !rests(pod),
            None => !self.dirty.audit.is_empty(),
        };
        let gone = |who: &Option<PodUid>| {
            let here = |pod: &PodUid| picture.snapshot.instances.contains_key(pod);
            who.as_ref().is_some_and(|pod| !here(pod))
        };
        sweep
            .pending
            .retain(|who| (!(settled.contains(who) || who.as_ref().is_some_and(rests)) || waits(who)) && !gone(who));
        if !sweep.pending.is_empty() {
            self.calls.sweeps.push(sweep);
            return;
        }
        match sweep.answer {
            SweepAnswer::Reconcile(replies) => {
                let report = self.report(sweep.before);
                for reply in replies {
                    let _ = reply.send(Ok(report.clone()));
                }
            }
            SweepAnswer::Reload(reply) => drop(reply.send(Ok(()))),
        }
    }

    /// What was done since `before`, and what is degraded.
    fn report(&self, before: Numbers) -> Report {
        let view = self.view_writer.view();
        let instances = view.instances.iter();
        let reasons = instances.flat_map(|(pod, instance)| {
            let reasons = instance.degraded.iter().cloned();
            reasons.map(move |reason| (Some(pod.clone()), reason))
        });
        let failures = self.retries.failures();
        let failures = failures.chain(&self.picture.problems);
        let failures = failures.map(|text| (None, Reason::of_node(Amiss::NotDone, text)));
        let degraded = reasons.chain(failures).collect();
        Report {
            pod: None,
            pass: self.passes.count,
            did: self.passes.total.since(before),
            degraded,
        }
    }

    /// The same for one instance. What was done for others is not counted, because a tenant must not learn of it.
    pub(super) fn report_on(&self, pod: &PodUid, before: Numbers) -> Report {
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

    /// Why one instance is degraded, and what could not be done for it.
    pub(super) fn amiss(&self, pod: &PodUid) -> Vec<Reason> {
        let view = self.view_writer.view();
        let reasons = view.instances.get(pod).map(|instance| instance.degraded.clone());
        let mut all = reasons.unwrap_or_default();
        let own = self.retries.instances.failures(pod).iter();
        all.extend(own.map(|text| Reason::of(pod, Amiss::NotDone, text)));
        // Of shared steps only those it waits for.
        let shared = self.retries.shared.failures_of(self.waits_for(pod));
        all.extend(shared.map(|text| Reason::of_node(Amiss::NotDone, text)));
        all
    }
}
