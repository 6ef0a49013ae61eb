//! A bind, from the promise to its outcome.

use stelia_cpus::CpuSet;

use super::{Moment, NodeName, Reservations, Rules, Uid, Unavailable, Version};

/// A bind that was started: what the pod is promised. Its holder reports the outcome by [`Reservations::bind_succeeded`] or
/// [`Reservations::bind_failed`], once it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub pod: Uid,
    pub node: NodeName,
    /// What the binding must demand of the pod.
    pub version: Version,
    /// The CPUs for the pod's annotation, if they are chosen here.
    pub cpus: Option<CpuSet>,
}

/// Why a bind was not started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindNotStarted<E> {
    #[error("it is bound there already")]
    Already,
    #[error("it is bound to node {0}")]
    Elsewhere(NodeName),
    #[error("it is being bound to node {0}, and whether it was is not known yet")]
    UnderWay(NodeName),
    /// It has ended or is deleted.
    #[error("it is gone")]
    Gone,
    #[error("{0}")]
    Unavailable(Unavailable),
    #[error("{0}")]
    Rejected(E),
}

/// A request to bind a pod.
#[derive(Debug, Clone)]
pub struct BindRequest<Q> {
    pub uid: Uid,
    pub version: Version,
    pub request: Q,
}

impl<R: Rules> Reservations<R> {
    /// The newest known request to bind a pod, by UID.
    pub fn bind_request(&self, pod: Uid) -> Option<BindRequest<R::Request>> {
        let record = self.pods.get(&pod).filter(|record| record.gone.is_none())?;
        Some(BindRequest {
            uid: pod,
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
    ) -> Result<Ticket, BindNotStarted<R::Rejection>> {
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
        }
        self.available(node, now).map_err(BindNotStarted::Unavailable)?;
        let (request, version) = match record.and_then(|record| Some((record.request.as_ref()?, record.version))) {
            Some((request, version)) if version >= bind.version => (request, version),
            _ => (&bind.request, bind.version),
        };
        // A binding that demands an older version has failed, or will.
        let earlier = record.and_then(|record| record.intent.as_ref());
        if let Some(earlier) = earlier.filter(|earlier| earlier.version >= version) {
            return Err(BindNotStarted::UnderWay(earlier.node.clone()));
        }
        let mut held = self.held(node);
        held.retain(|(pod, _)| *pod != bind.uid);
        let foreign = held.iter().map(|(pod, _)| *pod).find(|pod| self.is_foreign(*pod));
        // The rules know now what is held without the pod's own claim.
        self.changed.insert(node.clone());
        let cpus = self.rules.place(node, held, request);
        let cpus = cpus.map_err(BindNotStarted::Rejected)?;
        let request = request.clone();
        let ticket = Ticket {
            pod: bind.uid,
            node: node.clone(),
            version,
            cpus,
        };
        self.abandon(bind.uid, version);
        let record = self.pods.entry(bind.uid).or_default();
        (record.request, record.version) = (Some(request), version);
        (record.intent, record.foreign) = (Some(ticket.clone()), foreign);
        self.add_to_node(bind.uid, node);
        Ok(ticket)
    }

    fn is_foreign(&self, pod: Uid) -> bool {
        let bound = self.pods.get(&pod).and_then(|record| record.bound.as_ref());
        bound.is_some_and(|bound| !bound.ours)
    }

    /// Whether the outcome is not known yet. Otherwise a watch has told it: the pod is bound, gone, or has another version and is not bound.
    pub fn is_open(&self, ticket: &Ticket) -> bool {
        let record = self.pods.get(&ticket.pod);
        record.is_some_and(|record| record.intent.as_ref() == Some(ticket))
    }

    /// The API server has bound the pod.
    pub fn bind_succeeded(&mut self, ticket: &Ticket, now: Moment) {
        if self.is_open(ticket) {
            self.bind(ticket.pod, &ticket.node, ticket.cpus.clone(), now);
        }
    }

    /// The bind has not bound the pod, and no longer can. If the API server refused because the pod is already bound or has another
    /// version, call [`Reservations::pod_changed`] first: the answer to an earlier request may have been lost.
    pub fn bind_failed(&mut self, ticket: &Ticket) {
        if self.is_open(ticket) {
            self.abandon(ticket.pod, Version::MAX);
        }
    }

    /// Ends the pod's bind if it demands a version older than this one.
    pub(super) fn abandon(&mut self, pod: Uid, newer: Version) {
        let record = self.pods.get_mut(&pod);
        if let Some(over) = record.and_then(|record| record.intent.take_if(|intent| intent.version < newer)) {
            self.remove_from_node(pod, &over.node);
        }
    }
}
