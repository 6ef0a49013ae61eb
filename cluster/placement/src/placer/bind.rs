//! A bind is the claim.
//!
//! 1. The pod is evaluated once more on its node, beside everything that is held there. If nothing changed meanwhile, it is promised its CPUs.
//! 2. The promise is written to the node's claim object, with the version that it was read with. A former leader that was stopped and
//!    wakes up here is refused by that version, and binds nothing.
//! 3. The binding is sent. It demands the pod's version that the claim names, so that whoever takes over can make it impossible.
//!
//! A bind that fails before 3 is released. If the answer to 3 is lost, the promise is kept until the outcome is known.

use std::sync::Arc;
use std::time::Duration;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::Evaluation;
use stelia_placement_rules::evaluate::{Placement, Refusal};
use stelia_placement_rules::request::SharedRequest;
use tokio::time::Instant;
use tracing::{debug, info};

use super::filtered_pods::StoredPod;
use super::node_rules::PlaceError;
use super::promise::Promise;
use super::{NotReady, Placer, PlacerState, count};
use crate::apiserver::{Binding, ServerFailure, parse};
use crate::reservations::{BindNotStarted, BindRequest, Moment, NodeName, StartedBind, Ticket, Unavailable, Version};

/// Limit of the attempts to write a claim when another claim changed meanwhile.
const MAX_CLAIM_ATTEMPTS: usize = 4;
/// Limit of the evaluations of a pod on a node that changes meanwhile.
const MAX_EVALUATIONS: usize = 16;
/// How long the outcome of a bind is queried before the scheduler gets the answer that it is unknown; the scheduler's own timeout must be longer.
const DECISION_TIMEOUT: Duration = Duration::from_secs(8);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Why a pod was not bound; kube-scheduler queues it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("{0:?} is not a pod's UID")]
    Uid(String),
    #[error("pod {0} is gone")]
    Gone(String),
    #[error("pod {0} is bound to node {1}")]
    Elsewhere(String, NodeName),
    #[error("pod {0} is being bound to node {1}, and whether it was is not known yet")]
    UnderWay(String, NodeName),
    #[error("node {0}: {1}")]
    Unavailable(NodeName, Unavailable),
    #[error("node {0}: {1}")]
    Rejected(NodeName, Refusal),
    #[error("node {0} changed {MAX_EVALUATIONS} times while the pod was evaluated")]
    Changing(NodeName),
    #[error("pod {0} asks for what no node takes")]
    Request(String),
    #[error("node {0}: other claims came in between {MAX_CLAIM_ATTEMPTS} times")]
    Crowded(NodeName),
    #[error("write the claim on node {0}: {1}")]
    Claim(NodeName, ServerFailure),
    #[error("bind pod {0} to node {1}: {2}")]
    Bind(String, NodeName, ServerFailure),
    #[error("whether pod {0} is bound to node {1} is not known: {2}; its CPUs are kept until it is")]
    Unknown(String, NodeName, ServerFailure),
}

/// What the scheduler asks.
#[derive(Debug, Clone)]
pub struct ToBind {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: NodeName,
}

impl ToBind {
    fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn binding<'a>(&'a self, version: Version, assigned_cpus: Option<&'a str>) -> Binding<'a> {
        Binding {
            namespace: &self.namespace,
            name: &self.name,
            uid: &self.uid,
            version,
            node: &self.node,
            assigned_cpus,
        }
    }
}

/// The result of an attempt to write a claim.
enum ClaimWrite {
    Done,
    /// Another writer changed it meanwhile; it was read again.
    Conflict,
}

impl Placer {
    /// Binds a pod.
    ///
    /// # Errors
    /// It is not bound, or it is not known.
    pub async fn bind(&self, to: &ToBind) -> Result<(), BindError> {
        let outcome = self.try_bind(to).await;
        let (counter, text) = match &outcome {
            Ok(()) => (&self.counts.bound, "bound".to_owned()),
            Err(error @ (BindError::Rejected(..) | BindError::Unavailable(..))) => {
                (&self.counts.rejected, error.to_string())
            }
            Err(error @ BindError::Unknown(..)) => (&self.counts.lost, error.to_string()),
            Err(error) => (&self.counts.failed, error.to_string()),
        };
        count(counter);
        info!("pod {} to node {}: {text}", to.pod(), to.node);
        outcome
    }

