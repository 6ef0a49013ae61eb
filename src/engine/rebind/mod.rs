//! Rebind jobs: instances move to better CPUs, one verified move after the other, while they run.
//!
//! The job is recorded on stelia.slice before its first move: a daemon that finds one pending at its start knows that
//! the former daemon ended in the middle of it, and shows it as `Unknown`. No instance is half moved: each move is in
//! its instance's own record before a thread is moved.

mod job;

use std::time::{Duration, Instant};

use super::apply::now_us;
use super::calls::no_instance;
use super::task::Engine;
use crate::decide::Instance;
use crate::decide::rebind;
use crate::decide::rebind::{Move, RebindScope};
use crate::journal::{self, about};
pub(super) use job::Jobs;
pub use job::{Job, JobMove, JobPhase};
use stelia_api::reason::joined;
use stelia_api::{Error, ErrorKind, Reason};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_record::Record;

/// Jobs that are remembered.
const MAX_JOBS: usize = 16;
/// The longest deadline, seconds.
const MAX_DEADLINE_S: u32 = 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebindRequest {
    /// `node`, or a pod's UID.
    pub scope: String,
    /// Seconds; 0 for the default.
    pub deadline_s: u32,
    /// List the moves without making them.
    pub dry_run: bool,
}

/// What Rebind answers: the job's number, none for a dry run; and the moves that are planned.
pub type RebindAnswer = (Option<u32>, Vec<JobMove>);

/// The default deadline, that of Koordinator.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(600);

/// A move that is being made, or taken back.
#[derive(Debug)]
pub(super) struct PendingMove {
    step: Move,
    former: Record,
    /// The reasons of degradation from before the move, which do not count against it.
    before: Vec<Reason>,
    /// Why it is taken back.
    cause: Option<String>,
}

