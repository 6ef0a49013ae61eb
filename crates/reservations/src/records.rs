//! What is remembered of a pod, and of a node.

use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::{Attempt, Moment, NodeName, Uid, Version};

/// A pod.
#[derive(Debug)]
pub(super) struct Record<Q> {
    /// `namespace/name`; `None` where nothing is promised to it any more.
    pub name: Option<Arc<str>>,
    /// `None` where nothing but its claim was seen.
    pub request: Option<Q>,
    /// What was chosen for it where it is bound.
    pub cpus: Option<CpuSet>,
    /// The newest version of it that was seen.
    pub version: Version,
    /// One of this process at most; what earlier ones left, by node.
    pub intents: Vec<Intent>,
    pub bound: Option<Bound>,
    /// Since when it is over, or deleted.
    pub gone: Option<Moment>,
    /// It is being deleted.
    pub ending: bool,
}

/// A bind that was begun.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub node: NodeName,
    pub attempt: Attempt,
    /// A call of this process waits for its outcome. Else that is not known: an answer was lost, or a former writer left it.
    pub open: bool,
    /// The pod's version that the binding demands: once the pod has another, the binding cannot succeed any more.
    pub version: Version,
    /// What was chosen for it there.
    pub cpus: Option<CpuSet>,
    pub since: Moment,
    /// Whether a foreign claim was there when it was evaluated, or came since.
    pub foreign: Option<Uid>,
}

/// Where it is bound.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub node: NodeName,
    pub since: Moment,
    /// Since when its containers run.
    pub started: Option<Moment>,
    /// Whether the node's object shows it, and whether it ever did.
    pub shown: bool,
    pub shown_once: bool,
    /// It came through here.
    pub ours: bool,
    pub foreign: Option<Uid>,
}

/// A node.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its object is there and can be used.
    pub usable: bool,
    /// The newest version of its object that was seen, be it of its deletion.
    pub version: Version,
    /// When its object changed last.
    pub alive: Moment,
    /// The newest version of its claim object; 0 without one.
    pub claims: Version,
    /// How often something became known that a promise must not pass over: a claim of another writer, a pod that others bound, a
    /// change of the node's object.
    pub surprises: u64,
    /// Every pod that is bound to it, or about to be, in the order in which they came.
    pub pods: Vec<Uid>,
    /// From then on it is silent.
    pub overdue: Option<Moment>,
    /// A pod holds something there of which it is not known what.
    pub unknown: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            usable: false,
            version: 0,
            alive: Moment::ZERO,
            claims: 0,
            surprises: 0,
            pods: Vec::new(),
            overdue: None,
            unknown: false,
        }
    }
}

impl Slot {
    /// Whether nothing is known of it but that it was there.
    pub(super) fn is_empty(&self) -> bool {
        !self.usable && self.pods.is_empty() && self.claims == 0 && self.version == 0
    }
}

impl<Q> Default for Record<Q> {
    fn default() -> Self {
        Self {
            name: None,
            request: None,
            cpus: None,
            version: 0,
            intents: Vec::new(),
            bound: None,
            gone: None,
            ending: false,
        }
    }
}

impl<Q> Record<Q> {
    pub(super) fn intents(&self, node: &str) -> impl Iterator<Item = &Intent> {
        self.intents.iter().filter(move |intent| &*intent.node == node)
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.intents.iter().any(|intent| !intent.open)
    }

    /// Where it is bound, if the node's object does not account for it.
    pub(super) fn unseen(&self) -> Option<&Bound> {
        self.bound.as_ref().filter(|bound| !bound.shown)
    }

    /// Whether it holds something on the node.
    pub(super) fn holds(&self, node: &str) -> bool {
        self.intents(node).next().is_some() || self.unseen().is_some_and(|bound| &*bound.node == node)
    }

    /// Whether it is on the node's list.
    pub(super) fn is_on(&self, node: &str) -> bool {
        self.intents(node).next().is_some() || self.bound.as_ref().is_some_and(|bound| &*bound.node == node)
    }

    /// The CPUs that were chosen, of each claim on the node.
    pub(super) fn claims(&self, node: &str) -> impl Iterator<Item = Option<&CpuSet>> {
        let bound = self
            .unseen()
            .filter(|bound| &*bound.node == node)
            .map(|_| self.cpus.as_ref());
        self.intents(node).map(|intent| intent.cpus.as_ref()).chain(bound)
    }
}
