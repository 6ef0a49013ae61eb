//! One turn: look at what may be out of date, plan for whom it concerns, take the steps. What is left is the next turn's, and
//! between two turns everybody else has theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use stelia_api::{Error, Reason};
use stelia_kubelet::PodUid;

use super::apply::{self, Outcome, apply};
use super::dirty::Stale;
use super::metrics::Trigger;
use super::task::Engine;
use super::{LastPass, observe, picture};
use crate::decide::{Assessment, Facts, Instance, Plan, Planned, Step, plan_for};
use crate::{decide, journal};

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Looks at the one instance whose numbers these are.
    pub(super) looks: u32,
    pub(super) steps: u32,
    pub(super) writes: u32,
    pub(super) moves: u32,
    pub(super) repaired: u32,
    pub(super) failed: u32,
}

impl Numbers {
    fn add(&mut self, outcome: &Outcome) {
        self.steps = self.steps.wrapping_add(outcome.steps);
        self.writes = self.writes.wrapping_add(outcome.writes);
        self.moves = self.moves.wrapping_add(outcome.moves);
        self.failed = self.failed.wrapping_add(outcome.errors.len() as u32);
    }

    /// What was done since.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            looks: self.looks.wrapping_sub(before.looks),
            steps: self.steps.wrapping_sub(before.steps),
            writes: self.writes.wrapping_sub(before.writes),
            moves: self.moves.wrapping_sub(before.moves),
            repaired: self.repaired.wrapping_sub(before.repaired),
            failed: self.failed.wrapping_sub(before.failed),
        }
    }
}

/// What was done for a call, in all its turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The instance it is of; `None`: the whole node.
    pub pod: Option<PodUid>,
    /// The pass's number since the daemon started; of one instance, how often that was looked at.
    pub pass: u32,
    /// Steps taken.
    pub steps: u32,
    /// Writes to cgroup files.
    pub writes: u32,
    /// Cgroup moves.
    pub moves: u32,
    /// Things somebody else had changed, and that are again as they were.
    pub repaired: u32,
    /// What could not be done or is not whole, each with the instance that it is amiss with.
    pub degraded: Vec<(Option<PodUid>, Reason)>,
}

impl Report {
    /// What is amiss, a line each.
    pub fn lines(&self) -> Vec<String> {
        let line = |(pod, reason): &(Option<PodUid>, Reason)| match pod {
            Some(pod) => format!("{pod}: {reason}"),
            None => reason.to_string(),
        };
        self.degraded.iter().map(line).collect()
    }
}

/// What a pass would do now.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Preview {
    /// The first round's steps, in their order, each with the pod it is for. Later rounds depend on what these come to.
    pub steps: Vec<(Option<PodUid>, String)>,
    /// What is not whole now, by pod.
    pub degraded: Vec<(PodUid, Reason)>,
}

/// A pass: from the first turn with something to look at to the last.
#[derive(Debug)]
pub(super) struct Pass {
    began: Instant,
    trigger: Trigger,
    before: Numbers,
    /// When kubelet wrote what this pass follows, microseconds since the epoch.
    follows_us: Option<u64>,
}

impl Engine {
    /// Observe and plan, and leave it at that.
    pub(super) fn preview(&mut self) -> Result<Preview, Error> {
        let policies = &self.settings.policies;
        let source = policies.allocator.source;
        let kubelet = self.picture.kubelet.state(source);
        let mut snapshot = observe::snapshot(&self.system, &kubelet, source)?;
        snapshot.unsettled.clone_from(&self.picture.snapshot.unsettled);
        let facts = Facts::of(&snapshot, policies);
        let assess = |instance: &Instance| Assessment::of(&snapshot, &facts, policies, instance);
        let degraded = snapshot.live().flat_map(|instance| {
            let pod = instance.record.pod.clone();
            assess(instance)
                .degraded
                .into_iter()
                .map(move |reason| (pod.clone(), reason))
        });
        let steps = decide::plan(&snapshot, policies);
        Ok(Preview {
            steps: steps
                .into_iter()
                .map(|planned| (planned.pod, planned.step.to_string()))
                .collect(),
            degraded: degraded.collect(),
        })
    }

    /// Whether a turn has anything to do.
    pub(super) fn is_due(&self) -> bool {
        self.dirty.is_due(|pod| self.patience.rests(pod))
    }

