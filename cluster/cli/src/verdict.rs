//! What one node says to a pod.

use stelia_cpus::text::excerpt;
use stelia_node_plan::planned_nodes::NodesVerdict;

use crate::chooser::{Chooser, DeviceLocality};
use crate::cluster::Member;
use crate::eligible;
use crate::pod_request::PodRequest;
use crate::reasons::{NO_NODE, Refusal};

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What more room would not change: labels, taints, its own word.
    pub fixed: Vec<Refusal>,
    /// What the scheduler counts.
    pub requests: Vec<Refusal>,
    /// The answer of who chooses its CPUs, and whether CPUs and devices would be on the same NUMA nodes; `None` where that is not published.
    pub placement: Result<Option<DeviceLocality>, Refusal>,
    /// How much that answer says.
    pub basis: Basis,
}

/// By what a node's CPUs are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    Cpus,
    Amounts,
    Nothing,
}

impl Verdict {
    pub fn of(pod_request: &PodRequest, member: &Member, chooser: &Chooser) -> Self {
        let requests = member.node.as_ref();
        let requests = requests.map(|node| eligible::requests(&pod_request.requests, node, &member.used));
        Self {
            fixed: fixed(pod_request, member),
            requests: requests.unwrap_or_default(),
            placement: chooser.admit(pod_request),
            basis: match chooser {
                Chooser::Kubelet(_) | Chooser::Steliad(_) => Basis::Cpus,
                Chooser::Amounts(_) => Basis::Amounts,
                Chooser::Nobody(_) => Basis::Nothing,
            },
        }
    }

    /// Whether the pod has room; `None` where nobody can tell.
    pub fn has_room(&self) -> Option<bool> {
        match (self.basis, self.fixed.is_empty() && self.requests.is_empty()) {
            (_, false) => Some(false),
            (Basis::Nothing, true) => None,
            (_, true) => Some(self.placement.is_ok()),
        }
    }

    /// Whether its CPUs and devices would be on the same NUMA nodes, if it has room.
    pub fn locality(&self) -> Option<NodesVerdict> {
        self.locality_with_room().map(|locality| locality.verdict)
    }

    fn locality_with_room(&self) -> Option<&DeviceLocality> {
        let locality = self.placement.as_ref().ok()?.as_ref();
        locality.filter(|_| self.has_room() == Some(true))
    }

    /// Where its CPUs and devices would be, if it has room and they would not be on the same NUMA nodes.
    pub fn apart(&self) -> Option<Refusal> {
        let locality = self.locality_with_room()?;
        let what = match locality.verdict {
            NodesVerdict::OneNode | NodesVerdict::SameNodes => return None,
            NodesVerdict::Spread => "CPUs and devices would be on more NUMA nodes than necessary if all were free",
            NodesVerdict::Uncertain => "CPUs and devices may not be on the same NUMA nodes",
            NodesVerdict::Apart => "CPUs and devices would not be on the same NUMA nodes",
            NodesVerdict::NoCpus => "the container with the devices has no exclusive CPUs",
        };
        Some(Refusal::new(what, locality.words.clone()))
    }

    /// Every reason against it.
    pub fn refusals(&self) -> Vec<Refusal> {
        let all = self.fixed.iter().chain(&self.requests);
        all.chain(self.placement.as_ref().err()).cloned().collect()
    }
}

/// Every reason against a node that more room would not change.
pub(crate) fn fixed(pod_request: &PodRequest, member: &Member) -> Vec<Refusal> {
    let left_behind = member.is_left_behind.then(|| Refusal::new(NO_NODE, ""));
    let rules = member.node.as_ref();
    let rules = rules.map(|node| eligible::rules(pod_request, &member.name, node));
    let what = "the node says that its CPUs must not be used";
    let unusable = member.unusable().map(|state| Refusal::new(what, excerpt::name(state)));
    let fixed = left_behind.into_iter().chain(rules.into_iter().flatten());
    fixed.chain(unusable).collect()
}
