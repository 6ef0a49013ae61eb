//! The health of one node, from what its publisher wrote.

use serde::Serialize;
use stelia_cpus::text::{excerpt, named};
use stelia_koordinator::report::stored::{Stored, Summary};
use stelia_table::Meaning;

use super::VmCounts;
use crate::cluster::Member;
use crate::nodes::number;
use crate::objects::NodeObject;
use crate::reasons::{self, NO_NODE, Refusal};

/// The reason of a node on which VMs can be admitted.
const READY: &str = "Ready";
/// The reason of a node whose object is there and cannot be read.
const NO_OBJECT: &str = "its object cannot be read";
/// The reason of a node with VMs that have no partition.
pub(super) const VMS_PINNED: &str = "VMs are pinned";
/// The reason of a Node whose condition `Ready` is not True.
const NODE_NOT_READY: &str = "the Node is not Ready";
/// The reason of a node with VMs that have a reason of degradation.
pub(super) const VMS_DEGRADED: &str = "VMs are degraded";
/// The reason of a node with VMs that wait for longer than a start takes.
const VMS_WAITING: &str = "VMs have waited for more than 120 s";
/// The reason of a node with problems that concern no VM alone.
const NODE_PROBLEMS: &str = "problems of the node";
/// Limit of the states that a reason names.
const MAX_NAMED_STATES: usize = 3;

/// The states by which VMs are counted.
pub const STATES: [&str; 7] = ["isolated", "pinned", "waiting", "shared", "evicted", "releasing", OTHER];
/// All states that this version does not know.
pub const OTHER: &str = "other";

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

    pub(crate) fn meaning(self) -> Meaning {
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
                vec![(NodeState::LeftBehind, Refusal::new(NO_NODE, command))]
            }
            (Some(problem), _) => vec![(NodeState::Unreadable, Refusal::new(NO_OBJECT, problem))],
            (None, Some(stored)) => wrong(stored, ready, member.unusable(), vms.as_ref()),
            // Whether it is meant to publish is not known.
            (None, None) if member.node_problem.is_some() => Vec::new(),
            (None, None) => vec![(NodeState::Unpublished, Refusal::new("it publishes nothing", ""))],
        };
        if let Some(problem) = &member.node_problem {
            let reason = Refusal::new("its Node cannot be read", problem);
            found.insert(0, (NodeState::Unreadable, reason));
        }
        if let Some(cause) = member.not_ready() {
            // A machine without power publishes nothing, and what it published last stays.
            found.insert(0, (NodeState::NodeNotReady, Refusal::new(NODE_NOT_READY, cause)));
        }
        let version = summary.map(|summary| excerpt::name(&summary.version));
        Some(Self {
            name: member.name.clone(),
            health: found.iter().map(|(state, _)| *state).min().unwrap_or(NodeState::Ok),
            version: version.filter(|version| !version.is_empty()),
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

    /// How many VMs are in a state, as a cell.
    pub(super) fn in_state(&self, state: &str) -> String {
        number(self.vms.as_ref().map(|vms| vms.count(state)))
    }

    /// The reasons as a cell.
    pub(super) fn reason(&self) -> String {
        reasons::in_words(&self.reasons)
    }
}

impl From<&Summary> for VmCounts {
    fn from(summary: &Summary) -> Self {
        let mut counts = Self {
            by_state: STATES.map(|state| (state, 0)).into(),
            degraded: summary.degraded,
            waiting_too_long: summary.waiting_too_long,
        };
        for (state, count) in &summary.instances {
            let known = STATES.into_iter().find(|known| known == state).unwrap_or(OTHER);
            let sum = counts.by_state.entry(known).or_default();
            *sum = sum.saturating_add(*count);
        }
        counts
    }
}

/// Everything that is wrong. `unusable`: the reason that the node published for which its CPUs must not be used.
fn wrong(
    stored: &Stored,
    ready: Option<bool>,
    unusable: Option<&str>,
    vms: Option<&VmCounts>,
) -> Vec<(NodeState, Refusal)> {
    let mut found = Vec::new();
    let mut add = |state, what: &str, detail: &str| found.push((state, Refusal::new(what, detail)));
    let summary = stored.summary.as_ref();
    if unusable == Some("away") {
        // What follows is as it was when the daemon was seen last.
        add(NodeState::Away, "steliad does not run", "");
    }
    if let Some(problem) = &stored.problem {
        add(NodeState::Unreadable, NO_OBJECT, problem);
    }
    let silent = summary.filter(|summary| summary.reason.trim().is_empty());
    let silent = silent.map(|_| "it does not say whether VMs can be admitted");
    if let Some(problem) = stored.summary_problem.as_deref().or(silent) {
        add(NodeState::Unreadable, "its summary cannot be read", problem);
    }
    let not_ready = summary.filter(|summary| !summary.reason.trim().is_empty() && summary.reason != READY);
    match (not_ready, unusable) {
        (Some(summary), _) => {
            let detail = excerpt::cause(&summary.message);
            add(NodeState::NotReady, &excerpt::name(&summary.reason), &detail);
        }
        (None, Some(word)) if word.trim().is_empty() => {
            let detail = "isolation.stelia.io/state is empty";
            add(NodeState::Unreadable, "its state cannot be read", detail);
        }
        (None, Some(word)) if word != "away" => add(NodeState::NotReady, &excerpt::name(word), ""),
        // The label of a node whose daemon is away is false for that reason.
        (None, None) if ready == Some(false) => add(NodeState::NotReady, "no VM can be admitted", ""),
        (None, _) => {}
    }
    if let Some(states) = summary.and_then(unknown_states) {
        add(NodeState::Unreadable, "VMs in states that are not known", &states);
    }
    if let Some(codes) = summary.and_then(problems) {
        add(NodeState::Degraded, NODE_PROBLEMS, &codes);
    }
    if let Some(vms) = vms {
        let counts = [
            (NodeState::Degraded, VMS_DEGRADED, vms.degraded),
            (NodeState::Waiting, VMS_WAITING, vms.waiting_too_long),
            (NodeState::Pinned, VMS_PINNED, vms.count("pinned")),
        ];
        for (state, reason, count) in counts.into_iter().filter(|(.., count)| *count > 0) {
            add(state, reason, &format!("{count} of {}", vms.total()));
        }
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
