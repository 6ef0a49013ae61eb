//! Calls of the engine. Each file owns one call: its request, how it begins, what it waits for, and how it is answered.
//!
//! A call that cannot be completed is undone; its error is a [`rollback::RollbackError`].
//!
//! A [`Call`] is queued in the inbox until it begins. What it then waits for is a [`Goal`] in [`Calls`].

mod admission;
pub(super) mod attach;
mod attach_threads;
mod audit;
mod deregister;
mod preview;
pub(super) mod rebind;
mod reconcile;
pub(crate) mod register;
mod reload;
pub(super) mod resize;
pub(super) mod rollback;
mod sweep;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use stelia_api::{Error, ErrorKind, Reason};
use stelia_decide::Whom;
use stelia_kubelet::PodUid;
use tokio::sync::oneshot;

use super::pass::Numbers;
use super::state::EngineState;

/// The pod whose call it is; `None` for an administrator's.
pub(super) type Asker = Option<PodUid>;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What a caller asks of the engine.
pub(super) trait Call: Any + Send {
    /// Check and record what is asked; the turns bring the system there.
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker);

    /// Whether all callers have left.
    fn is_given_up(&self) -> bool;

    /// Let another call for the same thing share this one's answer: its callers are taken over. Returns whether it is one.
    fn join(&mut self, _: &mut (dyn Call + 'static)) -> bool {
        false
    }

    /// Share the answer of a call for the same thing that is under way; whether there is one.
    fn join_under_way(&mut self, _: &mut Calls) -> bool {
        false
    }
}

/// What a call waits for that has begun. Each of these methods ends in [`EngineState::finish`], which lets the next call of its pod begin, or in
/// another wait.
pub(super) trait Goal: Any + Send {
    /// No step remains for the instance, or none can be applied now.
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker);

    /// The instance is gone.
    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker);

    /// The instance is gone, and its CPUs are out of the slice's list.
    fn released(self: Box<Self>, state: &mut EngineState, _: &PodUid, asker: Asker) {
        state.inbox.release(&asker);
    }

    /// The deadline has passed.
    fn timed_out(self: Box<Self>, state: &mut EngineState, _: &PodUid, asker: Asker) {
        state.inbox.release(&asker);
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether the call is part of a VM's start.
    fn is_start(&self) -> bool {
        false
    }
}

/// Whether all of these callers have left.
pub(super) fn all_closed<T>(replies: &[Reply<T>]) -> bool {
    replies.iter().all(oneshot::Sender::is_closed)
}

/// A call under way.
struct Waiting {
    asker: Asker,
    goal: Box<dyn Goal>,
}

/// A call that begins, or begins again, later.
pub(super) struct Postponed {
    pub(super) due: Instant,
    pub(super) asker: Asker,
    pub(super) call: Box<dyn Call>,
}

/// The calls under way.
#[derive(Default)]
pub(super) struct Calls {
    by_pod: BTreeMap<PodUid, Vec<Waiting>>,
    /// Calls of instances that are gone while their CPUs are still in the slice's list.
    gone: Vec<(PodUid, Waiting)>,
    /// Registrations whose refusal may pass, and those of pods that have registered too often; tried again when something changes
    /// for their pod, and when they are due.
    pub(super) registrations: BTreeMap<PodUid, Vec<Postponed>>,
    /// Audits that begin later, because their pods have just had one.
    pub(super) audits: BTreeMap<PodUid, Postponed>,
    sweeps: Vec<Sweep>,
}

/// What answers a call that concerns every instance; it is given the numbers from before the call.
pub(super) type SweepAnswer = Box<dyn FnOnce(&EngineState, Numbers) + Send>;

/// A call that concerns every instance: it is answered once none of `pending` has a step that could be applied now.
pub(super) struct Sweep {
    pub(super) pending: BTreeSet<Whom>,
    pub(super) before: Numbers,
    pub(super) answer: SweepAnswer,
}

