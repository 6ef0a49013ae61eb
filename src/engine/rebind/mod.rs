//! Rebind jobs: instances move to better CPUs, one verified move after the other, while they run.
//!
//! The job is written down on stelia.slice before its first move: a daemon that finds one pending at its start knows that
//! the former one ended in the middle, and says that nobody knows how far it came. The instances are whole all the same:
//! each move is in its instance's own record before anything is done about it.

mod job;

use std::time::{Duration, Instant};

use super::apply::now_us;
use super::lifecycle::find;
use super::metrics::Trigger;
use super::task::Engine;
use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;
use crate::journal;
use crate::kubelet::PodUid;
use crate::plan::admission::{Kind, Refusal};
use crate::plan::rebind::{self, Move, Scope};
use crate::plan::record::{
    ALLOCATION_ATTRIBUTE, EXCLUSIVE_ATTRIBUTE, PARTITION_ATTRIBUTE, VCPUS_ATTRIBUTE, exclusive_text, vcpus_text,
};
use crate::plan::{Instance, Record, Snapshot, degraded};
pub(super) use job::Jobs;
pub use job::{Job, JobPhase, Made};

/// Jobs that are remembered.
const KEPT: usize = 16;
/// The longest deadline, seconds.
const MAX_DEADLINE_S: u32 = 86_400;

/// A call of Rebind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebindRequest {
    /// `node`, or a pod's UID.
    pub scope: String,
    /// Seconds; 0 for the default.
    pub deadline_s: u32,
    /// Tell what would move, and move nothing.
    pub dry_run: bool,
}

/// What Rebind answers: the job's number, none for a dry run; and the moves that are planned.
pub type Planned = (Option<u32>, Vec<Made>);

/// Ten minutes, as Koordinator's.
const DEADLINE: Duration = Duration::from_secs(600);

impl Engine {
    /// Begin a job, or tell what it would do.
    pub(super) async fn rebind(&mut self, request: RebindRequest) -> Result<Planned, Refusal> {
        let scope = match request.scope.as_str() {
            "" | "node" => Scope::Node,
            text => Scope::Pod(PodUid::parse(text).map_err(|cause| {
                Kind::InvalidArgument.because(format!(
                    "scope is \"node\" or the UID of a pod with an instance: {cause}"
                ))
            })?),
        };
        if request.deadline_s > MAX_DEADLINE_S {
            let text = format!("the deadline is {} s: at most {MAX_DEADLINE_S}", request.deadline_s);
            return Err(Kind::InvalidArgument.because(text));
        }
        let (snapshot, _) = self.observe().await?;
        if let Scope::Pod(pod) = &scope {
            find(&snapshot, pod).ok_or_else(|| super::lifecycle::no_instance(pod))?;
        }
        let moves = rebind::all(&snapshot, &self.settings.policies.allocator, &scope);
        let planned = moves.iter().map(Made::of).collect();
        if request.dry_run {
            return Ok((None, planned));
        }
        if self.jobs.is_running() {
            return Err(Kind::Busy.because("a rebind job runs already"));
        }
        let rest = self.settings.rebind_interval;
        if let Some(since) = self
            .jobs
            .began
            .map(|began| began.elapsed())
            .filter(|since| *since < rest)
        {
            let text = format!(
                "the last rebind job began {} s ago: one in {} s (rebind-interval-s)",
                since.as_secs(),
                rest.as_secs()
            );
            return Err(Kind::Busy.because(text));
        }
        let deadline = match request.deadline_s {
            0 => DEADLINE,
            seconds => Duration::from_secs(seconds.into()),
        };
        let id = self
            .jobs
            .list
            .iter()
            .map(|job| job.id)
            .max()
            .unwrap_or(0)
            .wrapping_add(1);
        self.jobs.list.push(Job {
            id,
            scope: match &scope {
                Scope::Node => "node".to_owned(),
                Scope::Pod(pod) => pod.to_string(),
            },
            phase: JobPhase::Pending,
            reason: String::new(),
            moves: Vec::new(),
            began_us: now_us(),
            ended_us: 0,
        });
        let superfluous = self.jobs.list.len().saturating_sub(KEPT);
        self.jobs.list.drain(..superfluous);
        if let Err(refusal) = self.keep_job().await {
            self.jobs.list.pop();
            return Err(refusal);
        }
        self.jobs.running = Some((scope, Instant::now() + deadline));
        self.jobs.began = Some(Instant::now());
        self.publish_jobs();
        Ok((Some(id), planned))
    }

    /// One move of the job that runs.
    pub(super) async fn rebind_step(&mut self) {
        let Some((scope, deadline)) = self.jobs.running.clone() else {
            return;
        };
        let made = self.jobs.list.last().map_or(0, |job| job.moves.len());
        let snapshot = match self.observe().await {
            Ok((snapshot, _)) => snapshot,
            Err(refusal) => return self.end_job(JobPhase::Failed, refusal.text).await,
        };
        let Some(step) = rebind::next(&snapshot, &self.settings.policies.allocator, &scope) else {
            return self.end_job(JobPhase::Succeed, format!("{made} moves")).await;
        };
        if Instant::now() >= deadline {
            let text = format!("the deadline passed after {made} moves; what was moved stays");
            return self.end_job(JobPhase::Failed, text).await;
        }
        match self.make(&snapshot, &step).await {
            Ok(true) => {
                tracing::info!(
                    MESSAGE_ID = journal::REBOUND, STELIA_POD_UID = %step.pod, STELIA_CPUSET = %step.to,
                    "pod {} moved from CPUs {} to {}: {}", step.pod, step.from, step.to, step.gain
                );
                if let Some(job) = self.jobs.list.last_mut() {
                    job.moves.push(Made::of(&step));
                }
                self.publish_jobs();
            }
            // It ended meanwhile.
            Ok(false) => {}
            Err(cause) => {
                let text = format!("pod {} stays on {}: {cause}", step.pod, step.from);
                self.end_job(JobPhase::Failed, text).await;
            }
        }
    }

