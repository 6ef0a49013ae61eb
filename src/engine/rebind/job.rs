//! A job as its D-Bus object shows it, and the record of the last one on stelia.slice.

use std::time::Instant;

use stelia_api::Error;
use stelia_cpus::CpuSet;
use stelia_node::cgroup::CgroupPath;
use stelia_text::named;

use super::PendingMove;
use crate::decide::rebind::{Move, RebindScope};
use crate::engine::apply::now_us;
use crate::engine::task::Engine;
use crate::journal;

/// The attribute of stelia.slice that keeps the last job.
const JOB_ATTRIBUTE: &str = "rebind-job";

/// The phase of a job, named as in Koordinator's RebindResource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    Pending,
    /// No move would be an improvement any more.
    Succeed,
    /// A move failed and was taken back, or the deadline passed. Moves made before stay.
    Failed,
    /// The daemon ended before the job did.
    Unknown,
}

named!(JobPhase {
    Pending = "Pending",
    Succeed = "Succeed",
    Failed = "Failed",
    Unknown = "Unknown"
});

/// A move that is planned or was made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobMove {
    pub pod: String,
    pub from: CpuSet,
    pub to: CpuSet,
    pub gain: String,
}

impl JobMove {
    pub(super) fn of(step: &Move) -> Self {
        Self {
            pod: step.pod.to_string(),
            from: step.from.clone(),
            to: step.to.clone(),
            gain: step.gain.clone(),
        }
    }
}

/// A job, as its D-Bus object shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    pub id: u32,
    /// What may be moved: `node`, or a pod's UID.
    pub scope: String,
    pub phase: JobPhase,
    pub reason: String,
    pub moves: Vec<JobMove>,
    /// When it began, microseconds since the epoch.
    pub began_us: u64,
    /// When it ended; 0 before.
    pub ended_us: u64,
}

/// Every job that is remembered, and the one that runs.
#[derive(Debug, Default)]
pub(in crate::engine) struct Jobs {
    pub(in crate::engine) list: Vec<Job>,
    pub(super) running: Option<(RebindScope, Instant)>,
    /// The move that is being made.
    pub(super) pending: Option<PendingMove>,
    pub(super) began: Option<Instant>,
}

impl Jobs {
    pub(in crate::engine) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The deadline of the job that runs.
    pub(in crate::engine) fn next(&self) -> Option<Instant> {
        self.running
            .as_ref()
            .map(|(_, deadline)| *deadline)
            .filter(|deadline| *deadline > Instant::now())
    }
}

impl Engine {
    pub(super) fn end_job(&mut self, phase: JobPhase, reason: String) {
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
        let written = match cgroups.exists(&slice) {
            true => cgroups.set_attribute(&slice, JOB_ATTRIBUTE, &text),
            false => Ok(()),
        };
        Ok(written?)
    }

    /// Read the last job of a former daemon.
    pub(in crate::engine) fn read_recorded_job(&mut self) {
        let attributes = self.system.cgroups.attributes(&CgroupPath::slice()).unwrap_or_default();
        let text = attributes.get(JOB_ATTRIBUTE);
        let Some(mut job) = text.and_then(|text| serde_json::from_str::<Job>(text).ok()) else {
            return;
        };
        if job.phase == JobPhase::Pending {
            job.phase = JobPhase::Unknown;
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