impl Calls {
    /// The next deadline of a call, or time at which one begins.
    pub(super) fn next(&self) -> Option<Instant> {
        let deadlines = self
            .by_pod
            .values()
            .flatten()
            .filter_map(|waiting| waiting.goal.deadline());
        let registrations = self.registrations.values().flatten().map(|call| call.due);
        let audits = self.audits.values().map(|call| call.due);
        deadlines.chain(registrations).chain(audits).min()
    }

    /// The pods whose VMs start.
    pub(super) fn starting(&self) -> Vec<&PodUid> {
        let starts = |waiting: &Waiting| waiting.goal.is_start();
        let these = self.by_pod.iter().filter(|(_, calls)| calls.iter().any(starts));
        these.map(|(pod, _)| pod).collect()
    }

    /// The goals of one type that this pod's calls wait for.
    pub(super) fn goals<T: Goal>(&mut self, pod: &PodUid) -> impl Iterator<Item = &mut T> {
        let waiting = self.by_pod.get_mut(pod).into_iter().flatten();
        waiting.filter_map(|waiting| {
            let any: &mut dyn Any = &mut *waiting.goal;
            any.downcast_mut::<T>()
        })
    }

    pub(super) fn add_sweep(&mut self, sweep: Sweep) {
        self.sweeps.push(sweep);
    }
}

impl EngineState {
    /// Answer a call, however many callers joined it; the next one of its pod may begin.
    pub(super) fn finish<T: Clone>(
        &mut self,
        asker: &Asker,
        replies: impl IntoIterator<Item = Reply<T>>,
        answer: Result<T, Error>,
    ) {
        for reply in replies {
            // The caller may have left.
            let _ = reply.send(answer.clone());
        }
        self.inbox.release(asker);
    }

    /// Keep a call until its goal is reached.
    pub(super) fn wait(&mut self, pod: &PodUid, asker: Asker, goal: impl Goal) {
        self.put_back(pod, asker, Box::new(goal));
    }

    /// The same for a goal that was taken out to be settled.
    pub(super) fn put_back(&mut self, pod: &PodUid, asker: Asker, goal: Box<dyn Goal>) {
        let waiting = self.calls.by_pod.entry(pod.clone()).or_default();
        waiting.push(Waiting { asker, goal });
    }

    /// Wait until systemd has removed the scope of an instance that is gone, and its CPUs are out of the slice's list.
    pub(super) fn wait_for_release(&mut self, pod: &PodUid, asker: Asker, goal: Box<dyn Goal>) {
        // Empty, and systemd has not removed it yet.
        if self.picture.snapshot.instances.contains_key(pod) {
            return self.put_back(pod, asker, goal);
        }
        // One more look at what all share: stelia.slice's list is narrowed too.
        self.dirty.shared = true;
        self.calls.gone.push((pod.clone(), Waiting { asker, goal }));
    }

    /// Take out the goals of one type of this pod's calls.
    pub(super) fn take_goals<T: Goal>(&mut self, pod: &PodUid) -> Vec<(Asker, Box<T>)> {
        let mut taken = Vec::new();
        for Waiting { asker, goal } in self.calls.by_pod.remove(pod).into_iter().flatten() {
            let any: &dyn Any = &*goal;
            if !any.is::<T>() {
                self.put_back(pod, asker, goal);
                continue;
            }
            let any: Box<dyn Any> = goal;
            taken.extend(any.downcast::<T>().ok().map(|goal| (asker, goal)));
        }
        taken
    }

    /// Go on with the calls of those that are settled: no step remains, or none can be applied now.
    pub(super) fn answer(&mut self, settled: BTreeSet<Whom>) {
        for pod in settled.iter().filter_map(Whom::pod) {
            for Waiting { asker, goal } in self.calls.by_pod.remove(pod).into_iter().flatten() {
                if self.picture.find(pod).is_some() {
                    goal.settle(self, pod, asker);
                } else {
                    goal.ended(self, pod, asker);
                }
            }
        }
        if !self.dirty.slice && !self.dirty.shared {
            for (pod, Waiting { asker, goal }) in std::mem::take(&mut self.calls.gone) {
                goal.released(self, &pod, asker);
            }
        }
        if settled.is_empty() {
            return;
        }
        for sweep in std::mem::take(&mut self.calls.sweeps) {
            self.settle_sweep(sweep, &settled);
        }
    }

