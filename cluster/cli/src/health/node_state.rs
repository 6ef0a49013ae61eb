//! The health of one node, from what its publisher wrote.

use serde::Serialize;
use stelia_cpus::text::{excerpt, named};
use stelia_koordinator::report::stored::{Stored, Summary};
use stelia_table::Meaning;

use super::VmCounts;
use crate::chooser::Refusal;
use crate::cluster::Member;
use crate::objects::NodeObject;
use crate::verdict::NO_NODE;

/// The reason of a node on which VMs can be admitted.
const READY: &str = "Ready";
/// The reason of a node with VMs that have no partition.
pub(super) const VMS_PINNED: &str = "VMs are pinned";
/// The reason of a Node whose condition `Ready` is not True.
const NODE_NOT_READY: &str = "the Node is not Ready";
/// The reason of a node with VMs that have a reason of degradation.
pub(super) const VMS_DEGRADED: &str = "VMs are degraded";
/// The reason of a node with problems that concern no VM alone.
const NODE_PROBLEMS: &str = "problems of the node";
/// Limit of the states that a reason names.
const MAX_NAMED_STATES: usize = 3;

/// The states of VMs that are counted by name.
const STATES: [&str; 6] = ["isolated", "pinned", "waiting", "shared", "evicted", "releasing"];

named! {
    /// How a node is. The order is that of trouble: of several that apply, the first counts.
    #[derive(PartialOrd, Ord)]
    pub enum NodeState {
        /// Its daemon does not run.
        Away = "away",
        /// It is meant to run steliad, and publishes nothing.
        Unpublished = "unpublished",
        /// What it publishes cannot be read.
        Unreadable = "unreadable",
        /// Its Node is not Ready.
        NodeNotReady = "node-not-ready",
        /// No VM can be admitted: kubelet's file cannot be used, kubelet's configuration cannot be read, …
        NotReady = "not-ready",
        /// VMs are admitted, and some have a reason of degradation.
        Degraded = "degraded",
        /// VMs are admitted, and some run on shared CPUs for longer than a start takes.
        Waiting = "waiting",
        /// Its object is there, and its Node is not.
        LeftBehind = "left-behind",
        /// VMs are admitted, and some have no partition.
        Pinned = "pinned",
        Ok = "ok",
    }
}

impl NodeState {
    /// Whether the command fails because of it. A VM may be pinned by the administrator's choice.
    pub(super) fn is_failure(self) -> bool {
        !matches!(self, Self::Pinned | Self::Ok)
    }

    pub(super) fn meaning(self) -> Meaning {
        match self {
            Self::Ok => Meaning::Good,
            Self::Degraded | Self::Waiting | Self::LeftBehind | Self::Pinned => Meaning::Attention,
            Self::Away | Self::Unpublished | Self::Unreadable | Self::NodeNotReady | Self::NotReady => Meaning::Broken,
        }
    }
}

/// A node that is meant to run steliad.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeHealth {
    pub name: String,
    pub health: NodeState,
    /// steliad's version; null where it is not published.
    pub version: Option<String>,
    /// Whether VMs can be admitted, as its label says; null where nobody sets that.
    pub ready: Option<bool>,
    /// Null where they are not published.
    pub vms: Option<VmCounts>,
    /// What is wrong.
    pub reasons: Vec<Refusal>,
    pub written_us: Option<u64>,
}

impl NodeHealth {
    /// `None` of a node that publishes nothing and is not meant to.
    pub fn of(member: &Member) -> Option<Self> {
        let ready = member.node.as_ref().and_then(NodeObject::is_ready);
        let problem = member.report_problem.as_deref();
        // Two different objects of one name: neither counts.
        let stored = member.report.as_ref().map(|report| &report.stored);
        let stored = stored.filter(|_| problem.is_none());
        let is_meant = || member.node.as_ref().is_some_and(NodeObject::is_for_vms);
        let is_unreadable = problem.is_some() || member.node_problem.is_some();
        if stored.is_none() && !is_unreadable && !is_meant() {
            return None;
        }
        let is_left_behind = member.is_left_behind;
        let summary = stored.and_then(|stored| stored.summary.as_ref());
        let summary = summary.filter(|_| !is_left_behind);
        let vms = summary.map(VmCounts::from);
        let mut found = match (problem, stored) {
            _ if is_left_behind => {
                let command = format!("kubectl delete noderesourcetopology {}", member.name);
                vec![(NodeState::LeftBehind, reason(NO_NODE, command))]
            }
            (Some(problem), _) => vec![(NodeState::Unreadable, reason("its object cannot be read", problem))],
            (None, Some(stored)) => wrong(stored, ready, member.unusable(), vms),
            // Whether it is meant to publish is not known.
            (None, None) if member.node_problem.is_some() => Vec::new(),
            (None, None) => vec![(NodeState::Unpublished, reason("it publishes nothing", ""))],
        };
        if let Some(problem) = &member.node_problem {
            found.insert(0, (NodeState::Unreadable, reason("its Node cannot be read", problem)));
        }
        if let Some(cause) = member.not_ready() {
            // A machine without power publishes nothing, and what it published last stays.
            found.insert(0, (NodeState::NodeNotReady, reason(NODE_NOT_READY, cause)));
        }
        Some(Self {
            name: member.name.clone(),
            health: found.iter().map(|(state, _)| *state).min().unwrap_or(NodeState::Ok),
            version: summary
                .map(|summary| excerpt::name(&summary.version))
                .filter(|version| !version.is_empty()),
            ready,
            vms,
            reasons: found.into_iter().map(|(_, reason)| reason).collect(),
            written_us: member.report.as_ref().and_then(|report| report.written_us),
        })
    }

