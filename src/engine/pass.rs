//! A pass: observe, plan, apply, and observe again until nothing is left to do; what is watched and told meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::apply::{self, Outcome};
use super::task::Engine;
use super::{LastPass, Trigger, View, observe};
use crate::cgroup::{CgroupPath, File};
use crate::journal;
use crate::kubelet::{CpuManagerState, PodUid};
use crate::plan::admission::{Kind, Refusal};
use crate::plan::allocator::CpuSource;
use crate::plan::drift::{Finding, drift};
use crate::plan::entitlement::{Entitlement, entitlement};
use crate::plan::{self, Instance, Snapshot};
use crate::topology::Topology;

/// A pass is observe, plan, apply, and observe again; one that does not end within this many rounds is reported.
const ROUNDS: u32 = 8;
/// How long events wait after a pass that could not finish; it doubles up to 32 times this.
const REST: Duration = Duration::from_secs(1);
/// How long kubelet may have no entry for a live instance before that is said.
const SETTLE: Duration = Duration::from_secs(1);
/// How long systemd has for removing an empty scope.
const EMPTY: Duration = Duration::from_secs(2);

/// What a pass did, in all its rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The pass's number since the daemon started.
    pub pass: u32,
    /// Steps taken.
    pub steps: u32,
    /// Writes to cgroup files.
    pub writes: u32,
    /// Cgroup moves.
    pub moves: u32,
    /// Things somebody else had changed, and that are again as they were.
    pub repaired: u32,
    /// What could not be done or is not whole.
    pub degraded: Vec<String>,
}

/// What a pass would do now.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Preview {
    /// The first round's steps, in their order, each with the pod it is for. Later rounds depend on what these come to.
    pub steps: Vec<(Option<PodUid>, String)>,
    /// What is not whole now, by pod.
    pub degraded: Vec<(PodUid, String)>,
}

impl Engine {
    /// Observe and plan, and leave it at that.
    pub(super) async fn preview(&mut self) -> Result<Preview, Refusal> {
        let (snapshot, _) = self.observe().await?;
        let steps = plan::plan(&snapshot, &self.settings.policies);
        let degraded = snapshot.instances.iter().flat_map(|instance| {
            let reasons = plan::degraded(&snapshot, &self.settings.policies, instance);
            let pod = instance.record.pod.clone();
            reasons.into_iter().map(move |reason| (pod.clone(), reason))
        });
        Ok(Preview {
            steps: steps
                .into_iter()
                .map(|planned| (planned.pod, planned.step.to_string()))
                .collect(),
            degraded: degraded.collect(),
        })
    }

    /// Observe, and publish what was seen.
    pub(super) async fn observe(&mut self) -> Result<(Snapshot, Result<CpuManagerState, String>), Refusal> {
        let root = self.settings.kubelet_root.clone();
        let source = self.settings.policies.allocator.source;
        let (modified, kubelet, snapshot, offline) = self
            .blocking(move |system| {
                // Before the file itself: what is written meanwhile is younger than that, and seen at the next pass.
                let modified = observe::kubelet_modified(&root);
                let kubelet = observe::kubelet(&root, source);
                let snapshot = observe::snapshot(system, &kubelet, source);
                (modified, kubelet, snapshot, Topology::offline(&system.sys))
            })
            .await?;
        let mut snapshot = snapshot.map_err(|error| Kind::Failed.because(error.to_string()))?;
        self.metrics.saw_kubelet(kubelet.is_ok());
        let problem = kubelet.as_ref().err().cloned();
        if problem != self.last_problem {
            match &problem {
                Some(problem) => tracing::warn!(
                    MESSAGE_ID = journal::KUBELET_REFUSED,
                    STELIA_REASON = problem,
                    "kubelet's state cannot be used, floats keep their CPUs: {problem}"
                ),
                None => tracing::info!(MESSAGE_ID = journal::KUBELET_USABLE, "kubelet's state is usable again"),
            }
            self.last_problem = problem;
        }
        self.watch(&snapshot);
        self.settle(&mut snapshot);
        let mut view = View::of(&snapshot, &self.settings.policies);
        view.kubelet_modified_us = modified.map(apply::us);
        view.offline = offline;
        view.counters = self.counters;
        view.last_pass = self.last_pass;
        view.jobs = self.jobs.list.clone();
        self.view.send_if_modified(|old| {
            let changed = **old != view;
            if changed {
                *old = Arc::new(view);
            }
            changed
        });
        Ok((snapshot, kubelet))
    }

