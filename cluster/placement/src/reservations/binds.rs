//! A bind, from the promise to its outcome.

use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::records::Intent;
use super::{AttemptId, FENCE_TIMEOUT, Moment, NodeName, Reservations, Rules, Uid, Unavailable, Version};

/// A bind that was started. Its holder reports the outcome by [`Reservations::bind_succeeded`],
/// [`Reservations::bind_failed`] or [`Reservations::bind_undecided`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub pod: Uid,
    pub node: NodeName,
    /// What the binding must demand of the pod.
    pub version: Version,
    pub(super) attempt: AttemptId,
    pub(super) invalidations: u64,
}

/// A bind that was started: what the pod is promised.
#[derive(Debug)]
pub struct StartedBind<P> {
    pub ticket: Ticket,
    pub place: P,
    /// The CPUs for the pod's annotation, if they are chosen here.
    pub cpus: Option<CpuSet>,
}

/// Why a bind was not started.
#[derive(Debug, PartialEq, Eq)]
pub enum BindNotStarted<E> {
    /// The pod is already bound to that node.
    Already,
    /// The pod is bound to another node.
    Elsewhere(NodeName),
    /// Another call binds it.
    UnderWay(NodeName),
    /// The pod has ended or is deleted.
    Gone,
    Unavailable(Unavailable),
    Rejected(E),
}

/// A request to bind a pod.
#[derive(Debug, Clone)]
pub struct BindRequest<Q> {
    pub uid: Uid,
    /// `namespace/name`.
    pub name: Arc<str>,
    pub version: Version,
    pub request: Q,
}

impl<R: Rules> Reservations<R> {
    /// The newest known request to bind a pod, by UID.
    pub fn bind_request(&self, pod: Uid) -> Option<BindRequest<R::Request>> {
        let record = self.pods.get(&pod).filter(|record| record.gone.is_none())?;
        Some(BindRequest {
            uid: pod,
            name: record.name.clone().unwrap_or_default(),
            version: record.version,
            request: record.request.clone()?,
        })
    }

    /// Promises the pod CPUs of the node, if the node would admit the pod beside everything that is held there.
    ///
    /// # Errors
    /// Nothing is promised.
    pub fn start_bind(
        &mut self,
        bind: BindRequest<R::Request>,
        node: &NodeName,
        now: Moment,
    ) -> Result<StartedBind<R::Placement>, BindNotStarted<R::Rejection>> {
        let record = self.pods.get(&bind.uid);
        if let Some(record) = record {
            if record.gone.is_some() || record.ending {
                return Err(BindNotStarted::Gone);
            }
            match &record.bound {
                Some(bound) if bound.node == *node => return Err(BindNotStarted::Already),
                Some(bound) => return Err(BindNotStarted::Elsewhere(bound.node.clone())),
                None => {}
            }
            if let Some(own) = record.intents.iter().find(|intent| intent.open) {
                return Err(BindNotStarted::UnderWay(own.node.clone()));
            }
        }
        self.available(node, now).map_err(BindNotStarted::Unavailable)?;
        let (request, version) = match record.and_then(|record| Some((record.request.as_ref()?, record.version))) {
            Some((request, version)) if version >= bind.version => (request, version),
            _ => (&bind.request, bind.version),
        };
        // An earlier binding to this node that may still come would assign other CPUs.
        if record.is_some_and(|record| record.intents(node).any(|left| left.version >= version)) {
            return Err(BindNotStarted::UnderWay(node.clone()));
        }
        let mut held = super::held(&self.pods, &self.nodes, node);
        held.retain(|held| held.pod != bind.uid);
        // The rules know now what is held without the pod's own claims.
        self.changed.insert(node.clone());
        let place = self
            .rules
            .place(node, &held, request)
            .map_err(BindNotStarted::Rejected)?;
        let cpus = self.rules.assigned_cpus(&place);
        let foreign = held.iter().map(|held| held.pod).find(|pod| self.is_foreign(*pod));
        let request = request.clone();
        self.last_attempt += 1;
        let ticket = Ticket {
            pod: bind.uid,
            node: node.clone(),
            version,
            attempt: self.last_attempt,
            invalidations: self.nodes.get(node).map_or(0, |known| known.invalidations),
        };
        self.abandon(bind.uid, version);
        let record = self.pods.entry(bind.uid).or_default();
        record.name = Some(bind.name);
        (record.request, record.version) = (Some(request), version);
        record.intents.push(Intent {
            node: node.clone(),
            attempt: ticket.attempt,
            open: true,
            version,
            cpus: cpus.clone(),
            since: now,
            foreign,
        });
        self.add_to_node(bind.uid, node);
        Ok(StartedBind { ticket, place, cpus })
    }

