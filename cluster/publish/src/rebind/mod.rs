//! The RebindResources of this node: steliad is asked to move VMs to better CPUs, and what comes of it is written to the object's status.
//!
//! One object at a time is carried out, the oldest first. What is under way is in the status, so that a publisher which is started again goes on.

pub mod daemon;
mod object;

use std::time::Duration;

use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use kube::core::params::{ListParams, WatchParams};
use serde_json::json;
use stelia_api::job::JobPhase;
use stelia_credentials::{Credentials, RenewedClient};
use tokio::time::{Instant, sleep, timeout};

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::decide::content::cut;
use crate::intervals::REQUEST_TIMEOUT;
use crate::options::PublishOptions;
use crate::publisher::{refused, send};
use crate::request::{self, Made, PublisherRequest};
use daemon::{Begun, Daemon};
use object::{Next, Object, Objects, RebindStatus};

/// The pause between two queries of a job.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// The pause after steliad began no job.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Limit of a list. Further objects are listed when some of these have ended.
const MAX_OBJECTS: u32 = 20;
/// Limit of a reason, in bytes.
const MAX_REASON_BYTES: usize = 1000;
/// How long a watch lasts; then the objects are listed again.
const WATCH_TIMEOUT: Duration = Duration::from_secs(290);
/// How long after the deadline the publisher still waits for a steliad that does not answer.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Carries out the RebindResources of one node.
pub struct Rebinder {
    client: RenewedClient,
    options: PublishOptions,
    daemon: Daemon,
    random: Random,
}

impl Rebinder {
    /// `daemon`: the steliad of this node.
    pub fn new(client: Client, options: PublishOptions, daemon: Daemon) -> Self {
        Self {
            client: RenewedClient::new(client),
            random: Random::new(options.seed),
            options,
            daemon,
        }
    }

    /// Where a new client comes from when credentials change or are not accepted any more.
    #[must_use]
    pub fn with_credentials(mut self, credentials: impl Credentials + 'static) -> Self {
        self.client.renewed_by(credentials);
        self
    }

    /// Goes on for ever. What fails is tried again after a pause.
    pub async fn run(mut self) {
        sleep(self.random.below(self.options.start_spread)).await;
        let (started, mut pause, mut told) = (Instant::now(), RetryPause::default(), None);
        loop {
            let Err(failure) = self.step().await else {
                (pause, told) = (RetryPause::default(), None);
                continue;
            };
            if failure.kind == FailureKind::Unauthorized {
                self.client.refused();
            }
            if told.as_ref() != Some(&failure.text) {
                tracing::warn!("RebindResources: {}", failure.text);
                told = Some(failure.text.clone());
            }
            pause.failed(started.elapsed(), &failure, &mut self.random);
            tokio::time::sleep_until(started + pause.until()).await;
        }
    }

    /// Ends the objects that are late and takes the oldest other one a step further; waits where there is none.
    async fn step(&mut self) -> Result<(), ApiFailure> {
        let objects = self.list().await?;
        let version = objects.metadata.resource_version.as_deref();
        let (late, oldest) = objects.late_and_oldest(&self.options.node, Timestamp::now());
        if late.is_empty() && oldest.is_none() {
            return self.wait_for_change(version).await;
        }
        match self.take(late, oldest).await {
            // Deleted, or changed by somebody else: the next list has it as it is.
            Err(failure) if matches!(failure.kind, FailureKind::Missing | FailureKind::Stale) => {
                sleep(LOOK_INTERVAL).await;
                Ok(())
            }
            done => done,
        }
    }

    async fn take(&mut self, late: Vec<&Object>, oldest: Option<&Object>) -> Result<(), ApiFailure> {
        for object in late {
            let reason = object.too_late(Timestamp::now());
            self.end(&mut object.clone(), JobPhase::Failed, reason).await?;
        }
        match oldest {
            Some(object) => self.advance(object).await,
            None => Ok(()),
        }
    }

    /// The first objects of this node that have not ended.
    async fn list(&mut self) -> Result<Objects, ApiFailure> {
        let parameters = ListParams::default().fields(&self.selector()).limit(MAX_OBJECTS);
        let body = self.ask(request::rebinds().list(&parameters)).await?;
        serde_json::from_slice(&body).map_err(|cause| unusable(&format!("the list of RebindResources: {cause}")))
    }

    fn selector(&self) -> String {
        let ended = [JobPhase::Succeed, JobPhase::Failed, JobPhase::Unknown];
        let ended = ended.map(|phase| format!(",status.phase!={}", phase.name()));
        format!("spec.nodeName={}{}", self.options.node, ended.concat())
    }

    /// Waits until an object of this node is made or changes. Whatever the API server tells, the objects are listed again.
    async fn wait_for_change(&mut self, version: Option<&str>) -> Result<(), ApiFailure> {
        let seconds = WATCH_TIMEOUT.as_secs() as u32;
        let parameters = WatchParams::default().fields(&self.selector()).timeout(seconds);
        let request = built(request::rebinds().watch(&parameters.disable_bookmarks(), version.unwrap_or_default()))?;
        let answer = timeout(REQUEST_TIMEOUT, self.client.current().send(request.map(Body::from))).await;
        let away = |text: String| ApiFailure::new(FailureKind::Away, text);
        let response = answer.map_err(|_| away("a watch is not answered".to_owned()))?;
        let mut response = response.map_err(|cause| away(format!("watch RebindResources: {cause}")))?;
        if !response.status().is_success() {
            let (parts, body) = response.into_parts();
            return Err(refused(&parts, body).await);
        }
        let began = Instant::now();
        // A server that is gone closes nothing.
        let told = timeout(WATCH_TIMEOUT + REQUEST_TIMEOUT, response.body_mut().frame()).await;
        if !matches!(told, Ok(Some(Ok(_)))) && began.elapsed() < REQUEST_TIMEOUT {
            return Err(away("a watch of RebindResources ended at once".to_owned()));
        }
        Ok(())
    }

