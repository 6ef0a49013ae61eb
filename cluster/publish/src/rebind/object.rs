//! A RebindResource as it is read and written (`packaging/cluster/kubernetes/components/rebind/crd.yaml`).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use stelia_api::job::{Job, JobMove, JobPhase};

use super::MAX_SILENCE;

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
            let is_open = phase.is_none_or(|phase| phase == JobPhase::Pending);
            is_open && object.spec["nodeName"] == node && object.metadata.deletion_timestamp.is_none()
        })
    }

    /// Those for which it is too late to begin, and of the others the one that was made first.
    pub(super) fn late_and_oldest(&self, node: &str, now: Timestamp) -> (Vec<&Object>, Option<&Object>) {
        let (late, others): (Vec<&Object>, Vec<&Object>) = self.open(node).partition(|object| object.is_late(now));
        let made = |object: &&Object| (object.created(), object.metadata.name.clone());
        (late, others.into_iter().min_by_key(made))
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Object {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "status_or_none")]
    pub(super) status: RebindStatus,
}

/// A status that somebody else wrote and that cannot be read is none.
fn status_or_none<'de, D: Deserializer<'de>>(status: D) -> Result<RebindStatus, D::Error> {
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
    End(JobPhase, String),
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
            Err(wrong) => return Next::End(JobPhase::Failed, wrong),
        };
        let left = u32::try_from(deadline.duration_since(now).as_secs()).unwrap_or(0);
        let was_asked = self.status.asked_timestamp.is_some();
        match jobs {
            Ok(jobs) if let Some(job) = self.status.begun_job(jobs) => Next::Follow(job),
            Ok(_) if left > 0 => Next::Begin(left.min(MAX_DEADLINE_S)),
            Err(cause) if left > 0 || was_asked && now < deadline + MAX_SILENCE => Next::Wait(cause.clone()),
            Err(cause) if was_asked => Next::End(
                JobPhase::Unknown,
                format!("steliad may have begun a job, and does not answer: {cause}"),
            ),
            _ => Next::End(JobPhase::Failed, self.too_late(now)),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RebindStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<JobPhase>,
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
    /// Microseconds since the epoch; `None` until Describe has told it.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Made at 08:00:00 with a deadline of a minute.
    fn object(status: Value) -> Object {
        let metadata = json!({"name": "a", "creationTimestamp": "2026-11-30T08:00:00Z"});
        let spec = json!({"nodeName": "n", "rebindAction": "RebindCPU", "deadlineInSeconds": 60});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn at(time: &str) -> Timestamp {
        format!("2026-11-30T{time}Z").parse().unwrap()
    }

    fn job(began: &str) -> Job {
        let began_us = at(began).as_microsecond();
        let job = json!({"id": 3, "scope": "node", "phase": "Pending", "reason": "", "moves": [], "began_us": began_us, "ended_us": 0});
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_is_asked_for_until_the_deadline_and_found_where_the_answer_was_lost() {
        let (new, away) = (object(Value::Null), "away".to_owned());
        let asked = object(json!({"phase": "Pending", "askedTimestamp": "2026-11-30T08:00:10Z"}));
        let jobs = [job("08:00:11")];
        assert_eq!(new.next(Ok(&jobs), at("08:00:20")), Next::Begin(40));
        assert_eq!(asked.next(Ok(&jobs), at("08:00:20")), Next::Follow(&jobs[0]));
        assert_eq!(asked.next(Ok(&[job("08:00:09")]), at("08:00:20")), Next::Begin(40));
        // The node's clock is behind the API server's by more than the longest deadline.
        assert_eq!(
            new.next(Ok(&[]), at("08:00:20") - Duration::from_secs(100_000)),
            Next::Begin(MAX_DEADLINE_S)
        );
        for (time, waits) in [("08:00:59", true), ("08:01:01", false)] {
            assert_eq!(
                new.next(Err(&away), at(time)) == Next::Wait(away.clone()),
                waits,
                "{time}"
            );
        }
        // It may have begun one.
        assert_eq!(asked.next(Err(&away), at("08:01:59")), Next::Wait(away.clone()));
        assert!(matches!(
            asked.next(Err(&away), at("08:02:01")),
            Next::End(JobPhase::Unknown, _)
        ));
        assert!(matches!(
            asked.next(Ok(&[]), at("08:01:01")),
            Next::End(JobPhase::Failed, _)
        ));
    }

    #[test]
    fn objects_that_are_late_end_before_others_and_what_somebody_else_wrote_stops_nothing() {
        let items = json!([
            {"metadata": {"name": "odd", "creationTimestamp": "2026-11-30T09:00:01Z"}, "spec": {"nodeName": "n", "rebindAction": "RebindCPU"},
             "status": {"job": {}, "phase": "Else"}},
            {"metadata": {"name": "old", "creationTimestamp": "2026-11-30T08:00:00Z"}, "spec": {"nodeName": "n", "rebindAction": "RebindCPU"}},
            {"metadata": {"name": "other", "creationTimestamp": "2026-11-30T09:00:00Z"}, "spec": {"nodeName": "m", "rebindAction": "RebindCPU"}},
            {"metadata": {"name": "done", "creationTimestamp": "2026-11-30T09:00:00Z"}, "spec": {"nodeName": "n", "rebindAction": "RebindCPU"},
             "status": {"phase": "Succeed"}},
        ]);
        let objects: Objects = serde_json::from_value(json!({"metadata": {}, "items": items})).unwrap();
        let (late, oldest) = objects.late_and_oldest("n", at("09:00:02"));
        let name = |object: &Object| object.metadata.name.clone().unwrap();
        assert_eq!(late.into_iter().map(name).collect::<Vec<_>>(), ["old"]);
        assert_eq!(oldest.map(name).as_deref(), Some("odd"));
    }
}