impl Engine {
    /// Begin a job, or list the moves it would make.
    pub(super) fn rebind(&mut self, request: &RebindRequest) -> Result<RebindAnswer, Error> {
        let scope = match request.scope.as_str() {
            "" | "node" => RebindScope::Node,
            text => RebindScope::Pod(PodUid::parse(text).map_err(|cause| {
                ErrorKind::InvalidArgument.because(format!(
                    "scope is \"node\" or the UID of a pod with an instance: {cause}"
                ))
            })?),
        };
        if request.deadline_s > MAX_DEADLINE_S {
            let text = format!("the deadline is {} s: at most {MAX_DEADLINE_S}", request.deadline_s);
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        if let RebindScope::Pod(pod) = &scope {
            self.picture.find(pod).ok_or_else(|| no_instance(pod))?;
        }
        let moves = rebind::all(&self.picture.snapshot, &self.settings.policies, &scope);
        let planned = moves.iter().map(JobMove::of).collect();
        if request.dry_run {
            return Ok((None, planned));
        }
        if self.jobs.is_running() {
            return Err(ErrorKind::Busy.because("a rebind job runs already"));
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
            return Err(ErrorKind::Busy.because(text));
        }
        let deadline = match request.deadline_s {
            0 => DEFAULT_DEADLINE,
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
                RebindScope::Node => "node".to_owned(),
                RebindScope::Pod(pod) => pod.to_string(),
            },
            phase: JobPhase::Pending,
            reason: String::new(),
            moves: Vec::new(),
            began_us: now_us(),
            ended_us: 0,
        });
        let superfluous = self.jobs.list.len().saturating_sub(MAX_JOBS);
        self.jobs.list.drain(..superfluous);
        if let Err(refusal) = self.record_job() {
            self.jobs.list.pop();
            return Err(refusal);
        }
        self.jobs.running = Some((scope, Instant::now() + deadline));
        self.jobs.began = Some(Instant::now());
        self.view_writer.show_jobs(self.jobs.list.clone());
        Ok((Some(id), planned))
    }

    /// One step of the job that runs, when nothing else is to be done; whether there was one.
    pub(super) fn rebind_step(&mut self) -> bool {
        if !self.systemd_calls.is_idle() {
            // A move is under way.
            return false;
        }
        if let Some(pending) = self.jobs.pending.take() {
            self.verify(pending);
            return true;
        }
        let Some((scope, deadline)) = self.jobs.running.clone() else {
            return false;
        };
        let made = self.jobs.list.last().map_or(0, |job| job.moves.len());
        let (snapshot, facts) = (&self.picture.snapshot, &self.picture.facts);
        let next = rebind::next(snapshot, facts, &self.settings.policies.allocator, &scope);
        let Some(step) = next else {
            self.end_job(JobPhase::Succeed, format!("{made} moves"));
            return true;
        };
        if Instant::now() >= deadline {
            let text = format!("the deadline passed after {made} moves; what was moved stays");
            self.end_job(JobPhase::Failed, text);
            return true;
        }
        let Some(former) = self.picture.find(&step.pod).map(|known| known.record.clone()) else {
            return true;
        };
        let before = self.amiss(&step.pod);
        let next = rebound(&former, &step);
        let pending = PendingMove {
            step,
            former,
            before,
            cause: None,
        };
        match self.write_cpus(&next) {
            Ok(()) => self.jobs.pending = Some(pending),
            Err(cause) => self.undo(pending, cause),
        }
        true
    }

    /// Check whether a move succeeded, or whether taking it back did.
    fn verify(&mut self, pending: PendingMove) {
        let pod = &pending.step.pod;
        let Some(now) = self.picture.find(pod) else {
            // It ended meanwhile.
            return;
        };
        let failures = self.retries.instances.failures(pod).to_vec();
        if let Some(cause) = &pending.cause {
            let (record, former) = (&now.record, &pending.former);
            let back = record.exclusive == former.exclusive && record.phase == former.phase;
            let cause = match back {
                true => cause.clone(),
                false => format!("{cause}; and the way back: {}", joined(&self.amiss(pod))),
            };
            let text = format!("pod {pod} stays on {}: {cause}", pending.step.from);
            return self.end_job(JobPhase::Failed, text);
        }
        let worse: Vec<Reason> = self
            .amiss(pod)
            .into_iter()
            .filter(|reason| !pending.before.contains(reason) && !failures.contains(&reason.text))
            .collect();
        let amiss = amiss(&pending.former, now, &pending.step).or((!worse.is_empty()).then(|| joined(&worse)));
        match amiss {
            None => self.made(&pending.step),
            Some(cause) => {
                let causes: Vec<String> = [cause].into_iter().chain(failures).collect();
                self.undo(pending, causes.join("; "));
            }
        }
    }

    fn made(&mut self, step: &Move) {
        let pod = self.named(&step.pod);
        about!(
            info, journal::REBOUND, pod, STELIA_CPUSET = %step.to,
            "pod {pod} moved from CPUs {} to {}: {}", step.from, step.to, step.gain
        );
        if let Some(job) = self.jobs.list.last_mut() {
            job.moves.push(JobMove::of(step));
        }
        self.view_writer.show_jobs(self.jobs.list.clone());
    }

    /// Record the former CPUs again.
    fn undo(&mut self, pending: PendingMove, cause: String) {
        let back = self.picture.find(&pending.step.pod).map(|now| Record {
            exclusive: pending.former.exclusive.clone(),
            entry: pending.former.entry.clone(),
            allocation: pending.former.allocation.clone(),
            partition: pending.former.partition,
            vcpus: pending.former.vcpus.clone(),
            ..now.record.clone()
        });
        let Some(back) = back else { return };
        match self.write_cpus(&back) {
            Ok(()) => {
                self.jobs.pending = Some(PendingMove {
                    cause: Some(cause),
                    ..pending
                });
            }
            Err(also) => {
                let pod = &pending.step.pod;
                let text = format!(
                    "pod {pod} stays on {}: {cause}; and its record could not be written back: {also}",
                    pending.step.from
                );
                self.end_job(JobPhase::Failed, text);
            }
        }
    }

    fn write_cpus(&mut self, next: &Record) -> Result<(), String> {
        self.write_record(&next.pod, next.clone())
            .map_err(|refusal| refusal.to_string())
    }
}

/// The record after a move. The next pass places the vCPUs within the new CPUs.
fn rebound(former: &Record, step: &Move) -> Record {
    let mut next = former.clone();
    next.exclusive = step.to.clone();
    next.entry = step.to.clone();
    if let Some(allocation) = &mut next.allocation {
        allocation.exclusivity = step.exclusivity;
        // The line of an earlier move is out of date.
        allocation.explanation.retain(|line| !line.starts_with("rebound "));
        allocation
            .explanation
            .push(format!("rebound from {} to {}: {}", step.from, step.to, step.gain));
    }
    next
}

/// Why a move failed; `None` where it succeeded.
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
    strayed.map(|(thread, _)| format!("{} is not on its CPU", thread.role))
}