    async fn try_bind(&self, to: &ToBind) -> Result<(), BindError> {
        self.ready()?;
        let uid = Uid::parse(&to.uid).ok_or_else(|| BindError::Uid(to.uid.clone()))?;
        let Some(request) = self.bind_request(uid, to).await? else {
            return self.bind_without_claim(to).await;
        };
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            let started = self.start_bind(&request, &to.node).await;
            let StartedBind { ticket, cpus, .. } = match started {
                Ok(started) => started,
                Err(BindNotStarted::Already) => return Ok(()),
                Err(BindNotStarted::Unavailable(Unavailable::NoObject)) if request.request.vm.is_none() => {
                    return self.bind_without_claim(to).await;
                }
                Err(refusal) => return Err(not_started(refusal, to)),
            };
            // From here on each way out reports what becomes of the promise; if the caller goes away, it is kept and decided later.
            let mut promise = Promise::new(self, ticket);
            match self.write_claim(&promise).await {
                Ok(ClaimWrite::Done) => {
                    let assigned_cpus = cpus.as_ref().map(parse::status);
                    return self.send_binding(to, &mut promise, assigned_cpus.as_deref()).await;
                }
                Ok(ClaimWrite::Conflict) => {
                    promise.failed();
                    self.ready()?;
                }
                Err(failure) => {
                    promise.failed();
                    return Err(BindError::Claim(to.node.clone(), failure));
                }
            }
        }
        Err(BindError::Crowded(to.node.clone()))
    }

    /// Starts a bind, which answers to other calls count from now on.
    async fn start_bind(
        &self,
        request: &BindRequest<SharedRequest>,
        node: &NodeName,
    ) -> Result<StartedBind<Placement>, BindNotStarted<PlaceError>> {
        let mut evaluated = None;
        for _ in 0..MAX_EVALUATIONS {
            let started = self.state().start_bind(request.clone(), node, self.now(), evaluated);
            let Err(BindNotStarted::Rejected(PlaceError::NotEvaluated(evaluation))) = started else {
                return started;
            };
            let outcome = self.evaluate(move || {
                let outcome = evaluation.evaluate();
                (evaluation, outcome)
            });
            evaluated = outcome.await.ok();
        }
        self.state().start_bind(request.clone(), node, self.now(), evaluated)
    }

    /// The newest request to bind the pod; `None` for a pod that gets no CPUs of its own.
    async fn bind_request(&self, uid: Uid, to: &ToBind) -> Result<Option<BindRequest<SharedRequest>>, BindError> {
        let mut stored = self.state().stored_pod(uid);
        if matches!(stored, StoredPod::Missing) {
            // The watch is late, and another instance answered the filter call.
            let document = match self.api.pod(&to.namespace, &to.name).await {
                Ok(document) => document,
                Err(ServerFailure::Missing(_)) => return Err(BindError::Gone(to.pod())),
                Err(failure) => return Err(BindError::Bind(to.pod(), to.node.clone(), failure)),
            };
            let pod = parse::pod_of(&document).filter(|pod| pod.uid == uid);
            let pod = pod.ok_or_else(|| BindError::Gone(to.pod()))?;
            let request = self.request(&document, Some(&pod));
            let request = request.map_err(|_| BindError::Request(to.pod()))?;
            let mut state = self.state();
            state.store_filtered(pod, request);
            stored = state.stored_pod(uid);
        }
        Ok(match stored {
            // The name of a pod that was only watched is not stored.
            StoredPod::Requests(request) => Some(BindRequest {
                name: to.pod().into(),
                ..request
            }),
            StoredPod::WithoutOwnCpus | StoredPod::Missing => None,
        })
    }

    /// Writes the promise to the node's claim object. One write of a node at a time, so that the writes of this process do not refuse
    /// each other.
    async fn write_claim(&self, promise: &Promise<'_>) -> Result<ClaimWrite, ServerFailure> {
        let Some(ticket) = promise.ticket() else {
            return Ok(ClaimWrite::Conflict);
        };
        let writer = {
            let mut writers = self.writers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Those that nobody waits for, looked for as seldom as their number doubles.
            if writers.len().is_power_of_two() {
                writers.retain(|_, writer| Arc::strong_count(writer) > 1);
            }
            writers.entry(ticket.node.clone()).or_default().clone()
        };
        let _one = writer.lock().await;
        let (rewrite, owner) = {
            let state = self.state();
            (
                state.reservations.rewrite(ticket),
                state.owners.get(&ticket.node).cloned(),
            )
        };
        let Some(rewrite) = rewrite else {
            return Ok(ClaimWrite::Conflict);
        };
        // A process that was stopped may have been succeeded meanwhile.
        if self.ready().is_err() {
            return Ok(ClaimWrite::Conflict);
        }
        match self
            .api
            .write_claims(&ticket.node, &rewrite, owner.as_ref(), &self.identity)
            .await
        {
            Ok(version) => {
                self.state().reservations.claims_written(&ticket.node, version);
                Ok(ClaimWrite::Done)
            }
            // There is no such object: without one to begin with there is no such resource.
            Err(ServerFailure::Missing(cause)) if rewrite.base.is_none() => Err(ServerFailure::Missing(cause)),
            Err(ServerFailure::Conflict(cause) | ServerFailure::Missing(cause)) => {
                debug!("the claims of node {}: {cause}", ticket.node);
                let read = self.api.read_claims(&ticket.node).await?;
                let now = self.now();
                let mut state = self.state();
                match read {
                    Some(claims) => {
                        state
                            .reservations
                            .claims_changed(&ticket.node, claims.version, &claims.claims, now);
                    }
                    None => state
                        .reservations
                        .claims_deleted(&ticket.node, rewrite.base.unwrap_or_default()),
                }
                Ok(ClaimWrite::Conflict)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Sends the binding.
    async fn send_binding(
        &self,
        to: &ToBind,
        promise: &mut Promise<'_>,
        assigned_cpus: Option<&str>,
    ) -> Result<(), BindError> {
        let Some(ticket) = promise.ticket().cloned() else {
            return Err(BindError::Crowded(to.node.clone()));
        };
        let binding = to.binding(ticket.version, assigned_cpus);
        let deadline = Instant::now() + DECISION_TIMEOUT;
        let mut uncertain = false;
        loop {
            // A leader that was succeeded sends nothing new; what it sent before is decided by its successor.
            if let Err(not_ready) = self.ready() {
                if promise.sent {
                    promise.lost()
                } else {
                    promise.failed()
                }
                return Err(not_ready.into());
            }
            promise.sent = true;
            let failure = match self.api.bind(&binding).await {
                Ok(()) => {
                    promise.bound();
                    return Ok(());
                }
                Err(failure) => failure,
            };
            match failure {
                ServerFailure::Conflict(_) | ServerFailure::Missing(_) => {
                    return self.after_conflict(to, promise, &ticket, failure).await;
                }
                ServerFailure::Unknown(_) | ServerFailure::TooLong(_) => uncertain = true,
                ServerFailure::Busy { .. } => {}
                ServerFailure::Refused(..) | ServerFailure::Expired(_) if !uncertain => {
                    promise.failed();
                    return Err(BindError::Bind(to.pod(), to.node.clone(), failure));
                }
                ServerFailure::Refused(..) | ServerFailure::Expired(_) => {}
            }
            if Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(if uncertain {
                    promise.lost();
                    BindError::Unknown(to.pod(), to.node.clone(), failure)
                } else {
                    promise.failed();
                    BindError::Bind(to.pod(), to.node.clone(), failure)
                });
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// The API server refuses: the pod is read, because it may be bound by an attempt whose answer was lost.
    async fn after_conflict(
        &self,
        to: &ToBind,
        promise: &mut Promise<'_>,
        ticket: &Ticket,
        failure: ServerFailure,
    ) -> Result<(), BindError> {
        if !self.read_pod(ticket.pod, &to.pod()).await {
            promise.lost();
            return Err(BindError::Unknown(to.pod(), to.node.clone(), failure));
        }
        promise.failed();
        let bound_to = self.state().reservations.bound_to(ticket.pod);
        match bound_to {
            Some(node) if node == to.node => Ok(()),
            Some(node) => Err(BindError::Elsewhere(to.pod(), node)),
            None => Err(BindError::Bind(to.pod(), to.node.clone(), failure)),
        }
    }

    /// Binds a pod that claims nothing.
    async fn bind_without_claim(&self, to: &ToBind) -> Result<(), BindError> {
        self.api
            .bind(&to.binding(0, None))
            .await
            .map_err(|failure| BindError::Bind(to.pod(), to.node.clone(), failure))
    }
}

fn not_started(refusal: BindNotStarted<PlaceError>, to: &ToBind) -> BindError {
    match refusal {
        BindNotStarted::Elsewhere(node) => BindError::Elsewhere(to.pod(), node),
        BindNotStarted::UnderWay(node) => BindError::UnderWay(to.pod(), node),
        BindNotStarted::Already | BindNotStarted::Gone => BindError::Gone(to.pod()),
        BindNotStarted::Unavailable(unavailable) => BindError::Unavailable(to.node.clone(), unavailable),
        BindNotStarted::Rejected(PlaceError::Refused(refusal)) => BindError::Rejected(to.node.clone(), refusal),
        BindNotStarted::Rejected(PlaceError::NotEvaluated(_)) => BindError::Changing(to.node.clone()),
    }
}

impl PlacerState {
    /// Starts a bind if that is what was evaluated.
    fn start_bind(
        &mut self,
        request: BindRequest<SharedRequest>,
        node: &NodeName,
        now: Moment,
        evaluated: Option<(Evaluation, Result<Placement, Refusal>)>,
    ) -> Result<StartedBind<Placement>, BindNotStarted<PlaceError>> {
        self.reservations.advance(now);
        self.reservations.rules_mut().evaluated = evaluated;
        self.reservations.start_bind(request, node, now)
    }
}

/// Binds in a task of its own, which ends even if the caller goes away.
pub(crate) async fn bind_detached(placer: Arc<Placer>, to: ToBind) -> Result<(), BindError> {
    let node = to.node.clone();
    let name = to.pod();
    match tokio::spawn(async move { placer.bind(&to).await }).await {
        Ok(outcome) => outcome,
        Err(cause) => Err(BindError::Unknown(
            name,
            node,
            ServerFailure::Unknown(cause.to_string()),
        )),
    }
}
