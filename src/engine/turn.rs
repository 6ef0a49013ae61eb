//! One turn: read what may be out of date, plan for the instances concerned, apply the steps. A turn is bounded; between two
//! turns calls and events are received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use stelia_decide::{Assessment, Instance, Planned, Step, Wait, Whom, plan_for};
use stelia_kernel::clock;
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_model::{PinnedReason, Trigger};

use super::apply::{StepOutcome, apply};
use super::instance_log::{partition_made, partition_refused};
use super::out_of_date::Stale;
use super::outside_units;
use super::pass::Pass;
use super::picture;
use super::retries::{NoProgress, Retries};
use super::state::EngineState;

impl EngineState {
    /// Whether a turn has anything to do.
    pub(super) fn is_due(&self) -> bool {
        self.dirty.is_due(|pod| self.retries.instances.rests(pod))
    }

    pub(super) fn turn(&mut self) {
        let now = Instant::now();
        let passes = &mut self.passes;
        if passes.current.is_none() {
            passes.count = passes.count.wrapping_add(1);
            passes.current = Some(Pass {
                began: now,
                trigger: passes.trigger.take().unwrap_or(Trigger::Event),
                before: passes.total,
                follows_us: None,
            });
        }
        self.look_at_node();
        self.look_at_instances();
        if self.picture.needs_outside() {
            self.dirty.outside = true;
            self.look_at_node();
        }
        let mut whom = std::mem::take(&mut self.dirty.plan);
        let gone = std::mem::take(&mut self.dirty.gone);
        let everyone = std::mem::take(&mut self.dirty.everyone);
        if everyone {
            whom.extend(self.picture.snapshot.instances.keys().cloned());
        }
        let shared = std::mem::take(&mut self.dirty.shared) || everyone || !whom.is_empty() || !gone.is_empty();
        let mut assessed = BTreeMap::new();
        for pod in &whom {
            let assessment = self.picture.assess(&self.settings.policies, pod, now);
            assessed.extend(assessment.map(|assessment| (pod.clone(), assessment)));
        }
        let waits = stelia_decide::waits(&self.picture.snapshot, &self.picture.facts, &assessed);
        // A step that is about to be tried again does not hide a wait, and whoever asks waits for it.
        let shown = self.stuck_waits(&assessed, &waits, NoProgress::Failed);
        let given_up = self.stuck_waits(&assessed, &waits, NoProgress::Rests);
        let (policies, retries) = (&self.settings.policies, &self.retries.instances);
        self.view_writer
            .show(&mut self.picture, policies, &assessed, &shown, retries, &gone);
        self.instance_log.instances(&self.picture, &assessed, &gone);
        self.wake_misplaced(&assessed);
        assessed.retain(|pod, _| !self.retries.instances.rests(pod));
        self.retries.waiting.extend(waits.keys().cloned());
        let plan = self.plan(&assessed, &waits, shared);
        let passing = |pod: &PodUid| waits.contains_key(pod) && !given_up.contains_key(pod);
        let settled = self.apply_plan(plan, &assessed, passing, now);
        let resting = whom.iter().filter(|pod| self.retries.instances.rests(pod));
        let others = gone.iter().chain(resting).cloned().map(Whom::Instance);
        self.answer(settled.into_iter().chain(others).collect());
        if !self.is_due() && self.systemd_calls.is_idle() {
            self.end_pass();
        }
    }

    /// End the rests of instances whose threads must leave CPUs: another VM is to have them, or has them without a partition.
    fn wake_misplaced(&mut self, assessed: &BTreeMap<PodUid, Assessment>) {
        let (snapshot, facts, policies) = (&self.picture.snapshot, &self.picture.facts, &self.settings.policies);
        for (pod, assessment) in assessed {
            let instance = self.picture.find(pod).filter(|_| self.retries.instances.rests(pod));
            let list = instance.and_then(|instance| assessment.float_of_misplaced(snapshot, facts, policies, instance));
            if let Some(list) = list {
                self.retries.instances.wake_for(pod, list);
            }
        }
    }

    /// Read what of the node may be out of date.
    pub(super) fn look_at_node(&mut self) {
        if self.dirty.slice {
            match outside_units::record_again(&*self.system.cgroups, &self.picture.snapshot) {
                Ok(true) => {
                    tracing::warn!("stelia.slice was stopped: what it records of other units is recorded again");
                    self.watch_node();
                }
                Ok(false) => {}
                Err(error) => self.log_failure(&Whom::Node, &error.to_string()),
            }
        }
        let node = self.picture.look_at_node(&self.system, &self.settings, &mut self.dirty);
        let picture::NodeReading {
            kubelet_before,
            findings,
            found,
            read_shared,
        } = node;
        self.has_unread_parts |= !self.picture.problems.is_empty();
        for pod in found {
            self.watcher.forget(&pod);
            self.dirty.again(pod.clone());
            self.dirty.plan.insert(pod);
        }
        if let Some(before) = kubelet_before {
            self.kubelet_changed(&before);
        }
        self.instance_log.guaranteed(&self.picture.snapshot);
        // What this program wrote itself is not drift.
        let ours = self.dirty.wrote_shared;
        self.dirty.wrote_shared &= !read_shared;
        self.log_drift(None, if ours { Vec::new() } else { findings });
    }