    /// Begins the job of an object, or finds it, and follows it to its end; or waits, where steliad begins none now.
    async fn advance(&mut self, object: &Object) -> Result<(), ApiFailure> {
        let mut object = object.clone();
        if object.status.job.is_some() {
            return self.follow(&mut object).await;
        }
        let jobs = self.daemon.jobs().await;
        let status = match object.next(jobs.as_deref(), Timestamp::now()) {
            Next::Follow(job) => object.status.with_job(job),
            Next::Begin(deadline_s) => {
                let asked = object.status.asked_at(Timestamp::now());
                self.pending(&mut object, asked, "steliad is asked").await?;
                match self.daemon.begin(deadline_s).await {
                    Begun::Job(id) => object.status.with_job_id(id),
                    Begun::Never(cause) => return self.end(&mut object, JobPhase::Failed, cause).await,
                    Begun::NotNow(cause) => return self.wait(&mut object, RebindStatus::not_asked, &cause).await,
                    Begun::NotKnown(cause) => return self.wait(&mut object, RebindStatus::clone, &cause).await,
                }
            }
            Next::Wait(cause) => return self.wait(&mut object, RebindStatus::clone, &cause).await,
            Next::End(phase, reason) => return self.end(&mut object, phase, reason).await,
        };
        self.pending(&mut object, status, "steliad moves VMs").await?;
        self.follow(&mut object).await
    }

    /// Writes why no job is there yet, and pauses.
    async fn wait(
        &mut self,
        object: &mut Object,
        status: fn(&RebindStatus) -> RebindStatus,
        cause: &str,
    ) -> Result<(), ApiFailure> {
        let status = status(&object.status);
        self.pending(object, status, cause).await?;
        sleep(RETRY_INTERVAL).await;
        Ok(())
    }

    /// Writes what becomes of the object's job until it ends.
    async fn follow(&mut self, object: &mut Object) -> Result<(), ApiFailure> {
        loop {
            let jobs = self.daemon.jobs().await;
            let is_late = object
                .deadline()
                .is_ok_and(|deadline| Timestamp::now() > deadline + MAX_SILENCE);
            match jobs.as_deref().map(|jobs| object.status.find_job(jobs)) {
                Ok(Some(job)) if job.phase != JobPhase::Pending => {
                    object.status = object.status.with_job(job);
                    return self.end(object, job.phase, job.reason.clone()).await;
                }
                Ok(Some(_)) if is_late => {
                    let reason = "its job still runs a minute after the deadline".to_owned();
                    return self.end(object, JobPhase::Unknown, reason).await;
                }
                Ok(Some(job)) => {
                    let status = object.status.with_job(job);
                    self.pending(object, status, "steliad moves VMs").await?;
                }
                Ok(None) => {
                    let reason = "steliad does not know the job any more".to_owned();
                    return self.end(object, JobPhase::Unknown, reason).await;
                }
                Err(cause) if is_late => {
                    let reason = format!("steliad has not answered since the deadline: {cause}");
                    return self.end(object, JobPhase::Unknown, reason).await;
                }
                Err(_) => {}
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Writes the final phase and its reason.
    async fn end(&mut self, object: &mut Object, phase: JobPhase, reason: String) -> Result<(), ApiFailure> {
        let status = RebindStatus {
            phase: Some(phase),
            reason,
            ..object.status.clone()
        };
        self.write(object, status).await
    }

    /// Writes the phase Pending, if the status differs.
    async fn pending(&mut self, object: &mut Object, status: RebindStatus, reason: &str) -> Result<(), ApiFailure> {
        let status = RebindStatus {
            phase: Some(JobPhase::Pending),
            reason: reason.to_owned(),
            ..status
        };
        if status == object.status {
            return Ok(());
        }
        self.write(object, status).await
    }

    /// Writes the status of the object as it was read: where it changed meanwhile, this fails.
    async fn write(&mut self, object: &mut Object, status: RebindStatus) -> Result<(), ApiFailure> {
        let status = RebindStatus {
            reason: cut(&status.reason, MAX_REASON_BYTES).to_owned(),
            update_timestamp: Some(Timestamp::now()),
            ..status
        };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let phase = status.phase.map_or("", JobPhase::name);
        tracing::info!("RebindResource {name}: {phase}: {}", status.reason);
        let body = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version, "uid": object.metadata.uid},
            "status": status,
        });
        let request = request::merge_rebind_status(&self.options.field_manager, name, &body);
        let answer = self.ask(request).await?;
        *object = serde_json::from_slice(&answer).map_err(|cause| unusable(&format!("a RebindResource: {cause}")))?;
        Ok(())
    }

    async fn ask(&mut self, request: Made) -> Result<Vec<u8>, ApiFailure> {
        let request = built(request)?;
        send(self.client.current(), request).await
    }
}

fn built(request: Made) -> Result<PublisherRequest, ApiFailure> {
    request.map_err(|cause| ApiFailure::new(FailureKind::Refused, cause.to_string()))
}

fn unusable(text: &str) -> ApiFailure {
    ApiFailure::new(FailureKind::Failed, text.to_owned())
}
