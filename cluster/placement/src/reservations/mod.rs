//! Which CPUs of a node are promised to pods that the node's own object does not show yet. A state machine: pods and nodes' objects go in,
//! in any order and late; what is held on each node comes out, and whether a pod may be bound there. No I/O and no clock: the caller passes the time.
//!
//! What a node would do with a pod is the caller's, through the trait [`Rules`], so this module does not know what a node is.
//!
//! # What a pod holds
//!
//! A node's object says which pods have CPUs of their own. Until it shows a pod that was bound there, that pod *holds* what it
//! was promised: a claim. The binding writes the claim, because it sets the pod's node and the annotation with its CPUs at once. What is held follows from what
//! is known, so a restart that reads the same knows the same:
//!
//! | what is known of a pod | what it holds |
//! |---|---|
//! | a bind of it is under way: its outcome is not known | on the node it would be bound to |
//! | it is bound, and the node's object does not show it | on its node, also if the object showed it before: a container that restarts comes back. If it was bound here, it holds what it was promised, whatever its author changes later |
//! | it is bound, and the object shows it | nothing: the object accounts for it |
//! | it is gone (ended or deleted), and the object never showed it | on its node for [`SETTLE_TIMEOUT`] more: the node may have admitted it, and say so late |
//! | it is gone, and the object showed it once | nothing |
//!
//! Every event may come late, twice or out of order: pods and objects are ordered by their versions, and a UID that is gone stays gone.

mod binds;
mod records;
#[cfg(test)]
mod tests;
mod timeouts;
mod watched_objects;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_kubelet::Uid;
use stelia_placement_rules::evaluate::{Arrival, OwnCpus};

pub use binds::{BindNotStarted, BindRequest, Ticket};
use records::{NodeRecord, PodRecord};
use timeouts::UID_RETENTION;
pub use timeouts::{SETTLE_TIMEOUT, SILENCE_TIMEOUT};
pub use watched_objects::{ObservedPod, Refused};

/// Since any moment before all others, such as the program's start.
pub type Moment = Duration;
/// A `resourceVersion`. Kubernetes compares them as numbers since 1.35, and etcd has always counted up.
pub type Version = u64;
/// A Node's name.
pub type NodeName = Arc<str>;

/// What nodes would do with pods.
pub trait Rules {
    /// A node as its object describes it.
    type Node;
    /// What a pod requests.
    type Request: Clone;
    /// Why the node would not admit the pod.
    type Rejection;

    /// Stores a node's object, or `None` if it was deleted. Returns whether pods can be placed on the node.
    fn put_node(&mut self, node: &str, described: Option<Self::Node>) -> bool;

    /// Places the pod on the node beside the pods that hold CPUs there, in whatever order the node admits them. Returns the CPUs that the pod's annotation is
    /// to name; `None` if the node chooses them.
    ///
    /// # Errors
    /// The node would refuse the pod, or one of the others.
    fn place(
        &mut self,
        node: &str,
        held: Held<Self::Request>,
        request: &Self::Request,
    ) -> Result<Option<CpuSet>, Self::Rejection>;

    /// Whether and when the node would give a pod with this request CPUs of its own, so that its object will show the pod: soon after the bind, if kubelet gives
    /// them when it admits the pod, or when its VM registers, which its author may put off for ever.
    fn own_cpus(&self, node: &str, request: &Self::Request) -> OwnCpus;

    /// Whether the node's object shows the pod.
    fn object_shows(&self, node: &str, pod: Uid) -> bool;
}

/// The pods that hold CPUs on a node whose object does not show them, in the order in which they were promised.
pub type Held<Q> = Vec<(Uid, Arrival<Q>)>;

/// What is held on all nodes.
pub struct Reservations<R: Rules> {
    rules: R,
    pods: HashMap<Uid, PodRecord<R::Request>>,
    nodes: HashMap<NodeName, NodeRecord>,
    /// When pods that are bound should be shown, pods that are gone no longer hold CPUs, and are forgotten.
    timers: BTreeMap<Moment, BTreeSet<Uid>>,
    /// When nodes without an object are forgotten.
    deleted_objects: BTreeMap<Moment, BTreeSet<NodeName>>,
    /// Nodes on which what is held may have changed since [`Reservations::update_rules`].
    changed: BTreeSet<NodeName>,
    /// Nodes that may have more room than before.
    roomier: BTreeSet<NodeName>,
    /// Pods that are gone and not forgotten, by the node that they were bound to.
    departed: HashMap<NodeName, BTreeSet<Uid>>,
    /// Refusals since [`Reservations::take_refused`].
    refused: Vec<Refused>,
}

/// Why no pod at all is placed on a node now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the node has no NodeResourceTopology object that can be used")]
    NoObject,
    #[error("the node is silent: its object does not show pods that were bound more than {} s ago", SILENCE_TIMEOUT.as_secs())]
    Silent,
}

/// Numbers of pods by state, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReservationCounts {
    /// Binds whose outcome is not known.
    pub binding: usize,
    /// Bound, and not shown by the node's object.
    pub unseen: usize,
    /// Pods among those that this process did not bind.
    pub foreign: usize,
    /// Gone before the object showed them, and still counted.
    pub leaving: usize,
    pub silent_nodes: usize,
}

impl<R: Rules> Reservations<R> {
    pub fn new(rules: R) -> Self {
        Self {
            rules,
            pods: HashMap::new(),
            nodes: HashMap::new(),
            timers: BTreeMap::new(),
            deleted_objects: BTreeMap::new(),
            changed: BTreeSet::new(),
            roomier: BTreeSet::new(),
            departed: HashMap::new(),
            refused: Vec::new(),
        }
    }

    pub fn rules(&self) -> &R {
        &self.rules
    }