    /// Follow a change of kubelet's file.
    fn kubelet_changed(&mut self, before: &Result<stelia_kubelet::CpuManagerState, String>) {
        self.picture.read_all_siblings(&self.system);
        self.retries.wake_all();
        let now = &self.picture.snapshot.kubelet;
        self.metrics.saw_kubelet(now.is_ok());
        self.log_kubelet(before);
        // The time since the write is not measured after a file that could not be used.
        if let (Ok(_), Ok(_), Some(pass)) = (before, now, &mut self.passes.current) {
            let modified = self.picture.version.and_then(|version| version.modified);
            pass.follows_us = modified.map(clock::us);
        }
        self.retry_waiting(before);
    }

    /// Read the instances that are due.
    fn look_at_instances(&mut self) {
        let retries = &self.retries.instances;
        let now = Instant::now();
        let due = self.dirty.due(|pod| retries.rests(pod), &self.recent_looks, now);
        for (pod, ours) in std::mem::take(&mut self.dirty.floats) {
            let drifted = self.picture.look_at_float(&self.system, &pod, ours, &mut self.dirty);
            if let Some((before, findings)) = drifted {
                self.log_drift(Some(*before), findings);
            }
            self.dirty.plan.insert(pod);
        }
        for (pod, stale) in due {
            self.look_at(&pod, stale);
            let tasks = self.picture.find(&pod).map_or(0, Instance::tasks);
            self.recent_looks.add(&pod, tasks, now);
            self.dirty.plan.insert(pod);
        }
    }

    /// Read one instance.
    pub(super) fn look_at(&mut self, pod: &PodUid, stale: Stale) {
        let Self {
            system,
            settings,
            picture,
            watcher,
            dirty,
            ..
        } = self;
        let look = picture.look_at(system, &settings.policies, watcher, pod, stale, dirty);
        match look {
            Ok(look) => {
                if look.gone {
                    self.dirty.gone.insert(pod.clone());
                    self.forget(pod);
                }
                if let Some((before, findings)) = look.drifted {
                    self.log_drift(Some(*before), findings);
                }
                if self.picture.find(pod).is_some() {
                    let numbers = self.passes.of.entry(pod.clone()).or_default();
                    numbers.looks = numbers.looks.wrapping_add(1);
                }
            }
            Err(error) => {
                // What is known of it is kept, and reading it is retried.
                self.retries
                    .instances
                    .tried(pod, 1, vec![error.to_string()], Instant::now());
                self.dirty.instances.entry(pod.clone()).or_insert(stale);
            }
        }
    }

    /// Drop what was kept for an instance that is gone.
    fn forget(&mut self, pod: &PodUid) {
        self.retries.instances.done(pod);
        self.passes.of.remove(pod);
        self.drift.remove(&Whom::Instance(pod.clone()));
        self.dirty.instances.remove(pod);
        // Its CPUs are still in the slice's list.
        self.dirty.wrote_slice();
        self.dirty.shared = true;
        self.retry_all();
    }

    /// The steps for these instances and those that all share, without any that rests or is under way.
    fn plan(
        &mut self,
        assessed: &BTreeMap<PodUid, Assessment>,
        waits: &BTreeMap<PodUid, Wait>,
        shared: bool,
    ) -> Vec<Planned> {
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        if assessed.is_empty() && !shared {
            return Vec::new();
        }
        let mut steps = plan_for(snapshot, &self.picture.facts, policies, assessed, waits);
        let shared = steps.iter().filter(|planned| planned.whom == Whom::Node);
        let subjects: BTreeSet<String> = shared.map(|planned| planned.step.subject()).collect();
        self.retries.shared.keep(|subject| subjects.contains(subject));
        steps.retain(|planned| {
            let under_way = planned
                .step
                .systemd_unit()
                .is_some_and(|unit| self.systemd_calls.has(unit));
            let rests = planned.whom == Whom::Node && self.retries.shared.rests(&planned.step.subject());
            !under_way && !rests
        });
        steps
    }

