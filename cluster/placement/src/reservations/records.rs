//! What is remembered of a pod, and of a node.

use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::{AttemptId, Moment, NodeName, Uid, Version};

/// What is known of a pod.
#[derive(Debug)]
pub(super) struct PodRecord<Q> {
    /// `namespace/name`; `None` if nothing is promised to the pod any more.
    pub name: Option<Arc<str>>,
    /// As in [`ObservedPod`](super::ObservedPod).
    pub shown_as: Option<Uid>,
    /// `None` if only the pod's claim was observed, and not the pod.
    pub request: Option<Q>,
    /// The CPUs that were assigned to it on the node that it is bound to.
    pub cpus: Option<CpuSet>,
    /// The newest version of the pod that was observed.
    pub version: Version,
    /// At most one bind of this process, and those that earlier processes left, by node.
    pub intents: Vec<Intent>,
    pub bound: Option<Bound>,
    /// Since when the pod has ended, or is deleted.
    pub gone: Option<Moment>,
    /// The node that it was bound to then.
    pub left: Option<NodeName>,
    /// `metadata.deletionTimestamp` is set.
    pub ending: bool,
}

/// A bind that was begun.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub node: NodeName,
    pub attempt: AttemptId,
    /// Whether a call of this process waits for the outcome. Otherwise the outcome is undecided: an answer was lost, or a former writer
    /// left the bind.
    pub open: bool,
    /// The pod's version that the binding demands: once the pod has another, the binding cannot succeed any more.
    pub version: Version,
    /// The CPUs that are assigned to the pod there.
    pub cpus: Option<CpuSet>,
    pub since: Moment,
    /// A pod of another scheduler that the node's object did not show when the bind was evaluated, or that came since. It is named if the
    /// node refuses the pod.
    pub foreign: Option<Uid>,
}

/// The node that a pod is bound to.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub node: NodeName,
    pub since: Moment,
    /// Since when its containers are known to run. kubelet says so, not the pod's author.
    pub running_since: Option<Moment>,
    /// Whether the node's object shows the pod.
    pub shown: bool,
    /// It is to get its CPUs when its VM registers, and did not for so long that it may never do so.
    pub is_late: bool,
    /// Whether the node's object ever showed the pod.
    pub shown_once: bool,
    /// Whether this program bound the pod, in this process or an earlier one: there was a claim of it on the node.
    pub ours: bool,
    /// As in [`Intent`].
    pub foreign: Option<Uid>,
}

/// What is known of a node.
#[derive(Debug, Default)]
pub(super) struct NodeRecord {
    /// Whether the node's object exists and can be used.
    pub usable: bool,
    /// The newest version of the node's object that was observed, also the version of its deletion.
    pub object_version: Version,
    /// When the node's object last changed.
    pub object_changed_at: Moment,
    /// The newest version of the node's claim object; 0 without one.
    pub claims_version: Version,
    /// How often something was observed that invalidates promises which are not written yet: a claim of another writer, a pod that
    /// another scheduler bound, a change of the node's object.
    pub invalidations: u64,
    /// All pods that are bound to the node, or that a bind of is under way or undecided, in the order in which they were added.
    pub pods: Vec<Uid>,
    /// After this moment the node counts as silent.
    pub silent_after: Option<Moment>,
    /// Whether a pod holds CPUs there of which only the claim is known.
    pub has_unknown_claim: bool,
}

impl NodeRecord {
    /// Whether nothing is known of the node any more.
    pub(super) fn is_empty(&self) -> bool {
        !self.usable && self.pods.is_empty() && self.claims_version == 0 && self.object_version == 0
    }
}

impl<Q> Default for PodRecord<Q> {
    fn default() -> Self {
        Self {
            name: None,
            shown_as: None,
            request: None,
            cpus: None,
            version: 0,
            intents: Vec::new(),
            bound: None,
            gone: None,
            left: None,
            ending: false,
        }
    }
}

impl<Q> PodRecord<Q> {
    pub(super) fn intents(&self, node: &str) -> impl Iterator<Item = &Intent> {
        self.intents.iter().filter(move |intent| &*intent.node == node)
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.intents.iter().any(|intent| !intent.open)
    }

    /// The node that it is bound to, if the node's object does not account for the pod.
    pub(super) fn unseen(&self) -> Option<&Bound> {
        self.bound.as_ref().filter(|bound| !bound.shown)
    }

    /// Whether this program promised the pod CPUs of the node, which the node's object does not account for.
    pub(super) fn is_promised(&self, node: &str) -> bool {
        let bound = self.unseen().filter(|bound| bound.ours && &*bound.node == node);
        bound.is_some() || self.intents(node).next().is_some()
    }

    /// Whether the pod holds CPUs on the node.
    pub(super) fn holds(&self, node: &str) -> bool {
        self.intents(node).next().is_some() || self.unseen().is_some_and(|bound| &*bound.node == node)
    }

    /// Whether the pod belongs into [`NodeRecord::pods`] of the node.
    pub(super) fn is_listed_on(&self, node: &str) -> bool {
        self.intents(node).next().is_some() || self.bound.as_ref().is_some_and(|bound| &*bound.node == node)
    }

    /// The assigned CPUs of each claim of the pod on the node, and whether this program promised them.
    pub(super) fn claims(&self, node: &str) -> impl Iterator<Item = (Option<&CpuSet>, bool)> {
        let bound = self
            .unseen()
            .filter(|bound| &*bound.node == node)
            .map(|bound| (self.cpus.as_ref(), bound.ours));
        self.intents(node)
            .map(|intent| (intent.cpus.as_ref(), true))
            .chain(bound)
    }
}
