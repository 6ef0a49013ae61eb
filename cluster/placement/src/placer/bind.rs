//! A bind is the claim.
//!
//! 1. The pod is evaluated once more on its node, beside everything that is held there. If nothing changed meanwhile, it is promised its CPUs.
//! 2. The binding is sent: one request that sets the pod's node and the annotation with its CPUs. It demands the pod's version, so it has failed for good once
//!    the pod has another one and is not bound.
//!
//! If the answer is lost, the promise is kept and the same binding is sent again, until its outcome is known. A refusal tells nothing of what was sent before:
//! only the pod does. If it stays as it is, the bind is given up by a change of the pod, after which nothing that was sent can bind it.

use std::sync::Arc;
use std::time::Duration;

use stelia_cpus::rate::Backoff;
use stelia_kubelet::Uid;
use stelia_placement_rules::request::SharedRequest;
use tokio::time::Instant;
use tracing::{info, warn};

use super::node_rules::{Evaluated, PlaceError};
use super::{NotReady, Placer, PlacerState, count};
use crate::apiserver::{ServerFailure, ToBind, parse};
use crate::reservations::{BindNotStarted, BindRequest, Moment, NodeName, Ticket, Unavailable};

/// Limit of the evaluations of a pod on a node that changes meanwhile.
const MAX_EVALUATIONS: usize = 16;
/// How long the scheduler waits for the outcome before it gets the answer that it is unknown; the scheduler's own timeout must be longer.
const DECISION_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a binding is sent again while its outcome is not known; then it is given up. The scheduler has long tried the pod again by then, and others wait for
/// the CPUs.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses before a binding is sent again.
const RETRY_PAUSE: Backoff = Backoff::new(Duration::from_millis(300), Duration::from_secs(10));