    /// Apply the steps. `passing`: the instance waits for what others end. Returns the settled: no step remains, or none can be applied now.
    fn apply_plan(
        &mut self,
        steps: Vec<Planned>,
        assessed: &BTreeMap<PodUid, Assessment>,
        passing: impl Fn(&PodUid) -> bool,
        now: Instant,
    ) -> BTreeSet<Whom> {
        let instances = &self.picture.snapshot.instances;
        let records = steps.iter().filter(|planned| planned.step.is_of_record());
        let before: BTreeMap<PodUid, Instance> = records
            .filter_map(|planned| planned.whom.pod())
            .filter_map(|pod| Some((pod.clone(), instances.get(pod)?.clone())))
            .collect();
        for Planned { whom, step } in &steps {
            let Some(instance) = whom.pod().and_then(|pod| self.picture.find(pod)) else {
                continue;
            };
            match step {
                Step::RecordPinned(_, PinnedReason::Refused) => partition_refused(&self.picture, instance),
                Step::Enter(_, Phase::Isolated) => partition_made(&self.picture, instance),
                _ => {}
            }
        }
        // Such a step was planned alone: plan again once it is applied.
        if steps.iter().any(|planned| planned.step.comes_first()) {
            self.dirty.plan.extend(assessed.keys().cloned());
            self.dirty.shared = true;
        }
        let (outcomes, systemds) = apply(&self.system, &mut self.picture.snapshot.instances, steps);
        for instance in before.values() {
            self.picture
                .follow_record(&self.settings.policies, instance, &mut self.dirty);
            let now = self.picture.snapshot.instances.get(&instance.record.pod);
            if now.is_some_and(|now| !instance.record.exclusive.is_subset(&now.record.exclusive)) {
                self.retry_all();
            }
        }
        for planned in systemds {
            self.systemd_calls.apply(&self.system, planned);
        }
        let mut settled = BTreeSet::new();
        for whom in assessed.keys().cloned().map(Whom::Instance).chain([Whom::Node]) {
            if let Some(outcome) = outcomes.get(&whom) {
                self.applied(&whom, outcome, now);
                continue;
            }
            let goes_on = match &whom {
                Whom::Instance(pod) if passing(pod) => true,
                Whom::Instance(pod) => self.systemd_calls.has(&pod.scope()) || self.dirty.has(pod),
                Whom::Node => self.dirty.shared || self.dirty.slice || !self.systemd_calls.is_idle(),
            };
            if goes_on {
                continue;
            }
            if let Some(pod) = whom.pod().filter(|pod| !self.retries.instances.rests(pod)) {
                self.retries.instances.done(pod);
            }
            self.log_repaired(&whom);
            settled.insert(whom);
        }
        settled
    }

    /// Whether an instance needs the shared step of a subject, to be asked of each subject.
    pub(super) fn needs_step_of(&self, pod: &PodUid) -> impl Fn(&String) -> bool + use<> {
        let found = self.picture.find(pod);
        let wants = found.map(|instance| (instance.record.partition, instance.above()));
        move |subject| wants.is_some_and(|(partition, above)| Step::is_needed(subject, partition, above))
    }

    /// The waits that no step ends, or whose step makes no progress: that of another instance, or one that all share.
    fn stuck_waits(
        &self,
        assessed: &BTreeMap<PodUid, Assessment>,
        waits: &BTreeMap<PodUid, Wait>,
        sign: NoProgress,
    ) -> BTreeMap<PodUid, Wait> {
        let Retries { instances, shared, .. } = &self.retries;
        let blocked_by = |pod: &PodUid| Some(&assessed.get(pod)?.blocked.as_ref()?.by);
        let lasts = |(pod, wait): &(&PodUid, &Wait)| {
            let is_blocked_for_long = blocked_by(pod).is_some_and(|other| instances.shows(sign, other));
            !wait.others_end_it() || is_blocked_for_long || shared.any_shows(sign, self.needs_step_of(pod))
        };
        let lasting = waits.iter().filter(lasts);
        lasting.map(|(pod, wait)| (pod.clone(), *wait)).collect()
    }

    /// A shared step was applied, or failed: plan again for the instances that wait for one.
    pub(super) fn shared_changed(&mut self) {
        for pod in std::mem::take(&mut self.retries.waiting) {
            // Files of its scope come with the slice's controllers.
            if self
                .picture
                .find(&pod)
                .is_some_and(|instance| !stelia_decide::limits_are_carried(instance))
            {
                self.dirty.again(pod.clone());
            }
            self.dirty.plan.insert(pod);
        }
    }

    /// This program wrote what all instances share.
    pub(super) fn wrote_shared(&mut self) {
        self.dirty.wrote_slice();
        self.shared_changed();
    }

    /// Count the applied steps, and mark what they changed.
    fn applied(&mut self, whom: &Whom, outcome: &StepOutcome, now: Instant) {
        self.passes.count(whom, outcome.did);
        let Whom::Instance(pod) = whom else {
            for (subject, error) in &outcome.subjects {
                error.iter().for_each(|error| self.log_failure(whom, error));
                if error.is_none() {
                    self.picture.cleared(subject);
                }
                self.retries.shared.tried(
                    subject,
                    1 + usize::from(error.is_none()),
                    error.clone().into_iter().collect(),
                    now,
                );
            }
            self.picture.moved_workers();
            self.mark_outside();
            return self.wrote_shared();
        };
        if outcome.extended_above {
            self.wrote_shared();
        }
        self.recent_looks.add_steps(pod, outcome.did.steps, now);
        let (steps, errors) = (outcome.did.steps as usize, outcome.errors.clone());
        if outcome.is_partly_removed && errors.is_empty() {
            self.retries.instances.tried_partly(pod, steps, now)
        } else {
            self.retries.instances.tried(pod, steps, errors, now)
        }
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
        if self.retries.instances.rests(pod) {
            for failure in self.retries.instances.failures(pod) {
                self.log_failure(whom, failure);
            }
            // Whoever waits for it to leave its CPUs would wait for longer than a call may.
            self.shared_changed();
        }
    }
}