    /// Keep the watches on what tells of a change: kubelet's directory, the slice, and of each instance its death and
    /// the directories that only this program writes in.
    fn watch(&mut self, snapshot: &Snapshot) {
        let directory = |cgroup: &CgroupPath| self.system.cgroup_root.join(cgroup.as_str().trim_start_matches('/'));
        let mut paths: Vec<PathBuf> = vec![self.settings.kubelet_root.clone()];
        for instance in &snapshot.instances {
            paths.push(directory(&instance.scope).join(File::Events.name()));
            if instance.inner.is_some() {
                paths.push(directory(&instance.vcpu_path()));
                paths.push(directory(&instance.float_path()));
            }
        }
        paths.push(directory(&CgroupPath::slice()));
        // A pod that comes must be kept off CPUs that no partition protects, and one that goes frees what kubelet gave it.
        if snapshot.source == CpuSource::Steliad {
            paths.push(directory(&CgroupPath::root().child("kubepods.slice")));
        }
        self.watcher.keep(&paths);
    }

    /// What counts once it has lasted: a wake-up comes when it has.
    fn settle(&mut self, snapshot: &mut Snapshot) {
        self.settle_entries(snapshot);
        self.settle_scopes(snapshot);
    }

    /// systemd removes a scope that is empty, and tries once: one whose inner cgroups somebody was just removing stays for
    /// ever, and its pod could never come back.
    fn settle_scopes(&mut self, snapshot: &mut Snapshot) {
        let empty = snapshot.instances.iter().filter(|instance| !instance.populated);
        let empty = empty.map(|instance| instance.scope.clone()).collect();
        let lasting = lasting(&mut self.empty_since, empty, EMPTY, &self.wake_sender);
        snapshot.abandoned.extend(lasting);
    }

    /// kubelet writes one change as two files: an entry that is gone counts once it stays gone.
    fn settle_entries(&mut self, snapshot: &mut Snapshot) {
        let gone = |instance: &&Instance| entitlement(snapshot, instance) == Entitlement::Gone;
        let pods: BTreeSet<PodUid> = snapshot
            .live()
            .filter(gone)
            .map(|instance| instance.record.pod.clone())
            .collect();
        let lasting = lasting(&mut self.gone_since, pods.clone(), SETTLE, &self.wake_sender);
        snapshot.unsettled.extend(pods.difference(&lasting).cloned());
    }

    /// Rounds of observe, plan and apply until nothing is left to do, or nothing more can be done.
    pub(super) async fn pass(&mut self, trigger: Trigger) -> (Option<Snapshot>, Report) {
        let began = Instant::now();
        let mut failed = 0;
        self.passes = self.passes.wrapping_add(1);
        let mut report = Report {
            pass: self.passes,
            ..Report::default()
        };
        let mut failures: Vec<(Option<PodUid>, String)> = Vec::new();
        let mut findings = Vec::new();
        let mut last = None;
        for round in 0..ROUNDS {
            let snapshot = match self.observe().await {
                Ok((snapshot, _)) => snapshot,
                Err(refusal) => {
                    failures = vec![(None, refusal.text)];
                    break;
                }
            };
            if round == 0 {
                findings = self.drifted(&snapshot);
            }
            let steps = plan::plan(&snapshot, &self.settings.policies);
            let unfinished = steps.len();
            last = Some(snapshot);
            if steps.is_empty() {
                failures.clear();
                break;
            }
            if round + 1 == ROUNDS {
                let text = format!("{unfinished} steps are still to take after {ROUNDS} rounds");
                failures.push((None, text));
                break;
            }
            let outcome = match self.blocking(move |system| apply::apply(system, &steps)).await {
                Ok(outcome) => outcome,
                Err(refusal) => {
                    failures = vec![(None, refusal.text)];
                    break;
                }
            };
            count(&mut report, &outcome);
            let progressed = (outcome.errors.len() as u32) < outcome.steps;
            failed += outcome.errors.len() as u32;
            failures = outcome.errors;
            if !progressed {
                break;
            }
        }
        for (pod, failure) in &failures {
            tracing::warn!(
                MESSAGE_ID = journal::PASS_FAILED,
                STELIA_POD_UID = pod.as_ref().map(PodUid::as_str),
                STELIA_REASON = failure,
                STELIA_TRIGGER = trigger.name(),
                "{failure}"
            );
        }
        if report.steps > 0 {
            tracing::info!(
                MESSAGE_ID = journal::PASS,
                STELIA_TRIGGER = trigger.name(),
                "pass {}: {} steps, {} writes, {} moves, {} failures",
                report.pass,
                report.steps,
                report.writes,
                report.moves,
                failures.len()
            );
        }
        self.last_pass = Some(LastPass {
            number: report.pass,
            trigger: trigger.name(),
            ended_us: apply::now_us(),
            duration_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            steps: report.steps,
            writes: report.writes,
            moves: report.moves,
            failures: failures.len() as u32,
        });
        self.rest(failures.is_empty());
        self.metrics.passed(trigger, &report, failed, began.elapsed());
        let followed = failures.is_empty() && report.steps > 0;
        if followed && last.as_ref().is_some_and(|last| self.is_news_of_kubelet(last)) {
            let written = self.view.borrow().kubelet_modified_us;
            written.into_iter().for_each(|us| self.metrics.followed_kubelet(us));
        }
        if let Some(snapshot) = &last {
            for instance in &snapshot.instances {
                let reasons = plan::degraded(snapshot, &self.settings.policies, instance);
                report.degraded.extend(
                    reasons
                        .into_iter()
                        .map(|reason| format!("{}: {reason}", instance.record.pod)),
                );
            }
        }
        report.degraded.extend(failures.into_iter().map(|(_, failure)| failure));
        if let Some(snapshot) = &last {
            let left = self.left.as_ref().map(|left| drift(left, snapshot)).unwrap_or_default();
            report.repaired = findings.iter().filter(|finding| !left.contains(finding)).count() as u32;
            self.tell(snapshot);
            self.left = Some(snapshot.clone());
        }
        if !findings.is_empty() {
            self.counters.drift_found += findings.len() as u64;
            self.counters.drift_repaired += u64::from(report.repaired);
            repaired(findings.len(), report.repaired);
        }
        self.publish_numbers(!findings.is_empty());
        (last, report)
    }