    /// One turn.
    pub(super) fn turn(&mut self) {
        let now = Instant::now();
        if self.pass.is_none() {
            self.passes = self.passes.wrapping_add(1);
            self.pass = Some(Pass {
                began: now,
                trigger: self.trigger.take().unwrap_or(Trigger::Event),
                before: self.total,
                follows_us: None,
            });
        }
        let mut everyone = std::mem::take(&mut self.dirty.everyone);
        let mut whom: BTreeSet<PodUid> = std::mem::take(&mut self.dirty.plan);
        everyone |= self.look_at_node(&mut whom);
        let mut gone = BTreeSet::new();
        everyone |= self.look_at_instances(&mut whom, &mut gone);
        if self.picture.needs_outside() {
            self.dirty.outside = true;
            everyone |= self.look_at_node(&mut whom);
        }
        if everyone {
            whom.extend(self.picture.snapshot.instances.keys().cloned());
        }
        let shared = std::mem::take(&mut self.dirty.shared) || everyone || !whom.is_empty() || !gone.is_empty();
        let mut assessed = BTreeMap::new();
        for pod in &whom {
            let assessment = self.picture.assess(&self.settings.policies, pod, now);
            assessed.extend(assessment.map(|assessment| (pod.clone(), assessment)));
        }
        self.show(&assessed, &gone);
        assessed.retain(|pod, _| !self.patience.rests(pod));
        let plan = self.plan(&assessed, shared);
        let settled = self.take(plan, &assessed, now);
        let settled = settled.into_iter().chain(gone.into_iter().map(Some));
        self.answer(settled.chain(self.resting(&whom)).collect());
        if !self.is_due() && self.errands.is_idle() {
            self.end_pass();
        }
    }

    /// Of those, who rests: nothing more is done for them now.
    fn resting(&self, whom: &BTreeSet<PodUid>) -> Vec<Option<PodUid>> {
        let resting = whom.iter().filter(|pod| self.patience.rests(pod));
        resting.cloned().map(Some).collect()
    }

    /// Read what of the node may be out of date; whether that concerns everybody.
    pub(super) fn look_at_node(&mut self, whom: &mut BTreeSet<PodUid>) -> bool {
        let shared = self.dirty.slice || self.dirty.outside;
        let node = self.picture.look_at_node(&self.system, &self.settings, &mut self.dirty);
        let picture::Node {
            everyone,
            kubelet_before,
            findings,
            problems,
            found,
        } = node;
        for pod in found {
            self.watcher.forget(&pod);
            self.dirty.again(pod.clone());
            whom.insert(pod);
        }
        if let Some(before) = kubelet_before {
            self.kubelet_changed(&before);
        }
        self.tell_of_guaranteed();
        self.problems = problems;
        // What this program wrote itself is no drift.
        let ours = shared && std::mem::take(&mut self.wrote_shared);
        self.drifted(None, if ours { Vec::new() } else { findings });
        everyone
    }

    /// kubelet's file says something else.
    fn kubelet_changed(&mut self, before: &Result<stelia_kubelet::CpuManagerState, String>) {
        self.picture.read_all_siblings(&self.system);
        self.patience.wake_all();
        self.shared.wake_all();
        let now = &self.picture.snapshot.kubelet;
        self.metrics.saw_kubelet(now.is_ok());
        match (before, now) {
            (_, Err(problem)) => tracing::warn!(
                MESSAGE_ID = journal::KUBELET_REFUSED,
                STELIA_REASON = problem,
                "kubelet's state cannot be used, floats keep their CPUs: {problem}"
            ),
            (Err(_), Ok(_)) if self.passes > 1 => {
                tracing::info!(MESSAGE_ID = journal::KUBELET_USABLE, "kubelet's state is usable again");
            }
            _ => {}
        }
        // What comes after a file that could not be used tells nothing of time.
        if let (Ok(_), Ok(_), Some(pass)) = (before, now, &mut self.pass) {
            let modified = self.picture.version.and_then(|version| version.modified);
            pass.follows_us = modified.map(apply::us);
        }
        self.retry_waiting(before);
    }

    /// Read the instances that are due.
    fn look_at_instances(&mut self, whom: &mut BTreeSet<PodUid>, gone: &mut BTreeSet<PodUid>) -> bool {
        let patience = &self.patience;
        let due = self.dirty.due(|pod| patience.rests(pod));
        let mut everyone = false;
        for (pod, ours) in std::mem::take(&mut self.dirty.floats) {
            let drifted = self.picture.look_at_float(&self.system, &pod, ours, &mut self.dirty);
            if let Some((left, findings)) = drifted {
                self.drifted(Some(*left), findings);
            }
            whom.insert(pod);
        }
        for (pod, stale) in due {
            everyone |= self.look_at(&pod, stale, gone);
            whom.insert(pod);
        }
        everyone
    }

