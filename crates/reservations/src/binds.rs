//! A bind, from the promise to its outcome.

use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::records::Intent;
use super::{Attempt, FENCE_TIMEOUT, Moment, NodeName, Reservations, Rules, Uid, Unavailable, Version};

/// A bind that was begun. Its holder tells the outcome by [`Reservations::bound`], [`Reservations::failed`] or
/// [`Reservations::lost`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub pod: Uid,
    pub node: NodeName,
    /// What the binding must demand of the pod.
    pub version: Version,
    pub(super) attempt: Attempt,
    pub(super) surprises: u64,
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
    pub fn asked(&self, pod: Uid) -> Option<BindRequest<R::Request>> {
        let record = self.pods.get(&pod).filter(|record| record.gone.is_none())?;
        Some(BindRequest {
            uid: pod,
            name: record.name.clone().unwrap_or_default(),
            version: record.version,
            request: record.request.clone()?,
        })
    }

    /// Promises the pod its place on the node, if the node would admit it beside everything that is held there.
    ///
    /// # Errors
    /// Nothing is promised.
    pub fn begin(
        &mut self,
        asked: BindRequest<R::Request>,
        node: &NodeName,
        now: Moment,
    ) -> Result<StartedBind<R::Place>, BindNotStarted<R::Rejection>> {
        let record = self.pods.get(&asked.uid);
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
            Some((request, version)) if version >= asked.version => (request, version),
            _ => (&asked.request, asked.version),
        };
        // A binding to this node that may still come would bring other CPUs.
        if record.is_some_and(|record| record.intents(node).any(|left| left.version >= version)) {
            return Err(BindNotStarted::UnderWay(node.clone()));
        }
        let mut held = super::held(&self.pods, &self.nodes, node);
        held.retain(|held| held.pod != asked.uid);
        let place = self
            .rules
            .place(node, &held, request)
            .map_err(BindNotStarted::Rejected)?;
        let cpus = self.rules.chosen(&place);
        let foreign = held.iter().map(|held| held.pod).find(|pod| self.is_foreign(*pod));
        let request = request.clone();
        self.attempts += 1;
        let ticket = Ticket {
            pod: asked.uid,
            node: node.clone(),
            version,
            attempt: self.attempts,
            surprises: self.nodes.get(node).map_or(0, |slot| slot.surprises),
        };
        self.abandon(asked.uid, version);
        let record = self.pods.entry(asked.uid).or_default();
        record.name = Some(asked.name);
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
        self.enter(asked.uid, node);
        Ok(StartedBind { ticket, place, cpus })
    }

    fn is_foreign(&self, pod: Uid) -> bool {
        let bound = self.pods.get(&pod).and_then(|record| record.bound.as_ref());
        bound.is_some_and(|bound| !bound.ours)
    }

    /// Whether the promise holds still: the pod may be gone meanwhile, or bound by others.
    pub fn is_open(&self, ticket: &Ticket) -> bool {
        let record = self.pods.get(&ticket.pod);
        record.is_some_and(|record| record.intents.iter().any(|intent| intent.attempt == ticket.attempt))
    }

    /// The API server has bound it.
    pub fn bound(&mut self, ticket: &Ticket, now: Moment) {
        if self.is_open(ticket) {
            self.bind(ticket.pod, &ticket.node, None, None, now);
        }
    }

    /// This bind of it has not bound it, and cannot any more. Where the API server refused because the pod is bound already or
    /// has another version, the pod is to be told first ([`Reservations::pod`]): an earlier bind's answer may have been lost.
    pub fn failed(&mut self, ticket: &Ticket) {
        let Some(record) = self.pods.get_mut(&ticket.pod) else {
            return;
        };
        record.intents.retain(|intent| intent.attempt != ticket.attempt);
        self.leave(ticket.pod, &ticket.node);
    }

    /// Whether it is bound is not known: it holds what it was promised until that is decided.
    pub fn lost(&mut self, ticket: &Ticket, now: Moment) {
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

    /// The pods, with their names, of which it is to be read whether they are bound.
    pub fn undecided(&self) -> Vec<(Uid, Arc<str>)> {
        let named = |pod: &Uid| Some((*pod, self.pods.get(pod)?.name.clone()?));
        self.undecided.iter().filter_map(named).collect()
    }

    /// Those of them that are to be changed, by a write of whatever kind to the pod, because nothing was decided for
    /// [`FENCE_TIMEOUT`]: the former writer may have stopped before it sent the binding, and send it at any time. The binding
    /// demands a version of the pod, so once the pod has another one it cannot succeed.
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

    /// Ends what earlier binds of the pod left, those that demand a version before this one.
    pub(super) fn abandon(&mut self, pod: Uid, newer: Version) {
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let over = |intent: &Intent| !intent.open && intent.version < newer;
        let (ended, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut record.intents).into_iter().partition(over);
        record.intents = stay;
        if !record.is_undecided() {
            self.undecided.remove(&pod);
        }
        for intent in ended {
            self.leave(pod, &intent.node);
        }
    }
}