    /// Whether kubelet wrote since the last pass. What comes after a file that could not be used tells nothing of time.
    fn is_news_of_kubelet(&self, now: &Snapshot) -> bool {
        let before = self.left.as_ref().map(|left| &left.kubelet);
        matches!((before, &now.kubelet), (Some(Ok(before)), Ok(now)) if before != now)
    }

    /// What a pass writes wakes the engine again. While it cannot finish it would run for ever, so events wait, each time
    /// longer; calls and the audit do not.
    fn rest(&mut self, finished: bool) {
        if finished {
            self.unfinished = 0;
            self.rest_until = None;
        } else {
            let rest = REST.saturating_mul(1 << self.unfinished.min(5));
            self.unfinished = self.unfinished.saturating_add(1);
            self.rest_until = Some(Instant::now() + rest);
        }
    }

    /// What somebody changed since the last pass, told to the journal.
    fn drifted(&self, found: &Snapshot) -> Vec<Finding> {
        let findings = self.left.as_ref().map(|left| drift(left, found)).unwrap_or_default();
        for finding in &findings {
            tracing::warn!(
                MESSAGE_ID = journal::DRIFT,
                STELIA_POD_UID = finding.pod.as_ref().map(PodUid::as_str),
                STELIA_DRIFT = finding.what,
                STELIA_FOUND = finding.is,
                STELIA_LEFT = finding.was,
                "{} is {:?}, it was left as {:?}",
                finding.what,
                finding.is,
                finding.was
            );
        }
        findings
    }

    /// Show what was counted. That a pass ended is no news to those who follow the view: they are told of drift only.
    fn publish_numbers(&self, drifted: bool) {
        let (counters, last_pass) = (self.counters, self.last_pass);
        self.view.send_if_modified(|view| {
            let shown = Arc::make_mut(view);
            shown.counters = counters;
            shown.last_pass = last_pass;
            drifted
        });
    }
}

/// Those of `now` that have been there for so long; the engine is woken when a new one has.
fn lasting<K: Ord + Clone>(
    since: &mut BTreeMap<K, Instant>,
    now: BTreeSet<K>,
    long: Duration,
    wake: &mpsc::Sender<()>,
) -> BTreeSet<K> {
    since.retain(|key, _| now.contains(key));
    let seen = Instant::now();
    let mut lasts = |key: &K| {
        let since = since.entry(key.clone()).or_insert_with(|| {
            let wake = wake.clone();
            tokio::spawn(async move {
                tokio::time::sleep(long).await;
                let _ = wake.try_send(());
            });
            seen
        });
        seen.duration_since(*since) >= long
    };
    now.into_iter().filter(|key| lasts(key)).collect()
}

/// How what somebody changed came out.
fn repaired(found: usize, repaired: u32) {
    let left = found.saturating_sub(repaired as usize);
    if left == 0 {
        tracing::info!(
            MESSAGE_ID = journal::REPAIRED,
            STELIA_REPAIRED = repaired,
            "{repaired} changes by others put right"
        );
    } else {
        tracing::warn!(
            MESSAGE_ID = journal::NOT_REPAIRED,
            STELIA_LEFT_OVER = left,
            "{left} changes by others are not put right yet"
        );
    }
}

fn count(report: &mut Report, outcome: &Outcome) {
    report.steps += outcome.steps;
    report.writes += outcome.writes;
    report.moves += outcome.moves;
}
