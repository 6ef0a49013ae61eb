//! What one node says to a pod, and the reasons of many nodes together.

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_table::{Column, TextStyle, column, table};
use stelia_text::excerpt;

use crate::chooser::{Chooser, Refusal};
use crate::cluster::{Member, without_domain};
use crate::eligible;
use crate::pod_request::PodRequest;

/// Limit of the nodes that are named for a reason.
pub(crate) const MAX_NAMED_NODES: usize = 3;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    pub reason: String,
    pub nodes: u64,
    /// The first of them, and what the reason is there.
    pub examples: Vec<Example>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub node: String,
    pub detail: String,
}

/// The reasons, those of the most nodes first.
pub fn groups<'a>(reasons: impl IntoIterator<Item = (&'a str, &'a Refusal)>) -> Vec<Group> {
    let mut found: BTreeMap<&str, Group> = BTreeMap::new();
    for (node, refusal) in reasons {
        let group = found.entry(&refusal.what).or_insert_with(|| Group {
            reason: refusal.what.clone(),
            nodes: 0,
            examples: Vec::new(),
        });
        group.nodes += 1;
        if group.examples.len() < MAX_NAMED_NODES {
            group.examples.push(Example {
                node: node.to_owned(),
                detail: refusal.detail.clone(),
            });
        }
    }
    let mut groups: Vec<Group> = found.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes));
    groups
}

const COLUMNS: [Column<Group>; 3] = [
    column("REASON", |group: &Group| group.reason.clone()).wraps(),
    column("NODES", |group: &Group| group.nodes.to_string()).right(),
    column("SUCH AS", such_as).wraps(),
];

fn such_as(group: &Group) -> String {
    let mut details = group.examples.iter().map(|example| &example.detail);
    let first = details.next();
    let same = details.all(|detail| Some(detail) == first);
    let are_short = group
        .examples
        .iter()
        .all(|example| (1..=MAX_SHORT_DETAIL).contains(&example.detail.chars().count()));
    let names: Vec<&str> = group
        .examples
        .iter()
        .map(|example| without_domain(&example.node))
        .collect();
    let more = if group.nodes as usize > names.len() {
        ", …"
    } else {
        ""
    };
    match (first, same) {
        (Some(detail), _) if detail.is_empty() => format!("{}{more}", names.join(", ")),
        (Some(detail), true) => format!("{}{more}: {detail}", names.join(", ")),
        // Counts such as "2 of 2" differ from node to node.
        (Some(_), false) if are_short => {
            let both = |example: &Example| format!("{} ({})", without_domain(&example.node), example.detail);
            let examples: Vec<String> = group.examples.iter().map(both).collect();
            format!("{}{more}", examples.join(", "))
        }
        (Some(detail), false) => format!("{}: {detail}", names.first().copied().unwrap_or_default()),
        (None, _) => String::new(),
    }
}

/// The reasons as a table; empty where there are none.
pub fn table_of(groups: &[Group], style: TextStyle) -> String {
    match groups.is_empty() {
        true => String::new(),
        false => table(&COLUMNS, groups, style),
    }
}
