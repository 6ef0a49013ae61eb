//! What one node says to a pod, and the reasons of many nodes together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use stelia_cpus::text::excerpt;
use stelia_node_plan::planned_nodes;
use stelia_table::{Column, TextStyle, column, table};

use crate::chooser::{Chooser, DeviceLocality, Refusal};
use crate::cluster::{Member, without_domain};
use crate::eligible;
use crate::pod_request::PodRequest;

/// Limit of the nodes that are named for a reason.
pub(crate) const MAX_NAMED_NODES: usize = 3;

/// Limit of the details that are named for a reason, those of the most nodes first.
const MAX_DETAILS: usize = 2;

/// Limit of the characters of a detail that stands beside each node's name.
const MAX_SHORT_DETAIL: usize = 12;

/// The reason of a node that was deleted and whose description is still there.
pub(crate) const NO_NODE: &str = "its Node does not exist";

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What more room would not change: labels, taints, its own word.
    pub fixed: Vec<Refusal>,
    /// What the scheduler counts.
    pub requests: Vec<Refusal>,
    /// The answer of who chooses its CPUs.
    pub placement: Result<(), Refusal>,
    /// Whether its CPUs and devices would be on the same NUMA nodes, if it is admitted; `None` also where that is not published.
    pub device_locality: Option<DeviceLocality>,
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
            device_locality: chooser.device_locality(pod_request),
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
    pub fn locality(&self) -> Option<planned_nodes::NodesVerdict> {
        let device_locality = self.device_locality.as_ref().filter(|_| self.has_room() == Some(true));
        device_locality.map(|locality| locality.verdict)
    }

    /// Where its CPUs and devices would be, if it has room and they would not be on the same NUMA nodes.
    pub fn apart(&self) -> Option<Refusal> {
        let device_locality = self
            .device_locality
            .as_ref()
            .filter(|_| self.has_room() == Some(true))?;
        let what = match device_locality.verdict {
            planned_nodes::NodesVerdict::OneNode | planned_nodes::NodesVerdict::SameNodes => return None,
            planned_nodes::NodesVerdict::Spread => {
                "CPUs and devices would be on more NUMA nodes than necessary if all were free"
            }
            planned_nodes::NodesVerdict::Uncertain => "CPUs and devices may not be on the same NUMA nodes",
            planned_nodes::NodesVerdict::Apart => "CPUs and devices would not be on the same NUMA nodes",
            planned_nodes::NodesVerdict::NoCpus => "the container with the devices has no exclusive CPUs",
        };
        Some(Refusal {
            what: what.to_owned(),
            detail: device_locality.words.clone(),
        })
    }

    /// Every reason against it.
    pub fn refusals(&self) -> Vec<Refusal> {
        let placement = self.placement.as_ref().err();
        self.fixed
            .iter()
            .chain(&self.requests)
            .chain(placement)
            .cloned()
            .collect()
    }
}

/// Every reason against a node that more room would not change.
pub(crate) fn fixed(pod_request: &PodRequest, member: &Member) -> Vec<Refusal> {
    let refusal = |what: &str, detail| Refusal {
        what: what.to_owned(),
        detail,
    };
    let left_behind = member.is_left_behind.then(|| refusal(NO_NODE, String::new()));
    let rules = member.node.as_ref();
    let rules = rules.map(|node| eligible::rules(pod_request, &member.name, node));
    let unusable = member
        .unusable()
        .map(|state| refusal("the node says that its CPUs must not be used", excerpt::name(state)));
    let fixed = left_behind.into_iter().chain(rules.into_iter().flatten());
    fixed.chain(unusable).collect()
}

/// A reason and the nodes that refuse for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    pub reason: String,
    pub nodes: u64,
    /// Some of them, and what the reason is there.
    pub examples: Vec<Example>,
    /// The details, that of the most nodes first.
    #[serde(skip)]
    pub(crate) details: Vec<SameDetail>,
}

/// The nodes on which a reason has the same detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SameDetail {
    pub(crate) detail: String,
    pub(crate) nodes: u64,
    /// The first of them.
    pub(crate) examples: Vec<Example>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub node: String,
    pub detail: String,
}