    fn settle_sweep(&mut self, mut sweep: Sweep, settled: &BTreeSet<Whom>) {
        let picture = &self.picture;
        let rests = |pod: &PodUid| self.retries.instances.rests(pod);
        // The audit has not read it yet, or there is more to do for it. What failed is tried again after a rest, for which
        // no caller waits: it is in the report.
        let is_pending = |whom: &Whom| match whom {
            Whom::Instance(pod) if !picture.snapshot.instances.contains_key(pod) => false,
            Whom::Instance(pod) => {
                let goes_on = self.dirty.audit.contains(pod) || self.dirty.has(pod) && !rests(pod);
                goes_on || !settled.contains(whom) && !rests(pod)
            }
            Whom::Node => !self.dirty.audit.is_empty() || !settled.contains(whom),
        };
        sweep.pending.retain(is_pending);
        if sweep.pending.is_empty() {
            (sweep.answer)(self, sweep.before);
        } else {
            self.calls.sweeps.push(sweep);
        }
    }

    /// Calls whose deadline has passed, and those that begin now.
    pub(super) fn calls_in_time(&mut self, now: Instant) {
        let is_due = |(pod, call): (&PodUid, &Postponed)| (call.due <= now).then(|| pod.clone());
        let audits: Vec<PodUid> = self.calls.audits.iter().filter_map(is_due).collect();
        for pod in audits {
            if let Some(Postponed { asker, call, .. }) = self.calls.audits.remove(&pod) {
                call.begin(self, asker);
            }
        }
        let is_late = |waiting: &Waiting| waiting.goal.deadline().is_some_and(|deadline| deadline <= now);
        let mut late = Vec::new();
        self.calls.by_pod.retain(|pod, calls| {
            late.extend(
                calls
                    .extract_if(.., |call| is_late(call))
                    .map(|call| (pod.clone(), call)),
            );
            !calls.is_empty()
        });
        for (pod, Waiting { asker, goal }) in late {
            goal.timed_out(self, &pod, asker);
        }
        let registrations = self.calls.registrations.iter();
        let due = registrations.filter(|(_, calls)| calls.iter().any(|call| call.due <= now));
        let due: Vec<PodUid> = due.map(|(pod, _)| pod.clone()).collect();
        for pod in due {
            self.retry_pod(&pod);
        }
    }

    /// Drop this pod's waiting registrations whose callers have left, so that its next call does not wait for them.
    pub(super) fn drop_abandoned_registrations(&mut self, pod: &PodUid) {
        let Some(waiting) = self.calls.registrations.get_mut(pod) else {
            return;
        };
        for abandoned in waiting.extract_if(.., |postponed| postponed.call.is_given_up()) {
            self.inbox.release(&abandoned.asker);
        }
        if waiting.is_empty() {
            self.calls.registrations.remove(pod);
        }
    }

    /// Try every waiting registration again: an instance gave up CPUs.
    pub(super) fn retry_all(&mut self) {
        let pods: Vec<PodUid> = self.calls.registrations.keys().cloned().collect();
        pods.iter().for_each(|pod| self.retry_pod(pod));
    }

    /// Try the waiting registrations of this pod again.
    pub(super) fn retry_pod(&mut self, pod: &PodUid) {
        for Postponed { asker, call, .. } in self.calls.registrations.remove(pod).into_iter().flatten() {
            self.inbox.again(asker, call);
        }
    }
}

pub(super) fn no_instance(pod: &PodUid) -> Error {
    ErrorKind::NoSuchInstance.because(format!("pod {pod} has no instance"))
}

pub(super) fn failed(pod: &PodUid, what: &str, causes: Vec<Reason>) -> Error {
    ErrorKind::Failed
        .because(format!("{what} of pod {pod}"))
        .of(pod)
        .with(causes)
}
