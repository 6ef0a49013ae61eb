//! Reasons, and those of many nodes together: why nodes refuse a pod, what is wrong with them, what a ledger lacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use stelia_table::{Column, TextStyle, column, table};

/// Limit of the nodes that are named for a reason.
const MAX_NAMED_NODES: usize = 3;

/// Limit of the characters of a detail that stands beside each node's name.
const MAX_SHORT_DETAIL: usize = 24;

/// The reason of a node that was deleted and whose description is still there.
pub(crate) const NO_NODE: &str = "its Node does not exist";

/// Why a pod is not admitted, or would not be, or what else is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refusal {
    /// The same on all nodes that refuse it for this reason.
    #[serde(rename = "reason")]
    pub what: String,
    /// About this node.
    pub detail: String,
}

impl Refusal {
    pub fn new(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            detail: detail.into(),
        }
    }
}

/// All of them in a cell.
pub(crate) fn in_words(reasons: &[Refusal]) -> String {
    let words = reasons.iter().map(|reason| match reason.detail.as_str() {
        "" => reason.what.clone(),
        detail => format!("{} ({detail})", reason.what),
    });
    words.collect::<Vec<_>>().join("; ")
}

/// A reason and the nodes that refuse for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    pub reason: String,
    pub nodes: u64,
    /// Some of them, and what the reason is there.
    pub examples: Vec<Example>,
    /// Whether it is the same on all of them.
    #[serde(skip)]
    is_same: bool,
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
        let nodes = details.values().map(|nodes| nodes.len() as u64).sum();
        let is_same = details.len() == 1;
        let mut details: Vec<(&str, Vec<&str>)> = details.into_iter().collect();
        details.sort_by_key(|(_, nodes)| (Reverse(nodes.len()), nodes.first().copied()));
        let examples = details.into_iter().flat_map(|(detail, nodes)| {
            nodes.into_iter().map(move |node| Example {
                node: node.to_owned(),
                detail: detail.to_owned(),
            })
        });
        Group {
            reason: reason.to_owned(),
            nodes,
            examples: examples.take(MAX_NAMED_NODES).collect(),
            is_same,
        }
    });
    let mut groups: Vec<Group> = groups.collect();
    groups.sort_by_key(|group| Reverse(group.nodes));
    groups
}

/// `w-1, w-2, w-3, …`: the first of so many names.
pub(crate) fn listed<S: AsRef<str>>(named: &[S], all: u64) -> String {
    let words: Vec<&str> = named.iter().map(AsRef::as_ref).collect();
    let more = if (named.len() as u64) < all { ", …" } else { "" };
    words.join(", ") + more
}

impl Group {
    /// Some nodes and the detail; if it is not the same on all, each with its own, such as `w-1 (1 of 2), w-2 (2 of 2), …`, or that of the first
    /// where details are long.
    pub(crate) fn such_as(&self) -> String {
        let is_short = |one: &Example| one.detail.chars().count() <= MAX_SHORT_DETAIL;
        let has_own = !self.is_same && self.examples.iter().all(is_short);
        let named = self.examples.iter().map(|one| match one.detail.as_str() {
            detail if has_own && !detail.is_empty() => format!("{} ({detail})", one.node),
            _ => one.node.clone(),
        });
        let named = listed(&named.collect::<Vec<_>>(), self.nodes);
        match self.examples.first().map(|first| (first, first.detail.as_str())) {
            Some((_, detail)) if self.is_same && !detail.is_empty() => format!("{named}: {detail}"),
            Some((first, detail)) if !self.is_same && !has_own => format!("{named}; {}: {detail}", first.node),
            _ => named,
        }
    }
}

/// The reasons as a table; empty where there are none. `counted`: the heading of the number of nodes.
pub fn table_of(groups: &[Group], counted: &'static str, style: TextStyle) -> String {
    let columns: [Column<Group>; 3] = [
        column("REASON", |group: &Group| group.reason.clone()).wraps(),
        column(counted, |group: &Group| group.nodes.to_string()).right(),
        column("SUCH AS", Group::such_as).wraps(),
    ];
    if groups.is_empty() {
        String::new()
    } else {
        table(&columns, groups, style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_nodes_and_the_detail_once_if_all_have_the_same() {
        let of = |details: &[&str]| {
            let refusals = (1..).zip(details).map(|(number, detail)| {
                let name = format!("w-{number}");
                (name, Refusal::new("not Ready", *detail))
            });
            let refusals: Vec<(String, Refusal)> = refusals.collect();
            let groups = groups(refusals.iter().map(|(node, refusal)| (node.as_str(), refusal)));
            groups[0].such_as()
        };
        let (rack, other) = ("Kubelet stopped posting", "the network is not ready");
        for (details, expected) in [
            (
                &[other, rack, rack][..],
                "w-2 (Kubelet stopped posting), w-3 (Kubelet stopped posting), w-1 (the network is not ready)",
            ),
            (&[rack; 4], "w-1, w-2, w-3, …: Kubelet stopped posting"),
            (&[""; 5], "w-1, w-2, w-3, …"),
            (&["", "", "2 of 4"], "w-1, w-2, w-3 (2 of 4)"),
            (
                &[
                    "12 CPUs are wanted, free are 10",
                    "2 of 4",
                    "12 CPUs are wanted, free are 8",
                ],
                "w-1, w-2, w-3; w-1: 12 CPUs are wanted, free are 10",
            ),
        ] {
            assert_eq!(of(details), expected);
        }
    }

    #[test]
    fn a_taint_is_not_broken_inside_on_a_terminal_of_80_columns() {
        let taint = Refusal::new("taint node.kubernetes.io/unreachable:NoSchedule is not tolerated", "");
        let rejection = Refusal::new(
            "kubelet would reject it: TopologyAffinityError",
            "no NUMA node has 32 free CPUs",
        );
        let nodes: Vec<String> = (0..8).map(|number| format!("worker-00{number}")).collect();
        let both = nodes
            .iter()
            .flat_map(|node| [(node.as_str(), &taint), (node.as_str(), &rejection)]);
        let text = table_of(&groups(both), "NODES", crate::tests::terminal(80));
        assert!(text.contains("node.kubernetes.io/unreachable:NoSchedule "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
