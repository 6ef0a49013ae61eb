//! A RebindResource as it is read and written (`packaging/cluster/kubernetes/components/rebind/crd.yaml`).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::MAX_SILENCE;
use super::daemon::{Job, JobMove, Phase};

/// The only action.
const ACTION: &str = "RebindCPU";
/// Moves that are listed at most. The reason of a job that succeeds or runs out of time has the number of all.
const MAX_MOVES: usize = 100;
/// The longest deadline, as in the definition.
const MAX_DEADLINE_S: u32 = 86_400;

/// An answer to a list.
#[derive(Debug, Deserialize)]
pub(super) struct Objects {
    pub(super) metadata: ListMeta,
    items: Vec<Object>,
}

impl Objects {
    /// Those of this node that have not ended and are not being deleted.
    fn open(&self, node: &str) -> impl Iterator<Item = &Object> {
        let items = self.items.iter();
        items.filter(move |object| {
            let phase = object.status.phase;
            let is_open = phase.is_none_or(|phase| phase == Phase::Pending);
            is_open && object.spec["nodeName"] == node && object.metadata.deletion_timestamp.is_none()
        })
    }

    /// Those for which it is too late to begin.
    pub(super) fn late(&self, node: &str, now: Timestamp) -> impl Iterator<Item = &Object> {
        self.open(node).filter(move |object| object.is_late(now))
    }

    /// The one that was made first of the others.
    pub(super) fn oldest(&self, node: &str, now: Timestamp) -> Option<&Object> {
        let open = self.open(node).filter(|object| !object.is_late(now));
        open.min_by_key(|object| (object.created(), object.metadata.name.clone()))
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Object {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "readable")]
    pub(super) status: RebindStatus,
}

/// A status that somebody else wrote and that cannot be read is none.
fn readable<'de, D: Deserializer<'de>>(status: D) -> Result<RebindStatus, D::Error> {
    let status = Value::deserialize(status)?;
    Ok(RebindStatus::deserialize(status).unwrap_or_default())
}

/// What is done next for an object that has no job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// A job that was begun for it, and whose number was not recorded.
    Follow(&'a Job),
    /// Ask for a job with this deadline, seconds.
    Begin(u32),
    Wait(String),
    End(Phase, String),
}

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RebindSpec {
    rebind_action: String,
    #[serde(default = "default_deadline")]
    deadline_in_seconds: u32,
}

fn default_deadline() -> u32 {
    600
}

impl Object {
    fn created(&self) -> Option<Timestamp> {
        Some(self.metadata.creation_timestamp.as_ref()?.0)
    }

    /// The time after which no move may begin: the API server's creation time and the deadline. It is compared with the node's clock.
    ///
    /// # Errors
    /// What is asked for is not known.
    pub(super) fn deadline(&self) -> Result<Timestamp, String> {
        let spec = RebindSpec::deserialize(&self.spec).map_err(|cause| format!("spec: {cause}"))?;
        if spec.rebind_action != ACTION {
            return Err(format!(
                "spec.rebindAction is {:?}, expected {ACTION:?}",
                spec.rebind_action
            ));
        }
        let seconds = spec.deadline_in_seconds;
        if !(1..=MAX_DEADLINE_S).contains(&seconds) {
            return Err(format!(
                "spec.deadlineInSeconds is {seconds}, expected 1 to {MAX_DEADLINE_S}"
            ));
        }
        let created = self.created().ok_or("metadata.creationTimestamp is missing")?;
        Ok(created + Duration::from_secs(seconds.into()))
    }

    /// Whether its deadline has passed, and surely no job was begun for it.
    fn is_late(&self, now: Timestamp) -> bool {
        let is_over = self.deadline().is_ok_and(|deadline| now >= deadline);
        is_over && self.status.job.is_none() && self.status.asked_timestamp.is_none()
    }

    /// Why it is too late to begin.
    pub(super) fn too_late(&self, now: Timestamp) -> String {
        let now = now.strftime("%H:%M:%S");
        let reason = &self.status.reason;
        let waited = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        format!("the deadline passed before a job began (the node's clock has {now} UTC){waited}")
    }

    /// `jobs`: the last jobs, or why steliad does not tell them.
    pub(super) fn next<'a>(&self, jobs: Result<&'a [Job], &String>, now: Timestamp) -> Next<'a> {
        let deadline = match self.deadline() {
            Ok(deadline) => deadline,
            Err(wrong) => return Next::End(Phase::Failed, wrong),
        };
        let left = u32::try_from(deadline.duration_since(now).as_secs()).unwrap_or(0);
        let was_asked = self.status.asked_timestamp.is_some();
        match jobs {
            Ok(jobs) if let Some(job) = self.status.begun_job(jobs) => Next::Follow(job),
            Ok(_) if left > 0 => Next::Begin(left.min(MAX_DEADLINE_S)),
            Err(cause) if left > 0 || was_asked && now < deadline + MAX_SILENCE => Next::Wait(cause.clone()),
            Err(cause) if was_asked => Next::End(
                Phase::Unknown,
                format!("steliad may have begun a job, and does not answer: {cause}"),
            ),
            _ => Next::End(Phase::Failed, self.too_late(now)),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RebindStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<Phase>,
    pub(super) reason: String,
    /// When steliad was asked for a job, as long as its answer is not known: the job is no older.
    pub(super) asked_timestamp: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) update_timestamp: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<JobId>,
    pub(super) moves: Vec<JobMove>,
}

/// A job of the daemon. Numbers begin anew when the node is booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobId {
    id: u32,
    /// Microseconds since the epoch; `None` until steliad was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    began_us: Option<u64>,
}

impl RebindStatus {
    /// The job that it names.
    pub(super) fn find_job<'a>(&self, jobs: &'a [Job]) -> Option<&'a Job> {
        let known = self.job.as_ref()?;
        let is_known = |job: &&Job| job.id == known.id && known.began_us.is_none_or(|began| began == job.began_us);
        jobs.iter().find(is_known)
    }

    /// The first job for the whole node since steliad was asked, where its answer is not known.
    fn begun_job<'a>(&self, jobs: &'a [Job]) -> Option<&'a Job> {
        let asked_us = self.asked_timestamp?.as_microsecond().unsigned_abs();
        jobs.iter().find(|job| job.scope == "node" && job.began_us >= asked_us)
    }

    pub(super) fn asked_at(&self, now: Timestamp) -> Self {
        Self {
            asked_timestamp: Some(now),
            ..self.clone()
        }
    }

    pub(super) fn not_asked(&self) -> Self {
        Self {
            asked_timestamp: None,
            ..self.clone()
        }
    }

    pub(super) fn with_job_id(&self, id: u32) -> Self {
        Self {
            job: Some(JobId { id, began_us: None }),
            ..self.not_asked()
        }
    }

    pub(super) fn with_job(&self, job: &Job) -> Self {
        let (id, began_us) = (job.id, Some(job.began_us));
        Self {
            job: Some(JobId { id, began_us }),
            moves: job.moves.iter().take(MAX_MOVES).cloned().collect(),
            ..self.not_asked()
        }
    }
}
