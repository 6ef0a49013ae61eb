//! What is remembered of a pod, and of a node.

use stelia_cpus::CpuSet;

use super::{Moment, NodeName, Ticket, Uid, Version};

/// What is known of a pod.
#[derive(Debug)]
pub(super) struct PodRecord<Q> {
    /// As in [`ObservedPod`](super::ObservedPod).
    pub shown_as: Option<Uid>,
    /// `None` if nothing was read of the pod but its end.
    pub request: Option<Q>,
    /// The CPUs that were assigned to it on the node that it is bound to.
    pub cpus: Option<CpuSet>,
    /// The newest version of the pod that was observed.
    pub version: Version,
    /// The bind whose outcome is not known.
    pub intent: Option<Ticket>,
    pub bound: Option<Bound>,
    /// A pod of another scheduler that the node's object did not show when the bind was evaluated, or that came since. It is named if the node refuses this one.
    pub foreign: Option<Uid>,
    /// Since when the pod has ended, or is deleted.
    pub gone: Option<Moment>,
    /// The node that it was bound to then.
    pub left: Option<NodeName>,
    /// `metadata.deletionTimestamp` is set.
    pub ending: bool,
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
    /// Whether this process bound the pod. What another one was promised follows from the pod as its author left it.
    pub ours: bool,
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
    /// All pods that are bound to the node, or that a bind of is under way, in the order in which they were added.
    pub pods: Vec<Uid>,
    /// After this moment the node counts as silent.
    pub silent_after: Option<Moment>,
}

impl NodeRecord {
    /// Whether the node's object has not shown a bound pod for [`SILENCE_TIMEOUT`](super::SILENCE_TIMEOUT).
    pub(super) fn is_silent(&self, now: Moment) -> bool {
        self.silent_after.is_some_and(|at| now > at)
    }

    /// Whether nothing is known of the node any more.
    pub(super) fn is_empty(&self) -> bool {
        !self.usable && self.pods.is_empty() && self.object_version == 0
    }
}

impl<Q> Default for PodRecord<Q> {
    fn default() -> Self {
        Self {
            shown_as: None,
            request: None,
            cpus: None,
            version: 0,
            intent: None,
            bound: None,
            foreign: None,
            gone: None,
            left: None,
            ending: false,
        }
    }
}

impl<Q> PodRecord<Q> {
    /// The node that it is bound to, if the node's object does not account for the pod.
    pub(super) fn unseen(&self) -> Option<&Bound> {
        self.bound.as_ref().filter(|bound| !bound.shown)
    }

    /// What the pod holds on the node, if it does: the CPUs that are assigned to it, and whether this process promised them.
    pub(super) fn claim(&self, node: &str) -> Option<(Option<&CpuSet>, bool)> {
        let intent = self.intent.as_ref().filter(|intent| &*intent.node == node);
        let bound = self.unseen().filter(|bound| &*bound.node == node);
        let bound = bound.map(|bound| (self.cpus.as_ref(), bound.ours));
        intent.map(|intent| (intent.cpus.as_ref(), true)).or(bound)
    }
}
