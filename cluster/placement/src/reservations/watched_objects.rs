//! What the watches tell: pods and nodes' objects.

use std::collections::HashSet;

use stelia_cpus::CpuSet;

use super::records::Bound;
use super::{
    Moment, NodeName, OwnCpus, Reservations, Rules, SETTLE_TIMEOUT, SILENCE_TIMEOUT, Ticket, UID_RETENTION, Uid,
    Version,
};

/// A pod as the API server has it.
#[derive(Debug, Clone)]
pub struct ObservedPod<Q> {
    pub uid: Uid,
    /// The UID by which the node's object shows it, if that is another one: kubelet's of a static pod. kubelet runs no other pod that says so.
    pub shown_as: Option<Uid>,
    pub version: Version,
    pub node: Option<NodeName>,
    /// `None` if it cannot be read: then what was read before counts.
    pub request: Option<Q>,
    /// The CPUs in its annotation.
    pub cpus: Option<CpuSet>,
    /// `status.phase` is Running: kubelet has started its containers.
    pub is_running: bool,
    /// `metadata.deletionTimestamp` is set.
    pub ending: bool,
}

/// A pod that its node refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub pod: Uid,
    pub node: NodeName,
    /// kubelet's: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`, …
    pub reason: String,
    /// A pod that this process did not bind, and that came to the node meanwhile or that the node had not shown yet: the refused one itself, if that is such
    /// a pod. `None` where there was none.
    pub foreign: Option<Uid>,
}

impl<R: Rules> Reservations<R> {
    /// A pod was added or changed, and has not ended.
    pub fn pod_changed(&mut self, observed: ObservedPod<R::Request>, now: Moment) {
        let uid = observed.uid;
        let record = self.pods.entry(uid).or_default();
        if record.gone.is_some() || observed.version < record.version {
            return;
        }
        record.version = observed.version;
        // The author may change labels, size and annotations of a pod that is bound, and what was promised to it stays promised.
        let node = observed.node.as_ref();
        let is_promised = node.is_some_and(|node| record.claim(node).is_some_and(|(_, ours)| ours));
        let is_ours = is_promised || record.bound.as_ref().is_some_and(|bound| bound.ours);
        record.shown_as = observed.shown_as.filter(|_| !is_ours);
        record.request = match record.request.take() {
            Some(promised) if is_promised => Some(promised),
            before => observed.request.or(before),
        };
        record.ending = observed.ending;
        match (observed.node, &mut record.bound) {
            // A binding that demands a version which the pod has no longer has failed, or will. A pod is never unbound: where its
            // binding was answered before this version was seen, this one is older.
            (None, None) => self.abandon(uid, observed.version),
            (None, Some(_)) => {}
            (Some(node), Some(bound)) if bound.node == node => {
                if !bound.ours {
                    record.cpus = observed.cpus.or(record.cpus.take());
                }
                self.update_node(&node);
            }
            (Some(node), _) => self.bind(uid, &node, observed.cpus, now),
        }
        if observed.is_running {
            self.note_running(uid, now);
        }
    }

    /// The pod is bound to the node, by this process or another: any other binding of it has failed, or will. `cpus`: those of its annotation.
    pub(super) fn bind(&mut self, pod: Uid, node: &NodeName, cpus: Option<CpuSet>, now: Moment) {
        let shown = self.accounts_for(node, pod);
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let before = record.bound.take().map(|bound| bound.node);
        let intent = record.intent.take();
        let elsewhere = intent.as_ref().map(|intent| intent.node.clone());
        let ours = intent.filter(|intent| intent.node == *node);
        record.cpus = match &ours {
            // The promise counts, because the author may change the annotation; but another leader may have bound the pod here, with as many other CPUs.
            Some(Ticket { cpus: promised, .. }) => {
                let other = |told: &CpuSet| promised.as_ref().is_some_and(|promised| promised.len() == told.len());
                cpus.filter(other).or(promised.clone())
            }
            None => cpus,
        };
        let foreign = ours.is_none();
        record.foreign = record.foreign.filter(|_| !foreign);
        record.bound = Some(Bound {
            node: node.clone(),
            since: now,
            running_since: None,
            shown,
            is_late: false,
            shown_once: shown,
            ours: !foreign,
        });
        if !shown {
            self.timers.entry(now + SILENCE_TIMEOUT).or_default().insert(pod);
        }
        for other in elsewhere.into_iter().chain(before).filter(|other| other != node) {
            self.remove_from_node(pod, &other);
        }
        self.add_to_node(pod, node);
        if foreign && !shown {
            self.note_foreign(pod, node);
        }
    }

    /// A pod that this process did not bind holds CPUs on the node: pods that it bound there may be refused because of that one.
    fn note_foreign(&mut self, foreign: Uid, node: &NodeName) {
        let pods = self.nodes.get(node).map(|known| known.pods.clone()).unwrap_or_default();
        for pod in pods.into_iter().filter(|pod| *pod != foreign) {
            let record = self.pods.get_mut(&pod).filter(|record| record.claim(node).is_some());
            if let Some(record) = record {
                record.foreign = Some(foreign);
            }
        }
    }