    /// Whether its VMs belong to the sums and are not published.
    pub(super) fn has_unknown_vms(&self) -> bool {
        self.vms.is_none() && self.health != NodeState::LeftBehind
    }

    /// What the table shows beside the name and the number of VMs, without `-o wide`.
    pub(super) fn shown(&self) -> (NodeState, Option<String>, String) {
        (self.health, self.version.clone(), self.reason())
    }

    /// Adds the VMs of a node that has no row of its own.
    pub(super) fn add_vms(&mut self, other: &Self) {
        self.vms = match (self.vms, other.vms) {
            (Some(one), Some(two)) => Some(one.sum(two)),
            (one, two) => one.or(two),
        };
    }

    /// The reasons as a cell.
    pub(super) fn reason(&self) -> String {
        let words = self.reasons.iter().map(|reason| {
            if reason.detail.is_empty() {
                reason.what.clone()
            } else {
                format!("{} ({})", reason.what, reason.detail)
            }
        });
        words.collect::<Vec<_>>().join("; ")
    }
}

impl From<&Summary> for VmCounts {
    fn from(summary: &Summary) -> Self {
        let count = |state: &str| summary.instances.get(state).copied().unwrap_or(0);
        Self {
            isolated: count("isolated"),
            pinned: count("pinned"),
            waiting: count("waiting"),
            shared: count("shared"),
            evicted: count("evicted"),
            releasing: count("releasing"),
            other: summary
                .instances
                .iter()
                .filter(|(state, _)| !STATES.contains(&state.as_str()))
                .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)),
            degraded: summary.degraded,
            waiting_too_long: summary.waiting_too_long,
        }
    }
}

fn reason(what: &str, detail: impl Into<String>) -> Refusal {
    Refusal {
        what: what.to_owned(),
        detail: detail.into(),
    }
}

/// Everything that is wrong. `unusable`: the reason that the node published for which its CPUs must not be used.
fn wrong(
    stored: &Stored,
    ready: Option<bool>,
    unusable: Option<&str>,
    vms: Option<VmCounts>,
) -> Vec<(NodeState, Refusal)> {
    let mut found = Vec::new();
    let summary = stored.summary.as_ref();
    if unusable == Some("away") {
        // What follows is as it was when the daemon was seen last.
        found.push((NodeState::Away, reason("steliad does not run", "")));
    }
    if let Some(problem) = &stored.problem {
        found.push((NodeState::Unreadable, reason("its object cannot be read", problem)));
    }
    let silent = summary.filter(|summary| summary.reason.trim().is_empty());
    let silent = silent.map(|_| "it does not say whether VMs can be admitted");
    if let Some(problem) = stored.summary_problem.as_deref().or(silent) {
        found.push((NodeState::Unreadable, reason("its summary cannot be read", problem)));
    }
    let not_ready = summary.filter(|summary| !summary.reason.trim().is_empty() && summary.reason != READY);
    match (not_ready, unusable) {
        (Some(summary), _) => found.push((
            NodeState::NotReady,
            reason(&excerpt::name(&summary.reason), excerpt::cause(&summary.message)),
        )),
        (None, Some(word)) if word.trim().is_empty() => found.push((
            NodeState::Unreadable,
            reason("its state cannot be read", "isolation.stelia.io/state is empty"),
        )),
        (None, Some(word)) if word != "away" => {
            found.push((NodeState::NotReady, reason(&excerpt::name(word), "")));
        }
        // The label of a node whose daemon is away is false for that reason.
        (None, None) if ready == Some(false) => {
            found.push((NodeState::NotReady, reason("no VM can be admitted", "")));
        }
        (None, _) => {}
    }
    if let Some(states) = summary.and_then(unknown_states) {
        found.push((
            NodeState::Unreadable,
            reason("VMs in states that are not known", states),
        ));
    }
    if let Some(codes) = summary.and_then(problems) {
        found.push((NodeState::Degraded, reason(NODE_PROBLEMS, codes)));
    }
    if let Some(vms) = vms.filter(|vms| vms.degraded > 0) {
        let detail = format!("{} of {}", vms.degraded, vms.total());
        found.push((NodeState::Degraded, reason(VMS_DEGRADED, detail)));
    }
    if let Some(waiting) = vms.and_then(waiting) {
        found.push((NodeState::Waiting, waiting));
    }
    if let Some(vms) = vms.filter(|vms| vms.pinned > 0) {
        let detail = format!("{} of {}", vms.pinned, vms.total());
        found.push((NodeState::Pinned, reason(VMS_PINNED, detail)));
    }
    found
}

/// The codes of the node's problems, but that of kubelet's file where no VM is admitted for it.
fn problems(summary: &Summary) -> Option<String> {
    let codes = summary.problems.iter().map(|code| excerpt::name(code));
    let codes: Vec<String> = codes.take(MAX_NAMED_STATES).collect();
    (!codes.is_empty() && summary.reason == READY).then(|| codes.join(", "))
}

/// The VMs in states that this version does not know, such as `7 resting`: whether they are isolated is not known either.
fn unknown_states(summary: &Summary) -> Option<String> {
    let is_unknown = |(state, count): &(&String, &u64)| **count > 0 && !STATES.contains(&state.as_str());
    let unknown = summary.instances.iter().filter(is_unknown);
    let words = unknown.map(|(state, count)| format!("{count} {}", excerpt::name(state)));
    let words: Vec<String> = words.take(MAX_NAMED_STATES).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// The reason that VMs wait for too long.
fn waiting(vms: VmCounts) -> Option<Refusal> {
    let count = vms.waiting_too_long;
    (count > 0).then(|| {
        reason(
            "VMs have waited for more than 120 s",
            format!("{count} of {}", vms.total()),
        )
    })
}
