//! What the watches tell: pods and nodes' objects.

use std::collections::HashSet;
use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::records::Bound;
use super::{Moment, NodeName, Reservations, Rules, SETTLE_TIMEOUT, UID_RETENTION, Uid, Version};

/// A pod as the API server has it.
#[derive(Debug, Clone)]
pub struct ObservedPod<Q> {
    pub uid: Uid,
    /// `namespace/name`.
    pub name: Arc<str>,
    pub version: Version,
    pub node: Option<NodeName>,
    pub request: Q,
    /// The CPUs in its annotation.
    pub cpus: Option<CpuSet>,
    /// `status.phase` is Running.
    pub running: bool,
    /// `metadata.deletionTimestamp` is set.
    pub ending: bool,
}

/// A pod that came through here, and that its node refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub pod: Uid,
    pub node: NodeName,
    /// kubelet's: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`, …
    pub reason: String,
    /// A pod that another scheduler bound to the node meanwhile, or that the node had not shown yet; `None` where there was
    /// none.
    pub foreign: Option<Uid>,
}

impl<R: Rules> Reservations<R> {
    /// A pod was added or changed, and is not over.
    pub fn pod(&mut self, seen: ObservedPod<R::Request>, now: Moment) {
        let uid = seen.uid;
        let record = self.pods.entry(uid).or_default();
        if record.gone.is_some() || seen.version < record.version {
            return;
        }
        record.version = seen.version;
        record.request = Some(seen.request);
        record.ending = seen.ending;
        record.name = Some(seen.name);
        match (seen.node, &mut record.bound) {
            // A binding that demands a version which the pod has no longer has failed, or will. A pod is never unbound: where its
            // binding was answered before this version was seen, this one is older.
            (None, None) => {
                record.name = record.name.take_if(|_| !record.intents.is_empty());
                self.abandon(uid, seen.version);
                self.touch_all(uid);
            }
            (None, Some(_)) => {}
            (Some(node), Some(bound)) if bound.node == node => {
                bound.started = bound.started.or(seen.running.then_some(now));
                record.cpus = seen.cpus.or(record.cpus.take());
                record.name = record.name.take_if(|_| !bound.shown);
                self.touch(&node);
            }
            (Some(node), _) => {
                let started = seen.running.then_some(now);
                self.bind(uid, &node, seen.cpus, started, now);
            }
        }
    }

    /// The pod is bound there, by whomever: all other bindings of it have failed, or will.
    pub(super) fn bind(
        &mut self,
        pod: Uid,
        node: &NodeName,
        cpus: Option<CpuSet>,
        started: Option<Moment>,
        now: Moment,
    ) {
        let shown = self.shows(node, pod);
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let before = record.bound.take().map(|bound| bound.node);
        let intents = std::mem::take(&mut record.intents);
        let ours = intents.iter().find(|intent| intent.node == *node);
        record.cpus = cpus.or(ours.and_then(|intent| intent.cpus.clone()));
        record.bound = Some(Bound {
            node: node.clone(),
            since: now,
            started,
            shown,
            shown_once: shown,
            ours: ours.is_some(),
            foreign: ours.and_then(|intent| intent.foreign),
        });
        record.name = record.name.take_if(|_| !shown);
        let foreign = ours.is_none();
        self.undecided.remove(&pod);
        let elsewhere = intents.into_iter().map(|intent| intent.node).chain(before);
        for other in elsewhere.filter(|other| other != node) {
            self.leave(pod, &other);
        }
        self.enter(pod, node);
        if foreign && !shown {
            self.surprise(node);
            self.blame(pod, node);
        }
    }

    /// What was promised there before was promised without knowing this.
    pub(super) fn surprise(&mut self, node: &NodeName) {
        if let Some(slot) = self.nodes.get_mut(node) {
            slot.surprises += 1;
        }
    }

    /// A pod of others holds something on the node: whoever of ours waits there may be refused because of it.
    fn blame(&mut self, foreign: Uid, node: &NodeName) {
        let pods = self.nodes.get(node).map(|slot| slot.pods.clone()).unwrap_or_default();
        for pod in pods.into_iter().filter(|pod| *pod != foreign) {
            let Some(record) = self.pods.get_mut(&pod) else {
                continue;
            };
            for intent in record.intents.iter_mut().filter(|intent| intent.node == *node) {
                intent.foreign = Some(foreign);
            }
            if let Some(bound) = record.bound.as_mut().filter(|bound| !bound.shown) {
                bound.foreign = Some(foreign);
            }
        }
    }