    /// Make a move and look whether it holds; whether the instance still lives.
    ///
    /// # Errors
    /// It does not, and everything is as it was.
    async fn make(&mut self, snapshot: &Snapshot, step: &Move) -> Result<bool, String> {
        let Some(known) = find(snapshot, &step.pod) else {
            return Ok(false);
        };
        let (scope, former) = (known.scope.clone(), known.record.clone());
        let before = degraded(snapshot, &self.settings.policies, known);
        let next = rebound(&former, step);
        if let Err(cause) = self.write_cpus(&scope, &next).await {
            return self.undo(&scope, &former, cause).await;
        }
        let (after, report) = self.pass(Trigger::Call).await;
        let Some(after) = after else {
            return self.undo(&scope, &former, report.degraded.join("; ")).await;
        };
        let Some(now) = find(&after, &step.pod) else {
            return Ok(false);
        };
        let worse: Vec<String> = degraded(&after, &self.settings.policies, now)
            .into_iter()
            .filter(|reason| !before.contains(reason))
            .collect();
        match amiss(&former, now, step).or((!worse.is_empty()).then(|| worse.join("; "))) {
            None => Ok(true),
            Some(cause) => {
                let causes: Vec<String> = [cause].into_iter().chain(report.degraded).collect();
                self.undo(&scope, &former, causes.join("; ")).await
            }
        }
    }

    /// Everything as it was.
    async fn undo(&mut self, scope: &CgroupPath, former: &Record, cause: String) -> Result<bool, String> {
        if let Err(also) = self.write_cpus(scope, former).await {
            return Err(format!("{cause}; and its record could not be written back: {also}"));
        }
        let (after, report) = self.pass(Trigger::Call).await;
        let back = after
            .as_ref()
            .and_then(|after| find(after, &former.pod))
            .map(|now| &now.record);
        match back {
            Some(record) if record.exclusive == former.exclusive && record.phase == former.phase => Err(cause),
            Some(_) => Err(format!("{cause}; and the way back: {}", report.degraded.join("; "))),
            None => Ok(false),
        }
    }

    /// Which CPUs are an instance's. The CPUs come last: before that nothing is moved.
    async fn write_cpus(&mut self, scope: &CgroupPath, record: &Record) -> Result<(), String> {
        let allocation = record
            .allocation
            .as_ref()
            .and_then(|allocation| serde_json::to_string(allocation).ok());
        let attributes = [
            (ALLOCATION_ATTRIBUTE, allocation.unwrap_or_default()),
            (PARTITION_ATTRIBUTE, record.partition.name().to_owned()),
            (VCPUS_ATTRIBUTE, vcpus_text(&record.vcpus)),
            (EXCLUSIVE_ATTRIBUTE, exclusive_text(&record.exclusive, &record.entry)),
        ];
        let scope = scope.clone();
        let written = self.blocking(move |system| {
            attributes.iter().try_for_each(|(name, value)| {
                system.failpoint.here();
                system.cgroups.set_attribute(&scope, name, value)
            })
        });
        written
            .await
            .map_err(|refusal| refusal.text)?
            .map_err(|error| error.to_string())
    }
}

/// The record after a move. Where the vCPUs go within the CPUs is the next pass's to say.
fn rebound(former: &Record, step: &Move) -> Record {
    let mut next = former.clone();
    next.exclusive = step.to.clone();
    next.entry = step.to.clone();
    if let Some(allocation) = &mut next.allocation {
        allocation.exclusivity = step.exclusivity;
        // The former move's line says nothing any more.
        allocation.explanation.retain(|line| !line.starts_with("rebound "));
        allocation
            .explanation
            .push(format!("rebound from {} to {}: {}", step.from, step.to, step.gain));
    }
    next
}

/// What is not as it must be after a move.
fn amiss(former: &Record, now: &Instance, step: &Move) -> Option<String> {
    let record = &now.record;
    if record.exclusive != step.to || record.phase != former.phase {
        return Some(format!("it is {} on {}", record.phase.name(), record.exclusive));
    }
    if !record.phase.has_vcpus() {
        return None;
    }
    let Some(vcpu) = now.vcpu() else {
        return Some("its vcpu/ is gone".to_owned());
    };
    if vcpu.cpus != step.to {
        return Some(format!("its vcpu/ has the CPUs {}", vcpu.cpus));
    }
    let strayed = record.vcpus.iter().zip(&now.vcpus).find(|(thread, is)| {
        let pinned = |cpu: u32, affinity: &CpuSet| affinity.len() == 1 && affinity.contains(cpu);
        match (is, thread.cpu) {
            (Some(is), Some(cpu)) => !pinned(cpu, &is.affinity),
            (Some(is), None) => !is.affinity.is_subset(&step.to),
            (None, _) => false,
        }
    });
    strayed.map(|(thread, _)| format!("{} is not on its CPU", thread.what()))
}
