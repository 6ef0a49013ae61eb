//! Takes back what was published: before steliad is removed from a node. Each part can be repeated, and none stops the others.

use std::time::Duration;

use http::StatusCode;
use kube::Client;
use serde_json::Value;
use stelia_api::publication::Publication;

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::decide::content;
use crate::decide::taint::{self, NodeView};
use crate::options::{PodConditions, PublishOptions};
use crate::publisher::send;
use crate::request::{self, Made};

/// How often a request is sent while the API server is away: the removal of a package waits for it.
const ATTEMPTS: u32 = 4;
/// Timeout of a withdrawal if the API server does not answer, without its pods.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(120);
/// The versions under which the object may be served.
const VERSIONS: [&str; 2] = ["v1alpha2", "v1alpha1"];

/// What a withdrawal did and what it could not do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

impl Withdrawn {
    fn add(&mut self, what: &str, result: Result<bool, ApiFailure>) {
        match result {
            Ok(true) => self.done.push(what.to_owned()),
            Ok(false) => {}
            Err(failure) => self.left.push(format!("{what}: {}", failure.text)),
        }
    }
}

struct Withdrawal<'a> {
    client: &'a Client,
    options: &'a PublishOptions,
    random: Random,
    started: tokio::time::Instant,
}

/// Takes back the taint's removal, the label, the object and the conditions of the pods that are told of, as far as they
/// are there and ours. `publication` is what the daemon told last.
pub async fn withdraw(client: &Client, options: &PublishOptions, publication: Option<&Publication>) -> Withdrawn {
    let mut withdrawal = Withdrawal {
        client,
        options,
        random: Random::new(options.seed),
        started: tokio::time::Instant::now(),
    };
    let mut withdrawn = Withdrawn::default();
    // First what keeps new pods away, then what describes the node.
    withdrawal.node(&mut withdrawn).await;
    let object = withdrawal.object().await;
    withdrawn.add("the NodeResourceTopology", object);
    if options.pod_conditions != PodConditions::Off {
        for pod in publication.into_iter().flat_map(|publication| &publication.pods) {
            let body = content::no_condition(&pod.namespace, &pod.name, &pod.uid);
            let request = request::apply_pod_status(&options.field_manager, &pod.namespace, &pod.name, &body);
            let result = withdrawal.ask(request).await.map(|_| true).or_else(gone);
            withdrawn.add(&format!("the condition of pod {}/{}", pod.namespace, pod.name), result);
        }
    }
    withdrawn
}

/// What is not there need not be taken back.
fn gone(failure: ApiFailure) -> Result<bool, ApiFailure> {
    match failure.kind {
        FailureKind::Missing | FailureKind::Stale | FailureKind::Ending => Ok(false),
        _ => Err(failure),
    }
}

impl Withdrawal<'_> {
    /// Sends it, and again while the API server is away.
    async fn ask(&mut self, request: Made) -> Result<Vec<u8>, ApiFailure> {
        let request = request.map_err(|error| ApiFailure::new(FailureKind::Refused, error.to_string()))?;
        let mut rest = RetryPause::default();
        loop {
            let failure = match send(self.client, request.clone()).await {
                Ok(body) => return Ok(body),
                Err(failure) => failure,
            };
            let passes = matches!(failure.kind, FailureKind::Away | FailureKind::Failed);
            if !passes || rest.failures() + 1 >= ATTEMPTS {
                return Err(failure);
            }
            let now = self.started.elapsed();
            rest.failed_for_now(now, failure.retry_after, &mut self.random);
            tokio::time::sleep_until(self.started + rest.until()).await;
        }
    }

    /// As [`Self::ask`]; `None` if there is no such thing.
    async fn read(&mut self, request: Made) -> Result<Option<Vec<u8>>, ApiFailure> {
        match self.ask(request).await {
            Err(failure) if failure.kind == FailureKind::Missing => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn view(&mut self) -> Result<Option<NodeView>, ApiFailure> {
        let body = self.read(request::get(&request::nodes(), &self.options.node)).await?;
        let node = body.map(|body| serde_json::from_slice(&body)).transpose();
        node.map_err(|error| ApiFailure::new(FailureKind::Failed, format!("the Node as it was read: {error}")))
    }

    async fn node(&mut self, withdrawn: &mut Withdrawn) {
        let node = match self.view().await {
            Ok(Some(node)) => node,
            Ok(None) => return,
            Err(failure) => {
                // Who may not read the Node was not let write it either, unless that was asked for.
                let asked = self.options.ready_label || self.options.remove_taint.is_some();
                if failure.kind != FailureKind::Forbidden || asked {
                    withdrawn.add("what the Node has of ours", Err(failure));
                }
                return;
            }
        };
        let (manager, name) = (&self.options.field_manager, &self.options.node);
        let mut fields = node.metadata.managed_fields.iter().flatten();
        let is_ours = fields.any(|of| {
            let apply = of.operation.as_deref() == Some("Apply") && of.subresource.as_deref().is_none_or(str::is_empty);
            of.manager.as_ref() == Some(manager) && apply
        });
        let nothing = content::label(name, node.metadata.uid.as_deref(), None);
        let label = is_ours.then(|| request::apply(&request::nodes(), manager, name, &nothing));
        let taint = self.taint(node).await;
        withdrawn.add("the taint, put back", taint);
        if let Some(request) = label {
            let result = self.ask(request).await.map(|_| true).or_else(gone);
            withdrawn.add("the label", result);
        }
    }

    /// The Node changes while it is read and written: then both once more.
    async fn taint(&mut self, mut node: NodeView) -> Result<bool, ApiFailure> {
        for _ in 0..ATTEMPTS {
            let Some(patch) = taint::with_removed(&node) else {
                return Ok(false);
            };
            let (manager, name) = (&self.options.field_manager, &self.options.node);
            let request = request::merge(&request::nodes(), manager, name, &patch);
            match self.ask(request).await {
                Ok(_) => return Ok(true),
                Err(failure) if failure.kind == FailureKind::Stale => match self.view().await? {
                    Some(again) => node = again,
                    None => return Ok(false),
                },
                Err(failure) => return Err(failure),
            }
        }
        let text = format!("{}: the Node changed {ATTEMPTS} times meanwhile", StatusCode::CONFLICT);
        Err(ApiFailure::new(FailureKind::Stale, text))
    }

    async fn object(&mut self) -> Result<bool, ApiFailure> {
        for version in VERSIONS {
            let request = request::get(&request::objects(version), &self.options.node);
            let Some(body) = self.read(request).await? else {
                continue;
            };
            let object: Value = serde_json::from_slice(&body).unwrap_or_default();
            let Some(uid) = object["metadata"]["uid"].as_str() else {
                continue;
            };
            if object["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "steliad" {
                return Ok(false);
            }
            let request = request::delete_object(version, &self.options.node, uid);
            return self.ask(request).await.map(|_| true).or_else(gone);
        }
        Ok(false)
    }
}