    /// The pod has ended, is deleted, or is not in a list of all pods. `refused`: why its node did not admit it.
    pub fn pod_gone(&mut self, pod: Uid, refused: Option<&str>, now: Moment) {
        let record = self.pods.entry(pod).or_default();
        if record.gone.is_some() {
            return;
        }
        record.gone = Some(now);
        let refused = refused.and_then(|reason| {
            let bound = record.bound.as_ref()?;
            Some(Refused {
                pod,
                node: bound.node.clone(),
                reason: reason.to_owned(),
                foreign: if bound.ours { record.foreign } else { Some(pod) },
            })
        });
        self.refused.extend(refused);
        // It may have been bound, and admitted, before it went: nothing will tell.
        if let Some(intent) = record.intent.clone() {
            self.bind(pod, &intent.node, intent.cpus, now);
        }
        let record = self.pods.entry(pod).or_default();
        record.left = record.bound.as_ref().map(|bound| bound.node.clone());
        if let Some(node) = record.left.clone() {
            self.departed.entry(node).or_default().insert(pod);
        }
        let unseen = record.bound.take_if(|bound| bound.shown_once).map(|bound| bound.node);
        let left = record.bound.as_ref().map(|bound| bound.node.clone());
        if let Some(node) = unseen {
            self.remove_from_node(pod, &node);
        }
        if let Some(node) = left {
            self.timers.entry(now + SETTLE_TIMEOUT).or_default().insert(pod);
            self.update_node(&node);
        }
        self.timers.entry(now + UID_RETENTION).or_default().insert(pod);
    }

    /// A list of all pods, of that version: those that are not in it are gone, unless a newer version of them was seen.
    pub fn pods_listed(&mut self, listed: &HashSet<Uid>, version: Version, now: Moment) {
        let known = self.pods.iter().filter(|(_, record)| record.gone.is_none());
        let gone = known.filter(|(uid, record)| record.version <= version && !listed.contains(*uid));
        let gone: Vec<Uid> = gone.map(|(uid, _)| *uid).collect();
        for pod in gone {
            self.pod_gone(pod, None, now);
        }
    }

    /// A node's object was added or changed.
    pub fn object_changed(&mut self, node: &NodeName, version: Version, described: R::Node, now: Moment) {
        let known = self.nodes.entry(node.clone()).or_default();
        if version <= known.object_version {
            return;
        }
        (known.object_version, known.object_changed_at) = (version, now);
        known.usable = self.rules.put_node(node, Some(described));
        let pods = known.pods.clone();
        for pod in pods {
            let shown = self.accounts_for(node, pod);
            let record = self.pods.get_mut(&pod);
            let Some(record) = record else { continue };
            let Some(bound) = record.bound.as_mut().filter(|bound| bound.node == *node) else {
                continue;
            };
            if bound.shown && !shown {
                (bound.since, bound.is_late) = (now, false);
                self.timers.entry(now + SILENCE_TIMEOUT).or_default().insert(pod);
            }
            bound.shown = shown;
            bound.shown_once |= shown;
            // The object accounts for a pod that has ended, too.
            if shown && record.gone.is_some() {
                record.bound = None;
                self.remove_from_node(pod, node);
            }
        }
        self.roomier.insert(node.clone());
        self.update_node(node);
    }

    /// The object was deleted; `version` is that of its deletion.
    pub fn object_deleted(&mut self, node: &NodeName, version: Version, now: Moment) {
        let known = self.nodes.entry(node.clone()).or_default();
        if version < known.object_version {
            return;
        }
        (known.object_version, known.object_changed_at) = (version, now);
        known.usable = self.rules.put_node(node, None);
        let pods = known.pods.clone();
        for pod in pods {
            let bound = self.pods.get_mut(&pod).and_then(|record| record.bound.as_mut());
            if let Some(bound) = bound.filter(|bound| bound.node == *node && bound.shown) {
                (bound.shown, bound.since) = (false, now);
            }
        }
        let forgotten = self.deleted_objects.entry(now + UID_RETENTION).or_default();
        forgotten.insert(node.clone());
        self.update_node(node);
    }

    /// A list of all objects, of that version: nodes that are not in it have none.
    pub fn objects_listed(&mut self, listed: &HashSet<NodeName>, version: Version, now: Moment) {
        let nodes = self.nodes.iter();
        let gone = nodes.filter(|(node, known)| known.object_version != 0 && !listed.contains(*node));
        let gone: Vec<NodeName> = gone.map(|(node, _)| node.clone()).collect();
        for node in gone {
            self.object_deleted(&node, version, now);
        }
    }

    /// Whether the node's object accounts for the pod: it shows the pod, or the pod gets no CPUs of its own.
    pub(super) fn accounts_for(&self, node: &str, pod: Uid) -> bool {
        let record = self.pods.get(&pod);
        let request = record.and_then(|record| record.request.as_ref());
        let shown_as = record.and_then(|record| record.shown_as).unwrap_or(pod);
        let usable = self.nodes.get(node).is_some_and(|known| known.usable);
        let gets_own_cpus = || request.is_none_or(|request| self.rules.own_cpus(node, request) != OwnCpus::Never);
        usable && (!gets_own_cpus() || self.rules.object_shows(node, shown_as))
    }
}
