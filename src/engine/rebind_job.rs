//! Rebind jobs: instances move to better CPUs, one verified move after the other, while they run.
//!
//! The job is recorded on stelia.slice before its first move: a daemon that finds one pending at its start knows that
//! the former daemon ended in the middle of it, and shows it as `Unknown`. No instance is half moved: each move is in
//! its instance's own record before a thread is moved.

use std::time::{Duration, Instant};

use stelia_api::reason::joined;
use stelia_api::{Error, Reason};
use stelia_cpus::CpuSet;
use stelia_decide::Instance;
use stelia_decide::rebind;
use stelia_decide::rebind::Move;
use stelia_kernel::cgroup::CgroupPath;
use stelia_model as model;
use stelia_model::record::Record;

use super::jobs::{PendingMove, job_move};
use super::state::EngineState;
use crate::journal::{self, about};
use stelia_kernel::clock::now_us;

/// The attribute of stelia.slice that keeps the last job.
const JOB_ATTRIBUTE: &str = "rebind-job";
/// The default deadline, that of Koordinator.
pub(super) const DEFAULT_DEADLINE: Duration = Duration::from_secs(600);

impl EngineState {
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
            self.end_job(model::JobPhase::Succeed, format!("{made} moves"));
            return true;
        };
        if Instant::now() >= deadline {
            let text = format!("the deadline passed after {made} moves; what was moved stays");
            self.end_job(model::JobPhase::Failed, text);
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
            let cause = if back {
                cause.clone()
            } else {
                format!("{cause}; and the way back: {}", joined(&self.amiss(pod)))
            };
            let text = format!("pod {pod} stays on {}: {cause}", pending.step.from);
            return self.end_job(model::JobPhase::Failed, text);
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
            job.moves.push(job_move(step));
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
                self.end_job(model::JobPhase::Failed, text);
            }
        }
    }

    fn write_cpus(&mut self, next: &Record) -> Result<(), String> {
        self.write_record(&next.pod, next.clone())
            .map_err(|refusal| refusal.to_string())
    }

    pub(super) fn end_job(&mut self, phase: model::JobPhase, reason: String) {
        self.jobs.running = None;
        self.jobs.pending = None;
        if let Some(job) = self.jobs.list.last_mut() {
            tracing::info!(
                MESSAGE_ID = journal::REBIND_ENDED,
                STELIA_REASON = reason,
                "rebind job {}: {}, {reason}",
                job.id,
                phase.name()
            );
            (job.phase, job.reason, job.ended_us) = (phase, reason, now_us());
        }
        if let Err(refusal) = self.record_job() {
            tracing::warn!("{refusal}");
        }
        self.view_writer.show_jobs(self.jobs.list.clone());
    }

    /// Record the last job on stelia.slice. Without the slice there are no instances, and nothing is recorded.
    pub(super) fn record_job(&self) -> Result<(), Error> {
        let Some(text) = self.jobs.list.last().and_then(|job| serde_json::to_string(job).ok()) else {
            return Ok(());
        };
        let slice = CgroupPath::slice();
        let cgroups = &self.system.cgroups;
        let written = if cgroups.exists(&slice) {
            cgroups.set_attribute(&slice, JOB_ATTRIBUTE, &text)
        } else {
            Ok(())
        };
        written.map_err(Error::failed)
    }

    /// Read the last job of a former daemon.
    pub(super) fn read_recorded_job(&mut self) {
        let attributes = self.system.cgroups.attributes(&CgroupPath::slice()).unwrap_or_default();
        let text = attributes.get(JOB_ATTRIBUTE);
        let Some(mut job) = text.and_then(|text| serde_json::from_str::<model::Job>(text).ok()) else {
            return;
        };
        if job.phase == model::JobPhase::Pending {
            job.phase = model::JobPhase::Unknown;
            job.reason = "the daemon ended in the middle of it; every instance is on CPUs of its own".to_owned();
            job.ended_us = now_us();
        }
        self.jobs.list.push(job);
        if let Err(refusal) = self.record_job() {
            tracing::warn!("{refusal}");
        }
        self.view_writer.show_jobs(self.jobs.list.clone());
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
    // `cpuset.cpus` of a whole container is not steliad's.
    let (what, has) = if now.tree.has_float() {
        ("vcpu/", &vcpu.cpus)
    } else {
        ("partition", &vcpu.exclusive)
    };
    if *has != step.to {
        return Some(format!("its {what} has the CPUs {has}"));
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