/// The reasons, those of the most nodes first. The examples are nodes with the detail that most nodes have.
pub fn groups<'a>(reasons: impl IntoIterator<Item = (&'a str, &'a Refusal)>) -> Vec<Group> {
    let mut found: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (node, refusal) in reasons {
        let details = found.entry(&refusal.what).or_default();
        details.entry(&refusal.detail).or_default().push(node);
    }
    let groups = found.into_iter().map(|(reason, details)| {
        let details = details.into_iter().map(|(detail, nodes)| {
            let example = |node: &&str| Example {
                node: (*node).to_owned(),
                detail: detail.to_owned(),
            };
            SameDetail {
                detail: detail.to_owned(),
                nodes: nodes.len() as u64,
                examples: nodes.iter().take(MAX_NAMED_NODES + 1).map(example).collect(),
            }
        });
        let mut details: Vec<SameDetail> = details.collect();
        let first = |same: &SameDetail| same.examples.first().map(|example| example.node.clone());
        details.sort_by_key(|same| (Reverse(same.nodes), first(same)));
        let mut examples: Vec<&Example> = details.iter().flat_map(|same| &same.examples).collect();
        if are_of_nodes(&details) {
            examples.sort_by_key(|example| &example.node);
        }
        Group {
            reason: reason.to_owned(),
            nodes: details.iter().map(|same| same.nodes).sum(),
            examples: examples.into_iter().take(MAX_NAMED_NODES).cloned().collect(),
            details,
        }
    });
    let mut groups: Vec<Group> = groups.collect();
    groups.sort_by_key(|group| Reverse(group.nodes));
    groups
}

const COLUMNS: [Column<Group>; 3] = [
    column("REASON", |group: &Group| group.reason.clone()).wraps(),
    column("NODES", |group: &Group| group.nodes.to_string()).right(),
    column("SUCH AS", such_as).wraps(),
];

/// `w-1, w-2, w-3, …`. A single name is not replaced by an ellipsis.
pub(crate) fn listed(names: &[&str], all: u64, most: usize) -> String {
    if all as usize > most.saturating_add(1) || all as usize > names.len() {
        format!("{}, …", names.iter().take(most).copied().collect::<Vec<_>>().join(", "))
    } else {
        names.join(", ")
    }
}

/// Whether the details are so short that each stands beside its node, such as `2 of 14`.
fn are_of_nodes(details: &[SameDetail]) -> bool {
    let is_short = |same: &SameDetail| (1..=MAX_SHORT_DETAIL).contains(&same.detail.chars().count());
    details.iter().all(is_short)
}

/// The nodes and the detail, or if nodes have different details, these by how many nodes have them: `8: w-1, w-2, w-3, …: kubelet stopped; 2: …`.
fn such_as(group: &Group) -> String {
    let mut examples: Vec<&Example> = group.details.iter().flat_map(|same| &same.examples).collect();
    examples.sort_by_key(|example| &example.node);
    let examples = examples.into_iter().take(MAX_NAMED_NODES + 1);
    if group.details.len() > 1 && are_of_nodes(&group.details) {
        let both = |example: &Example| format!("{} ({})", without_domain(&example.node), example.detail);
        let examples: Vec<String> = examples.map(both).collect();
        let examples: Vec<&str> = examples.iter().map(String::as_str).collect();
        return listed(&examples, group.nodes, MAX_NAMED_NODES);
    }
    let words = |same: &SameDetail| {
        let names = same.examples.iter().map(|example| without_domain(&example.node));
        let names = listed(&names.collect::<Vec<_>>(), same.nodes, MAX_NAMED_NODES);
        match same.detail.as_str() {
            "" => names,
            detail => format!("{names}: {detail}"),
        }
    };
    match group.details.as_slice() {
        [] => String::new(),
        [same] => words(same),
        // Each node has its own.
        [same, _, ..] if same.nodes == 1 => {
            let names: Vec<&str> = examples.map(|example| without_domain(&example.node)).collect();
            let names = listed(&names, group.nodes, MAX_NAMED_NODES);
            format!("{names}; the first of them: {}", same.detail)
        }
        several => {
            let named = several.iter().take(MAX_DETAILS);
            let mut named: Vec<String> = named
                .map(|same| format!("{}: {}", same.nodes, words(same).trim_end_matches('.')))
                .collect();
            let more: u64 = several.iter().skip(MAX_DETAILS).map(|same| same.nodes).sum();
            if more > 0 {
                named.push(format!("{more} others"));
            }
            named.join("; ")
        }
    }
}

/// The reasons as a table; empty where there are none.
pub fn table_of(groups: &[Group], style: TextStyle) -> String {
    if groups.is_empty() {
        String::new()
    } else {
        table(&COLUMNS, groups, style)
    }
}