    fn is_foreign(&self, pod: Uid) -> bool {
        let bound = self.pods.get(&pod).and_then(|record| record.bound.as_ref());
        bound.is_some_and(|bound| !bound.ours)
    }

    /// Whether the promise still holds: the pod may be gone meanwhile, or bound by another scheduler.
    pub fn is_open(&self, ticket: &Ticket) -> bool {
        let record = self.pods.get(&ticket.pod);
        record.is_some_and(|record| record.intents.iter().any(|intent| intent.attempt == ticket.attempt))
    }

    /// The API server has bound the pod.
    pub fn bind_succeeded(&mut self, ticket: &Ticket, now: Moment) {
        let record = self.pods.get(&ticket.pod);
        let intent = record.and_then(|record| record.intents.iter().find(|one| one.attempt == ticket.attempt));
        if let Some(cpus) = intent.map(|intent| intent.cpus.clone()) {
            self.bind(ticket.pod, &ticket.node, cpus, now);
        }
    }

    /// The bind has not bound the pod, and no longer can. If the API server refused because the pod is already bound or has another
    /// version, call [`Reservations::pod_changed`] first: the answer to an earlier bind may have been lost.
    pub fn bind_failed(&mut self, ticket: &Ticket) {
        let Some(record) = self.pods.get_mut(&ticket.pod) else {
            return;
        };
        record.intents.retain(|intent| intent.attempt != ticket.attempt);
        self.remove_from_node(ticket.pod, &ticket.node);
    }

    /// It is not known whether the pod is bound: it holds what it was promised until that is decided.
    pub fn bind_undecided(&mut self, ticket: &Ticket, now: Moment) {
        let Some(record) = self.pods.get_mut(&ticket.pod) else {
            return;
        };
        let own = record
            .intents
            .iter_mut()
            .find(|intent| intent.attempt == ticket.attempt);
        if let Some(own) = own {
            (own.open, own.since) = (false, now);
            self.undecided.insert(ticket.pod);
        }
    }

    /// The pods with an undecided bind, and their names. The caller reads whether they are bound.
    pub fn undecided(&self) -> Vec<(Uid, Arc<str>)> {
        let named = |pod: &Uid| Some((*pod, self.pods.get(pod)?.name.clone()?));
        self.undecided.iter().filter_map(named).collect()
    }

    /// The pods whose bind has been undecided for [`FENCE_TIMEOUT`]: the former writer may have stopped before it sent the binding, and
    /// send it at any time. The binding demands a version of the pod, so any write to the pod by the caller makes it fail.
    pub fn to_fence(&self, now: Moment) -> Vec<(Uid, Arc<str>)> {
        let due = |pod: &Uid| {
            let intents = self
                .pods
                .get(pod)
                .map(|record| record.intents.as_slice())
                .unwrap_or_default();
            intents
                .iter()
                .any(|intent| !intent.open && now >= intent.since + FENCE_TIMEOUT)
        };
        let mut pods = self.undecided();
        pods.retain(|(pod, _)| due(pod));
        pods
    }

    /// Ends the undecided binds of the pod that demand a version older than this one.
    pub(super) fn abandon(&mut self, pod: Uid, newer: Version) {
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let over = |intent: &Intent| !intent.open && intent.version < newer;
        let (ended, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut record.intents).into_iter().partition(over);
        record.intents = stay;
        if !record.is_undecided() {
            self.undecided.remove(&pod);
        }
        for intent in ended {
            self.remove_from_node(pod, &intent.node);
        }
    }
}