/// Why a pod was not bound; kube-scheduler queues it again.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("{0:?} is not a pod's UID")]
    Uid(String),
    #[error(transparent)]
    NotStarted(#[from] BindNotStarted<PlaceError>),
    #[error("it asks for what no node takes")]
    Request,
    #[error("it changed while it was being bound")]
    Changed,
    #[error(transparent)]
    Failed(#[from] ServerFailure),
    #[error("whether it is bound is not known yet; its CPUs are kept until it is")]
    Unknown,
}

impl Placer {
    /// Binds a pod.
    ///
    /// # Errors
    /// It is not bound, or it is not known.
    pub async fn bind(self: &Arc<Self>, to: &ToBind) -> Result<(), BindError> {
        let mut outcome = self.try_bind(to).await;
        // The watch was late; what the pod is now was read meanwhile.
        if let Err(BindError::Failed(ServerFailure::Conflict(_))) = outcome {
            outcome = self.try_bind(to).await;
        }
        count(match &outcome {
            Ok(()) => &self.counts.bound,
            Err(BindError::NotStarted(BindNotStarted::Rejected(_) | BindNotStarted::Unavailable(_))) => {
                &self.counts.rejected
            }
            Err(_) => &self.counts.failed,
        });
        let text = outcome
            .as_ref()
            .map_or_else(ToString::to_string, |()| "bound".to_owned());
        info!("pod {} to node {}: {text}", to.pod(), to.node);
        outcome
    }

    async fn try_bind(self: &Arc<Self>, to: &ToBind) -> Result<(), BindError> {
        // The pod is evaluated by what this term has read. A later term lists anew, and sends nothing of this one.
        let term = *self.leadership.terms().borrow();
        self.ready()?;
        let uid = Uid::parse(&to.uid).ok_or_else(|| BindError::Uid(to.uid.clone()))?;
        let Some(request) = self.bind_request(uid, to).await? else {
            return self.bind_without_claim(to).await;
        };
        let without_vm = request.request.vm.is_none();
        let ticket = match self.start_bind(request, &to.node).await {
            Ok(started) => started,
            Err(BindNotStarted::Already) => return Ok(()),
            Err(BindNotStarted::Unavailable(Unavailable::NoObject)) if without_vm => {
                return self.bind_without_claim(to).await;
            }
            Err(refusal) => return Err(refusal.into()),
        };
        // In a task of its own, which goes on until the outcome is known, whether the caller waits for it or not.
        let (placer, own) = (self.clone(), to.clone());
        let decided = tokio::spawn(async move { placer.send_until_decided(&own, &ticket, term).await });
        match tokio::time::timeout(DECISION_TIMEOUT, decided).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(BindError::Unknown),
        }
    }

    /// Promises the pod its CPUs, which answers to other calls count from now on.
    async fn start_bind(
        &self,
        request: BindRequest<SharedRequest>,
        node: &NodeName,
    ) -> Result<Ticket, BindNotStarted<PlaceError>> {
        let mut evaluated = None;
        for _ in 0..MAX_EVALUATIONS {
            let started = self.state().start_bind(request.clone(), node, self.now(), evaluated);
            let Err(BindNotStarted::Rejected(PlaceError::NotEvaluated(evaluation))) = started else {
                return started;
            };
            let outcome = self.evaluate(move || (evaluation.evaluate(), evaluation));
            evaluated = outcome.await.ok();
        }
        self.state().start_bind(request, node, self.now(), evaluated)
    }

    /// The newest request to bind the pod; `None` for a pod that gets no CPUs of its own.
    async fn bind_request(&self, uid: Uid, to: &ToBind) -> Result<Option<BindRequest<SharedRequest>>, BindError> {
        if let Some(watched) = self.state().reservations.bind_request(uid) {
            return Ok(Some(watched));
        }
        // The watch is late, or keeps nothing of the pod, which gets no CPUs of its own.
        let document = match self.api.pod(&to.namespace, &to.name).await {
            Ok(document) => document,
            Err(ServerFailure::Missing(_)) => return Err(BindNotStarted::Gone.into()),
            Err(failure) => return Err(failure.into()),
        };
        let pod = parse::pod_of(&document).filter(|pod| pod.uid == uid);
        let pod = pod.ok_or(BindNotStarted::Gone)?;
        let request = self.request(&document, Some(&pod));
        let request = request.map_err(|_| BindError::Request)?;
        Ok(request.map(|request| BindRequest {
            uid,
            version: pod.version,
            request: self.state().shared(request),
        }))
    }

    /// Sends the binding until its outcome is known, and reports that to the reservations.
    async fn send_until_decided(&self, to: &ToBind, ticket: &Ticket, term: u64) -> Result<(), BindError> {
        let assigned_cpus = ticket.cpus.as_ref().map(parse::status);
        let (started, mut failures, mut is_sent) = (Instant::now(), 0, false);
        let mut timeout = GIVE_UP_TIMEOUT;
        loop {
            let is_same_term = *self.leadership.terms().borrow() == term;
            match self.ready() {
                Ok(()) if is_same_term && started.elapsed() < timeout => {
                    let failure = match self.api.bind(to, ticket.version, assigned_cpus.as_deref()).await {
                        Ok(()) => {
                            self.state().reservations.bind_succeeded(ticket, self.now());
                            return Ok(());
                        }
                        Err(failure) => failure,
                    };
                    let is_over = match &failure {
                        // It may have been bound by a request whose answer was lost. Where the pod is unchanged, this one may still bind it: the API server
                        // answers 409 also if it does not know what etcd did.
                        ServerFailure::Conflict(_) | ServerFailure::Missing(_) => {
                            timeout = DECISION_TIMEOUT;
                            self.read_pod(ticket.pod, to).await;
                            !self.state().reservations.is_open(ticket)
                        }
                        ServerFailure::Unknown(_) | ServerFailure::TooLong(_) => false,
                        ServerFailure::Busy { .. } => !is_sent && started.elapsed() >= DECISION_TIMEOUT,
                        ServerFailure::Refused(..) | ServerFailure::Expired(_) => !is_sent,
                    };
                    if is_over {
                        self.state().reservations.bind_failed(ticket);
                        return self.outcome(ticket, failure.into());
                    }
                    is_sent |= !matches!(failure, ServerFailure::Busy { .. });
                    warn!("pod {} to node {}: {failure}; it is sent again", to.pod(), to.node);
                }
                Ok(()) if is_sent => {
                    // Another leader may have promised these CPUs meanwhile, or nothing tells the outcome: any change of the pod makes what was sent in vain.
                    if let Err(failure) = self.api.retry(&to.namespace, &to.name, &to.uid).await {
                        warn!("pod {}: a binding cannot be given up: {failure}", to.pod());
                    }
                    self.read_pod(ticket.pod, to).await;
                }
                // A leader that was succeeded sends nothing more; the watch tells the outcome.
                Err(_) if is_sent => {}
                not_ready => {
                    self.state().reservations.bind_failed(ticket);
                    return Err(not_ready.err().unwrap_or(NotReady::NotLeader).into());
                }
            }
            let pause = RETRY_PAUSE.pause(failures);
            failures += 1;
            tokio::time::sleep(pause).await;
            if !self.state().reservations.is_open(ticket) {
                return self.outcome(ticket, BindError::Changed);
            }
        }
    }

    /// The outcome of a bind that is over.
    fn outcome(&self, ticket: &Ticket, not_bound: BindError) -> Result<(), BindError> {
        match self.state().reservations.bound_to(ticket.pod) {
            Some(node) if node == ticket.node => Ok(()),
            Some(node) => Err(BindNotStarted::Elsewhere(node).into()),
            None => Err(not_bound),
        }
    }

    /// Reads the pod and passes it to the reservations.
    async fn read_pod(&self, uid: Uid, to: &ToBind) {
        let pod = self.api.pod(&to.namespace, &to.name).await;
        match pod.map(|pod| self.observe_pod(&pod)) {
            Ok(Some(found)) if found == uid => {}
            Ok(None) => warn!("pod {}: the API server's answer is no pod", to.pod()),
            // A pod of that name may be another one by now.
            Ok(Some(_)) | Err(ServerFailure::Missing(_)) => {
                let now = self.now();
                self.state().reservations.pod_gone(uid, None, now);
            }
            Err(failure) => warn!("pod {}: {failure}", to.pod()),
        }
    }

    /// Binds a pod that claims nothing.
    async fn bind_without_claim(&self, to: &ToBind) -> Result<(), BindError> {
        Ok(self.api.bind(to, 0, None).await?)
    }
}

impl PlacerState {
    /// Starts a bind if that is what was evaluated.
    fn start_bind(
        &mut self,
        request: BindRequest<SharedRequest>,
        node: &NodeName,
        now: Moment,
        evaluated: Option<Evaluated>,
    ) -> Result<Ticket, BindNotStarted<PlaceError>> {
        self.reservations.advance(now);
        self.reservations.rules_mut().evaluated = evaluated;
        self.reservations.start_bind(request, node, now)
    }
}