    pub fn rules_mut(&mut self) -> &mut R {
        &mut self.rules
    }

    /// What is held on a node.
    pub fn held(&self, node: &str) -> Held<R::Request> {
        let pods = self.nodes.get(node).into_iter().flat_map(|known| &known.pods);
        let held = pods.filter_map(|pod| {
            let record = self.pods.get(pod)?;
            let (cpus, is_ours) = record.claim(node)?;
            let bound = record.unseen().filter(|bound| &*bound.node == node);
            let arrival = Arrival {
                request: record.request.clone()?,
                cpus: cpus.cloned(),
                is_late: bound.is_some_and(|bound| bound.is_late),
                is_ours,
            };
            Some((*pod, arrival))
        });
        held.collect()
    }

    /// Passes what is held to the rules, for each node on which it may have changed.
    pub fn update_rules(&mut self, mut update: impl FnMut(&mut R, &str, Held<R::Request>)) {
        for node in std::mem::take(&mut self.changed) {
            let held = self.held(&node);
            update(&mut self.rules, &node, held);
        }
    }

    /// Whether the node's object has not shown a bound pod for [`SILENCE_TIMEOUT`].
    pub fn is_silent(&self, node: &str, now: Moment) -> bool {
        self.available(node, now) == Err(Unavailable::Silent)
    }

    /// Whether pods may be placed on the node now.
    ///
    /// # Errors
    /// Why not.
    pub fn available(&self, node: &str, now: Moment) -> Result<(), Unavailable> {
        let known = self.nodes.get(node).filter(|known| known.usable);
        let known = known.ok_or(Unavailable::NoObject)?;
        if known.is_silent(now) {
            Err(Unavailable::Silent)
        } else {
            Ok(())
        }
    }

    /// Whether the pod is bound, or may become so.
    pub fn is_known(&self, pod: Uid) -> bool {
        let record = self.pods.get(&pod);
        record.is_some_and(|record| record.bound.is_some() || record.intent.is_some())
    }

    /// The node that the pod is bound to; `None` if it is gone.
    pub fn bound_to(&self, pod: Uid) -> Option<NodeName> {
        let record = self.pods.get(&pod).filter(|record| record.gone.is_none())?;
        let bound = record.bound.as_ref()?;
        Some(bound.node.clone())
    }

    /// The nodes that may have more room than when this was asked last.
    pub fn take_roomier(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.roomier)
    }

    /// The pods that are gone from the node and whose CPUs still count there, with their requests: the object shows the pod, or the pod holds CPUs. The CPUs
    /// will be free when the node publishes next. If it did not within [`SILENCE_TIMEOUT`], it may never do so, and the pod is left out.
    pub fn departed(&self, node: &str, now: Moment) -> HashMap<Uid, Option<R::Request>> {
        let pods = self.departed.get(node).into_iter().flatten();
        let counted = pods.filter_map(|uid| {
            let record = self.pods.get(uid)?;
            let is_recent = record.gone.is_some_and(|gone| now <= gone + SILENCE_TIMEOUT);
            let counts = self.rules.object_shows(node, record.shown_as.unwrap_or(*uid)) || record.claim(node).is_some();
            (is_recent && counts).then(|| (*uid, record.request.clone()))
        });
        counted.collect()
    }

    /// Pods that were bound here and that their nodes refused; each is reported once.
    pub fn take_refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    pub fn counts(&self, now: Moment) -> ReservationCounts {
        let mut counts = ReservationCounts::default();
        for record in self.pods.values() {
            counts.binding += usize::from(record.intent.is_some());
            let Some(bound) = record.unseen() else { continue };
            match record.gone {
                Some(_) => counts.leaving += 1,
                None => {
                    counts.unseen += 1;
                    counts.foreign += usize::from(!bound.ours);
                }
            }
        }
        let silent = |known: &&NodeRecord| known.usable && known.is_silent(now);
        counts.silent_nodes = self.nodes.values().filter(silent).count();
        counts
    }

    /// Removes the pod from the node, unless it is bound there.
    fn remove_from_node(&mut self, pod: Uid, node: &NodeName) {
        let bound = self.pods.get(&pod).and_then(|record| record.bound.as_ref());
        let stays = bound.is_some_and(|bound| bound.node == *node);
        if let Some(known) = self.nodes.get_mut(node).filter(|_| !stays) {
            known.pods.retain(|one| *one != pod);
        }
        self.roomier.insert(node.clone());
        self.update_node(node);
    }

    /// Adds the pod to the node as the last one, unless it is there already.
    fn add_to_node(&mut self, pod: Uid, node: &NodeName) {
        let known = self.nodes.entry(node.clone()).or_default();
        if !known.pods.contains(&pod) {
            known.pods.push(pod);
        }
        self.update_node(node);
    }

    /// Derives again whether a node is silent, because what is held there may have changed.
    fn update_node(&mut self, node: &NodeName) {
        self.changed.insert(node.clone());
        let Some(known) = self.nodes.get(node) else { return };
        let pods = known.pods.iter().filter_map(|pod| self.pods.get(pod));
        let due = |record: &PodRecord<R::Request>| {
            let runs = known.usable && record.gone.is_none() && !record.ending;
            let request = record.request.as_ref().filter(|_| runs)?;
            // That it was shown once and is no longer is its own affair: its container ended, or restarts.
            let bound = record.unseen().filter(|bound| !bound.shown_once)?;
            let due = bound.since.max(known.object_changed_at) + SILENCE_TIMEOUT;
            (self.rules.own_cpus(node, request) == OwnCpus::AtAdmission).then_some(due)
        };
        let silent_after = pods.filter_map(due).min();
        if let Some(known) = self.nodes.get_mut(node) {
            known.silent_after = silent_after;
            if known.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}
