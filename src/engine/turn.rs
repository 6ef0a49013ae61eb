//! One turn: read what may be out of date, plan for the instances concerned, take the steps. A turn is bounded; between two
//! turns calls and events are taken in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use stelia_decide::{Assessment, Instance, Plan, Planned, Step, plan_for};
use stelia_kernel::clock;
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_model::{PinnedReason, Trigger};

use super::apply::{StepOutcome, apply};
use super::out_of_date::Stale;
use super::outside_units;
use super::pass::Pass;
use super::picture;
use super::state::EngineState;
use crate::journal::{self, about};

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
        self.view_writer
            .show(&mut self.picture, &self.settings.policies, &assessed, &gone);
        self.instance_log.instances(&self.picture, &assessed, &gone);
        assessed.retain(|pod, _| !self.retries.instances.rests(pod));
        let plan = self.plan(&assessed, shared);
        let settled = self.take(plan, &assessed, now);
        let settled = settled.into_iter().chain(gone.into_iter().map(Some));
        self.answer(settled.chain(self.resting(&whom)).collect());
        if !self.is_due() && self.systemd_calls.is_idle() {
            self.end_pass();
        }
    }

    /// Those that rest: no step is taken for them now.
    fn resting(&self, whom: &BTreeSet<PodUid>) -> Vec<Option<PodUid>> {
        let resting = whom.iter().filter(|pod| self.retries.instances.rests(pod));
        resting.cloned().map(Some).collect()
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
                Err(error) => self.log_failure(None, &error.to_string()),
            }
        }
        let shared = self.dirty.slice || self.dirty.outside;
        let node = self.picture.look_at_node(&self.system, &self.settings, &mut self.dirty);
        let picture::NodeReading {
            kubelet_before,
            findings,
            found,
        } = node;
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
        let ours = shared && std::mem::take(&mut self.dirty.wrote_shared);
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
        let Self { system, settings, picture, watcher, dirty, .. } = self;
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
        self.drift.remove(&Some(pod.clone()));
        self.dirty.instances.remove(pod);
        // Its CPUs are still in the slice's list.
        self.dirty.slice = true;
        self.dirty.shared = true;
        self.dirty.wrote_shared = true;
        self.retry_all();
    }

    /// The steps for these instances and those that all share, without any that rests or is under way.
    fn plan(&mut self, assessed: &BTreeMap<PodUid, Assessment>, shared: bool) -> Plan {
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        if assessed.is_empty() && !shared {
            return Plan::default();
        }
        let Plan { mut steps, waits } = plan_for(snapshot, &self.picture.facts, policies, assessed);
        let shared = steps.iter().filter(|planned| planned.pod.is_none());
        let subjects: BTreeSet<String> = shared.map(|planned| planned.step.subject()).collect();
        self.retries.shared.keep(|subject| subjects.contains(subject));
        steps.retain(|planned| {
            let under_way = planned
                .step
                .is_systemds()
                .is_some_and(|unit| self.systemd_calls.has(unit));
            let rests = planned.pod.is_none() && self.retries.shared.rests(&planned.step.subject());
            !under_way && !rests
        });
        Plan { steps, waits }
    }

    /// Take the steps. Returns the settled: no step remains, or none can be taken now.
    fn take(
        &mut self,
        Plan { steps, waits }: Plan,
        assessed: &BTreeMap<PodUid, Assessment>,
        now: Instant,
    ) -> BTreeSet<Option<PodUid>> {
        let instances = &self.picture.snapshot.instances;
        let records = steps.iter().filter(|planned| planned.step.is_of_record());
        let before: BTreeMap<PodUid, Instance> = records
            .filter_map(|planned| Some((planned.pod.clone()?, instances.get(planned.pod.as_ref()?)?.clone())))
            .collect();
        for planned in &steps {
            match planned.step {
                Step::RecordPinned(_, PinnedReason::Refused) => self.tell_refused(planned.pod.as_ref()),
                Step::Enter(_, Phase::Isolated) => self.tell_made(planned.pod.as_ref()),
                _ => {}
            }
        }
        // Such a step was planned alone: plan again once it is taken.
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
        for Planned { pod, step } in systemds {
            self.systemd_calls.take(&self.system, pod, step);
        }
        let ends_by_others = |pod: &PodUid| waits.get(pod).is_some_and(|wait| wait.others_end_it());
        let mut settled = BTreeSet::new();
        for who in assessed.keys().cloned().map(Some).chain([None]) {
            match outcomes.get(&who) {
                Some(outcome) => self.took(&who, outcome, now),
                None => {
                    let waits = match &who {
                        Some(pod) if ends_by_others(pod) && !self.waits_in_vain(pod, assessed.get(pod)) => {
                            self.retries.waiting.insert(pod.clone());
                            true
                        }
                        Some(pod) => self.systemd_calls.has(&pod.scope()) || self.dirty.has(pod),
                        None => self.dirty.shared || self.dirty.slice || !self.systemd_calls.is_idle(),
                    };
                    if waits {
                        continue;
                    }
                    if let Some(pod) = who.as_ref().filter(|pod| !self.retries.instances.rests(pod)) {
                        self.retries.instances.done(pod);
                    }
                    self.log_repaired(&who);
                    settled.insert(who);
                }
            }
        }
        settled
    }

    /// Whether an instance waits for the shared step of a subject.
    pub(super) fn waits_for(&self, pod: &PodUid) -> impl Fn(&String) -> bool + use<> {
        let found = self.picture.find(pod);
        let wants = found.map(|instance| (instance.record.partition, instance.above()));
        move |subject| wants.is_some_and(|(partition, above)| Step::is_needed(subject, partition, above))
    }

    /// Whether what an instance waits for rests, because it failed: a shared step, or the instance whose CPUs it is to have.
    fn waits_in_vain(&self, pod: &PodUid, assessment: Option<&Assessment>) -> bool {
        let other = assessment.and_then(|assessment| assessment.blocked.as_ref());
        let other_rests = other.is_some_and(|other| self.retries.instances.rests(&other.by));
        other_rests || self.retries.shared.any_rests(self.waits_for(pod))
    }

    /// A shared step was taken, or failed: plan again for the instances that wait for one.
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

    /// Count the steps taken for one instance (`None`: shared ones), and mark what they changed.
    fn took(&mut self, who: &Option<PodUid>, outcome: &StepOutcome, now: Instant) {
        self.passes.count(who.as_ref(), outcome.did);
        let Some(pod) = who else {
            for (subject, error) in &outcome.subjects {
                error.iter().for_each(|error| self.log_failure(None, error));
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
            self.dirty.slice = true;
            self.picture.moved_workers();
            self.look_outside();
            self.dirty.wrote_shared = true;
            return self.shared_changed();
        };
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
                self.log_failure(Some(pod), failure);
            }
            // Whoever waits for it to leave its CPUs would wait for longer than a call may.
            self.shared_changed();
        }
    }

    fn tell_refused(&self, pod: Option<&PodUid>) {
        let Some(instance) = pod.and_then(|pod| self.picture.find(pod)) else {
            return;
        };
        let record = &instance.record;
        let pod = self.named(&record.pod);
        if record.phase == Phase::Pinned {
            let retries = self.picture.retries(&record.pod);
            return tracing::debug!("the kernel refused pod {pod} a partition again, retry {retries}: it stays pinned");
        }
        let text = instance.vcpu().map_or("", |vcpu| &vcpu.partition);
        about!(
            warn, journal::PARTITION_REFUSED, pod, STELIA_CPUSET = %record.exclusive, STELIA_PARTITION = text,
            "the kernel refused pod {pod} a partition of kind {} ({text:?}): pinned instead", record.partition.name()
        );
    }

    /// A pinned instance has the partition that the kernel had refused.
    fn tell_made(&self, pod: Option<&PodUid>) {
        let instance = pod.and_then(|pod| self.picture.find(pod));
        let Some(instance) = instance.filter(|instance| instance.record.phase == Phase::Pinned) else {
            return;
        };
        let record = &instance.record;
        let retries = self.picture.retries(&record.pod);
        let pod = self.named(&record.pod);
        about!(
            info, journal::ISOLATED, pod, STELIA_CPUSET = %record.exclusive,
            STELIA_FLOAT = instance.float().map(|leaf| leaf.cpus.to_string()),
            "isolated pod {pod}: the kernel gives it the partition that it had refused ({retries} retries by audits)"
        );
    }
}
