//! The publisher itself: it carries out what `ReconcilerState` decides.

use std::future::pending;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::response::Parts;
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use stelia_cpus::text::excerpt::with_causes;
use stelia_credentials::{Credentials, RenewedClient};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::{ApiFailure, FailureKind};
use crate::decide::{Next, ReconcilerState};
use crate::intervals::REQUEST_TIMEOUT;
use crate::options::PublishOptions;
use crate::request::PublisherRequest;
use crate::source::Reading;
use crate::status::Status;

/// Limit of an answer, in bytes: a Node with hundreds of images is a fifth of it.
const MAX_ANSWER_BYTES: usize = 1 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Keeps the API server as the readings are. It starts no thread and no task, and waits by tokio's clock.
pub struct Publisher {
    client: RenewedClient,
    state: ReconcilerState,
    started: Option<Instant>,
    status: watch::Sender<Status>,
}

impl Publisher {
    pub fn new(client: Client, options: PublishOptions) -> Self {
        Self {
            client: RenewedClient::new(client),
            state: ReconcilerState::new(options),
            started: None,
            status: watch::Sender::new(Status::default()),
        }
    }

    /// Where a new client comes from when credentials change or are not accepted any more.
    #[must_use]
    pub fn with_credentials(mut self, credentials: impl Credentials + 'static) -> Self {
        self.client.renewed_by(credentials);
        self
    }

    /// What the publisher does; it changes with every answer.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Publishes until it is cancelled. A request that is under way then is given up. A sender that is dropped changes nothing: the last
    /// reading stands.
    pub async fn run(mut self, mut readings: watch::Receiver<Reading>, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.work(&mut readings, false)).await;
    }

    /// Publishes what there is and ends; what could not be published is among the status' problems.
    pub async fn once(mut self, mut readings: watch::Receiver<Reading>, patience: Duration) -> Status {
        // The time being up is told by what is not settled.
        let _ = tokio::time::timeout(patience, self.work(&mut readings, true)).await;
        self.state.status()
    }

    async fn work(&mut self, readings: &mut watch::Receiver<Reading>, once: bool) {
        let started = *self.started.get_or_insert_with(Instant::now);
        let mut is_told = true;
        loop {
            if std::mem::take(&mut is_told) {
                let reading = readings.borrow_and_update().clone();
                self.state.take(&reading, started.elapsed());
                self.publish_status();
            }
            match self.state.next(started.elapsed()) {
                Next::Send(task, request) => {
                    let client = self.client.current().clone();
                    let answer = send(&client, *request).await;
                    if let Err(ApiFailure {
                        kind: FailureKind::Unauthorized,
                        ..
                    }) = answer
                    {
                        self.client.refused();
                    }
                    self.state.answered(&task, answer, started.elapsed());
                    is_told = readings.has_changed().unwrap_or(false);
                    self.publish_status();
                }
                Next::Wait(_) if once && self.state.status().settled => return,
                Next::Wait(until) => {
                    tokio::select! {
                        () = wait(until.map(|until| started + until)) => {}
                        () = changed(readings) => is_told = true,
                    }
                }
            }
        }
    }

    fn publish_status(&self) {
        let status = self.state.status();
        self.status.send_if_modified(|before| {
            let changed = *before != status;
            *before = status;
            changed
        });
    }
}

async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => pending().await,
    }
}

async fn changed(readings: &mut watch::Receiver<Reading>) {
    if readings.changed().await.is_err() {
        pending().await
    }
}

fn away(text: String) -> ApiFailure {
    ApiFailure::new(FailureKind::Away, text)
}

/// One request, and the body of a success within the time for one.
pub(crate) async fn send(client: &Client, request: PublisherRequest) -> Result<Vec<u8>, ApiFailure> {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, exchange(client, request));
    let late = |_| Err(away(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())));
    answer.await.unwrap_or_else(late)
}

async fn exchange(client: &Client, request: PublisherRequest) -> Result<Vec<u8>, ApiFailure> {
    let response = client.send(request.map(Body::from)).await;
    let (parts, body) = response.map_err(|error| away(with_causes(&error)))?.into_parts();
    let cut_off = |error: BoxError| away(format!("{}, and then: {}", parts.status, with_causes(&*error)));
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(cut_off)?;
    let body = body.to_bytes();
    if parts.status.is_success() {
        return Ok(body.into());
    }
    Err(failure(&parts, &body))
}

/// What an answer that is no success means.
fn failure(parts: &Parts, body: &[u8]) -> ApiFailure {
    let retry_after = parts.headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
    let retry_after = retry_after.and_then(|seconds| seconds.trim().parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    ApiFailure::of(parts.status, retry_after, body)
}

/// The same of an answer whose body is not read yet.
pub(crate) async fn refused(parts: &Parts, body: Body) -> ApiFailure {
    let body = tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_ANSWER_BYTES).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes());
    failure(parts, &body.unwrap_or_default())
}