    /// Read one instance; whether that concerns others.
    pub(super) fn look_at(&mut self, pod: &PodUid, stale: Stale, gone: &mut BTreeSet<PodUid>) -> bool {
        let policies = &self.settings.policies;
        let look = self
            .picture
            .look_at(&self.system, policies, &mut self.watcher, pod, stale);
        match look {
            Ok(look) => {
                if look.gone {
                    gone.insert(pod.clone());
                    self.forget(pod);
                }
                if let Some((left, findings)) = look.drifted {
                    self.drifted(Some(*left), findings);
                }
                if self.picture.find(pod).is_some() {
                    let numbers = self.numbers.entry(pod.clone()).or_default();
                    numbers.looks = numbers.looks.wrapping_add(1);
                }
                look.everyone
            }
            Err(error) => {
                // What is known of it stands; it is tried again.
                self.patience.tried(pod, 1, vec![error.to_string()], Instant::now());
                self.dirty.instances.entry(pod.clone()).or_insert(stale);
                false
            }
        }
    }

    /// It is gone, and what was kept for it.
    fn forget(&mut self, pod: &PodUid) {
        self.patience.done(pod);
        self.numbers.remove(pod);
        self.drift.remove(&Some(pod.clone()));
        self.dirty.instances.remove(pod);
        // Its CPUs are still in the slice's list.
        self.dirty.slice = true;
        self.dirty.shared = true;
        self.wrote_shared = true;
        self.retry_pod(pod);
    }

    /// The steps for those assessed, and for what all share.
    fn plan(&mut self, assessed: &BTreeMap<PodUid, Assessment>, shared: bool) -> Plan {
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        if assessed.is_empty() && !shared {
            return Plan::default();
        }
        let Plan { mut steps, waiting } = plan_for(snapshot, &self.picture.facts, policies, assessed);
        let shared = steps.iter().filter(|planned| planned.pod.is_none());
        let subjects: BTreeSet<String> = shared.map(|planned| planned.step.subject()).collect();
        self.shared.keep(|subject| subjects.contains(subject));
        steps.retain(|planned| {
            let under_way = planned.step.is_systemds().is_some_and(|unit| self.errands.has(unit));
            let rests = planned.pod.is_none() && self.shared.rests(&planned.step.subject());
            !under_way && !rests
        });
        Plan { steps, waiting }
    }

    /// Take the steps; who is settled then: nothing is left to do, or nothing more can be done.
    fn take(
        &mut self,
        Plan { steps, waiting }: Plan,
        assessed: &BTreeMap<PodUid, Assessment>,
        now: Instant,
    ) -> BTreeSet<Option<PodUid>> {
        let instances = &self.picture.snapshot.instances;
        let records = steps.iter().filter(|planned| is_of_record(&planned.step));
        let before: BTreeMap<PodUid, Instance> = records
            .filter_map(|planned| Some((planned.pod.clone()?, instances.get(planned.pod.as_ref()?)?.clone())))
            .collect();
        for planned in &steps {
            if let Step::Contain(_) = planned.step {
                self.tell_refused(planned.pod.as_ref());
            }
        }
        // Until that is taken nobody was planned for.
        if steps.iter().any(|planned| planned.step.comes_first()) {
            self.dirty.plan.extend(assessed.keys().cloned());
            self.dirty.shared = true;
        }
        let (outcomes, systemds) = apply(&self.system, &mut self.picture.snapshot.instances, steps);
        for instance in before.values() {
            self.dirty.everyone |= self.picture.record(&self.settings.policies, instance);
        }
        for Planned { pod, step } in systemds {
            self.errands.take(&self.system, pod, step);
        }
        let mut settled = BTreeSet::new();
        for who in assessed.keys().cloned().map(Some).chain([None]) {
            match outcomes.get(&who) {
                Some(outcome) => self.took(&who, outcome, now),
                None => {
                    let waits = match &who {
                        Some(pod) if waiting.contains(pod) && !self.waits_in_vain(pod) => {
                            self.waiting.insert(pod.clone());
                            true
                        }
                        Some(pod) => self.errands.has(&pod.scope()) || self.dirty.has(pod),
                        None => self.dirty.shared || self.dirty.slice || !self.errands.is_idle(),
                    };
                    if waits {
                        continue;
                    }
                    if let Some(pod) = who.as_ref().filter(|pod| !self.patience.rests(pod)) {
                        self.patience.done(pod);
                    }
                    self.repaired(&who);
                    settled.insert(who);
                }
            }
        }
        settled
    }