    /// The pod is over, deleted, or not in a list of all. `refused`: why its node did not admit it.
    pub fn pod_gone(&mut self, pod: Uid, refused: Option<&str>, now: Moment) {
        let record = self.pods.entry(pod).or_default();
        if record.gone.is_some() {
            return;
        }
        record.gone = Some(now);
        record.name = None;
        let intents = std::mem::take(&mut record.intents);
        let unseen = record.bound.take_if(|bound| bound.shown_once).map(|bound| bound.node);
        if let (Some(reason), Some(bound)) = (refused, record.bound.as_ref().filter(|bound| bound.ours)) {
            self.refused.push(Refused {
                pod,
                node: bound.node.clone(),
                reason: reason.to_owned(),
                foreign: bound.foreign,
            });
        }
        let left = record.bound.as_ref().map(|bound| bound.node.clone());
        self.undecided.remove(&pod);
        for node in intents.into_iter().map(|intent| intent.node).chain(unseen) {
            self.leave(pod, &node);
        }
        if let Some(node) = left {
            self.timers.entry(now + SETTLE_TIMEOUT).or_default().insert(pod);
            self.touch(&node);
        }
        self.timers.entry(now + UID_RETENTION).or_default().insert(pod);
    }

    /// A list of all pods, of that version: those that are not in it are gone, unless a newer version of them was seen.
    pub fn only_pods(&mut self, listed: &HashSet<Uid>, version: Version, now: Moment) {
        let gone = self.pods.iter().filter(|(uid, record)| {
            let newest = record
                .intents
                .iter()
                .map(|intent| intent.version)
                .fold(record.version, Version::max);
            record.gone.is_none() && newest <= version && !listed.contains(*uid)
        });
        let gone: Vec<Uid> = gone.map(|(uid, _)| *uid).collect();
        for pod in gone {
            self.pod_gone(pod, None, now);
        }
    }

    /// A node's object was added or changed.
    pub fn object(&mut self, node: &NodeName, version: Version, described: R::Node, now: Moment) {
        let slot = self.nodes.entry(node.clone()).or_default();
        if version <= slot.version {
            return;
        }
        (slot.version, slot.alive) = (version, now);
        slot.usable = self.rules.put(node, Some(described));
        slot.surprises += 1;
        let pods = slot.pods.clone();
        for pod in pods {
            let shown = self.shows(node, pod);
            let Some(record) = self.pods.get_mut(&pod) else {
                continue;
            };
            let Some(bound) = record.bound.as_mut().filter(|bound| bound.node == *node) else {
                continue;
            };
            if bound.shown && !shown {
                bound.since = now;
            }
            bound.shown = shown;
            bound.shown_once |= shown;
            record.name = record.name.take_if(|_| !shown);
            // The object accounts for what is over too, as long as it does.
            if shown && record.gone.is_some() {
                record.bound = None;
                self.leave(pod, node);
            }
        }
        self.roomier.insert(node.clone());
        self.touch(node);
    }

    /// The object was deleted; `version` is that of its deletion.
    pub fn object_gone(&mut self, node: &NodeName, version: Version, now: Moment) {
        let slot = self.nodes.entry(node.clone()).or_default();
        if version < slot.version {
            return;
        }
        (slot.version, slot.alive) = (version, now);
        slot.usable = self.rules.put(node, None);
        let pods = slot.pods.clone();
        for pod in pods {
            let bound = self.pods.get_mut(&pod).and_then(|record| record.bound.as_mut());
            if let Some(bound) = bound.filter(|bound| bound.node == *node && bound.shown) {
                (bound.shown, bound.since) = (false, now);
            }
        }
        self.touch(node);
    }

    /// A list of all objects, of that version: nodes that are not in it have none.
    pub fn only_objects(&mut self, listed: &HashSet<NodeName>, version: Version, now: Moment) {
        let nodes = self
            .nodes
            .iter()
            .filter(|(node, slot)| slot.version != 0 && !listed.contains(*node));
        let gone: Vec<NodeName> = nodes.map(|(node, _)| node.clone()).collect();
        for node in gone {
            self.object_gone(&node, version, now);
        }
    }

    /// Whether the node's object accounts for the pod: it shows it, or has nothing of it to show.
    pub(super) fn shows(&self, node: &str, pod: Uid) -> bool {
        let request = self.pods.get(&pod).and_then(|record| record.request.as_ref());
        let usable = self.nodes.get(node).is_some_and(|slot| slot.usable);
        let owns = || request.is_none_or(|request| self.rules.owns(node, request));
        usable && (!owns() || self.rules.shows(node, pod))
    }

    /// What is known of the pod changed, wherever it is.
    pub(super) fn touch_all(&mut self, pod: Uid) {
        let Some(record) = self.pods.get(&pod) else { return };
        let intents = record.intents.iter().map(|intent| intent.node.clone());
        let nodes: Vec<NodeName> = intents
            .chain(record.bound.as_ref().map(|bound| bound.node.clone()))
            .collect();
        for node in nodes {
            self.touch(&node);
        }
    }
}
