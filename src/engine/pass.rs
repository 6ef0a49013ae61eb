//! A pass: the turns from the first with something to look at to the last. What is counted in it, what is said of it, and
//! what one would do.

use std::time::Instant;

use stelia_api::{Error, ErrorKind, Reason};
use stelia_kubelet::PodUid;

use super::LastPass;
use super::apply::{self, Outcome};
use super::metrics::Trigger;
use super::picture::Picture;
use super::task::Engine;
use crate::decide::{Assessment, Facts, Instance};
use crate::{decide, journal};

/// Counts since the daemon started, of one instance or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// How often the instance was read; not counted for all.
    pub(super) looks: u32,
    pub(super) steps: u32,
    pub(super) writes: u32,
    pub(super) moves: u32,
    pub(super) repaired: u32,
    pub(super) failed: u32,
}

impl Numbers {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        self.steps = self.steps.wrapping_add(outcome.steps);
        self.writes = self.writes.wrapping_add(outcome.writes);
        self.moves = self.moves.wrapping_add(outcome.moves);
        self.failed = self.failed.wrapping_add(outcome.errors.len() as u32);
    }

    /// What was counted since `before`.
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

/// What Reconcile or Audit answers: what was done for the call, in all its turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The instance; `None` for the whole node.
    pub pod: Option<PodUid>,
    /// The pass's number since the daemon started; for one instance, how often that was read.
    pub pass: u32,
    pub steps: u32,
    pub writes: u32,
    pub moves: u32,
    /// Changes by other programs that were undone.
    pub repaired: u32,
    /// Steps that failed and reasons of degradation, each with its instance.
    pub degraded: Vec<(Option<PodUid>, Reason)>,
}

impl Report {
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
    /// The first round's steps, in their order, each with the pod it is for. Later rounds depend on the outcome of
    /// these.
    pub steps: Vec<(Option<PodUid>, String)>,
    /// What is degraded now, by pod.
    pub degraded: Vec<(PodUid, Reason)>,
}

/// A pass: from the first turn with something to look at to the last.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) began: Instant,
    pub(super) trigger: Trigger,
    pub(super) before: Numbers,
    /// When kubelet wrote the change that this pass follows, microseconds since the epoch.
    pub(super) follows_us: Option<u64>,
}

impl Engine {
    /// Read everything and plan, without taking a step.
    pub(super) fn preview(&mut self) -> Result<Preview, Error> {
        let policies = &self.settings.policies;
        let kubelet = self.picture.kubelet.clone();
        let picture = Picture::read(&self.system, &self.settings, kubelet);
        let mut snapshot = picture.map_err(|problem| ErrorKind::Failed.because(problem))?.snapshot;
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

    /// Log and count a pass in which nothing is due any more.
    pub(super) fn end_pass(&mut self) {
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
        self.publisher.show_pass(LastPass {
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
    }
}