    /// Whether what an instance needs of what all share cannot be done now.
    fn waits_in_vain(&self, pod: &PodUid) -> bool {
        let partition = self.picture.find(pod).map(|instance| instance.record.partition);
        let needed = |subject: &String| partition.is_some_and(|partition| Step::is_needed(subject, partition));
        self.shared.any_rests(needed)
    }

    /// What all share is another now, or cannot be brought there: those who waited for it are planned for again.
    pub(super) fn shared_changed(&mut self) {
        for pod in std::mem::take(&mut self.waiting) {
            // Files of its scope come with the slice's controllers.
            if self
                .picture
                .find(&pod)
                .is_some_and(|instance| !decide::limits_are_carried(instance))
            {
                self.dirty.again(pod.clone());
            }
            self.dirty.plan.insert(pod);
        }
    }

    /// Steps were taken for one instance, or for what all share.
    fn took(&mut self, who: &Option<PodUid>, outcome: &Outcome, now: Instant) {
        self.total.add(outcome);
        let Some(pod) = who else {
            for (subject, error) in &outcome.subjects {
                error.iter().for_each(|error| self.log_failure(None, error));
                self.shared.tried(
                    subject,
                    1 + usize::from(error.is_none()),
                    error.clone().into_iter().collect(),
                    now,
                );
            }
            self.dirty.slice = true;
            self.picture.moved_workers();
            self.look_outside();
            self.wrote_shared = true;
            return self.shared_changed();
        };
        self.patience
            .tried(pod, outcome.steps as usize, outcome.errors.clone(), now);
        self.numbers.entry(pod.clone()).or_default().add(outcome);
        if outcome.asked_for_partition {
            self.picture.asked(pod);
        }
        let well = outcome.errors.is_empty();
        if outcome.recorded_only && well {
            self.dirty.plan.insert(pod.clone());
        } else if outcome.float_only && well {
            self.dirty.floats.insert(pod.clone(), true);
        } else {
            self.dirty.wrote(pod.clone());
        }
        if self.patience.rests(pod) {
            for failure in self.patience.failures(pod) {
                self.log_failure(Some(pod), failure);
            }
        }
    }

    pub(super) fn log_failure(&self, pod: Option<&PodUid>, failure: &str) {
        let trigger = self.pass.as_ref().map_or("event", |pass| pass.trigger.name());
        tracing::warn!(
            MESSAGE_ID = journal::PASS_FAILED,
            STELIA_POD_UID = pod.map(PodUid::as_str),
            STELIA_REASON = failure,
            STELIA_TRIGGER = trigger,
            "{failure}"
        );
    }

    fn tell_refused(&self, pod: Option<&PodUid>) {
        let Some(instance) = pod.and_then(|pod| self.picture.find(pod)) else {
            return;
        };
        let record = &instance.record;
        let text = instance.vcpu().map_or("", |vcpu| &vcpu.partition);
        tracing::warn!(
            MESSAGE_ID = journal::PARTITION_REFUSED, STELIA_POD_UID = %record.pod, STELIA_CPUSET = %record.exclusive,
            STELIA_PARTITION = text,
            "the kernel gives pod {} no {} partition ({text:?}): contained instead", record.pod, record.partition.name()
        );
    }

    /// Nothing is due any more.
    fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        let did = self.total.since(pass.before);
        let failures = self.patience.all_failures().count() + self.shared.all_failures().count() + self.problems.len();
        if did.steps > 0 {
            tracing::info!(
                MESSAGE_ID = journal::PASS,
                STELIA_TRIGGER = pass.trigger.name(),
                "pass {}: {} steps, {} writes, {} moves, {failures} failures",
                self.passes,
                did.steps,
                did.writes,
                did.moves,
            );
        }
        let took = pass.began.elapsed();
        self.last_pass = Some(LastPass {
            number: self.passes,
            trigger: pass.trigger.name(),
            ended_us: apply::now_us(),
            duration_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            steps: did.steps,
            writes: did.writes,
            moves: did.moves,
            failures: failures as u32,
        });
        self.metrics.passed(pass.trigger, did, took);
        if failures == 0 && did.steps > 0 {
            pass.follows_us
                .into_iter()
                .for_each(|us| self.metrics.followed_kubelet(us));
        }
        self.publish_numbers(false);
    }
}

fn is_of_record(step: &Step) -> bool {
    matches!(
        step,
        Step::Enter(..) | Step::Entitle { .. } | Step::Share(..) | Step::Place(..) | Step::Contain(_)
    )
}
