//! Reasons, and those of many nodes together: why nodes refuse a pod, what is wrong with them, what a ledger lacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use stelia_table::{Column, TextStyle, column, table};

use crate::cluster::without_domain;

/// Limit of the nodes that are named for a reason.
pub(crate) const MAX_NAMED_NODES: usize = 3;

/// Limit of the details that are named for a reason, those of the most nodes first.
const MAX_DETAILS: usize = 2;

/// Limit of the characters of a detail that stands beside each node's name.
const MAX_SHORT_DETAIL: usize = 12;

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
    /// The nodes by detail, that of the most nodes first.
    #[serde(skip)]
    by_detail: Vec<(String, Vec<String>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Example {
    pub node: String,
    pub detail: String,
}

/// The reasons, those of the most nodes first. The examples are nodes with the detail that most nodes have.
pub fn groups<'a>(reasons: impl IntoIterator<Item = (&'a str, &'a Refusal)>) -> Vec<Group> {
    let mut found: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for (node, refusal) in reasons {
        let details = found.entry(&refusal.what).or_default();
        details.entry(&refusal.detail).or_default().push(node.to_owned());
    }
    let groups = found.into_iter().map(|(reason, details)| {
        let details = details.into_iter().map(|(detail, nodes)| (detail.to_owned(), nodes));
        let mut by_detail: Vec<(String, Vec<String>)> = details.collect();
        by_detail.sort_by_key(|(_, nodes)| (Reverse(nodes.len()), nodes.first().cloned()));
        let group = Group {
            reason: reason.to_owned(),
            nodes: by_detail.iter().map(|(_, nodes)| nodes.len() as u64).sum(),
            examples: Vec::new(),
            by_detail,
        };
        let mut examples = group.examples();
        if group.has_short_details() {
            examples.sort();
        }
        examples.truncate(MAX_NAMED_NODES);
        Group { examples, ..group }
    });
    let mut groups: Vec<Group> = groups.collect();
    groups.sort_by_key(|group| Reverse(group.nodes));
    groups
}

/// `w-1, w-2, w-3, …`. A single name is not replaced by an ellipsis.
pub(crate) fn listed<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let all = names.len();
    let named = if all > most.saturating_add(1) { most } else { all };
    let words: Vec<&str> = names.iter().take(named).map(AsRef::as_ref).collect();
    let more = if named < all { ", …" } else { "" };
    words.join(", ") + more
}

impl Group {
    /// Every node with its detail, those with the most frequent detail first.
    fn examples(&self) -> Vec<Example> {
        let examples = self.by_detail.iter().flat_map(|(detail, nodes)| {
            nodes.iter().map(|node| Example {
                node: node.clone(),
                detail: detail.clone(),
            })
        });
        examples.collect()
    }

    /// Whether the details are so short that each stands beside its node, such as `2 of 14`.
    fn has_short_details(&self) -> bool {
        let is_short = |detail: &str| (1..=MAX_SHORT_DETAIL).contains(&detail.chars().count());
        self.by_detail.iter().all(|(detail, _)| is_short(detail))
    }

    /// The nodes and the detail, or if nodes have different details, these by how many nodes have them: `8: w-1, w-2, w-3, …: kubelet
    /// stopped; 2: …`.
    pub(crate) fn such_as(&self) -> String {
        let words = |(detail, nodes): &(String, Vec<String>)| {
            let names: Vec<&str> = nodes.iter().map(|node| without_domain(node)).collect();
            match (listed(&names, MAX_NAMED_NODES), detail.as_str()) {
                (names, "") => names,
                (names, detail) => format!("{names}: {detail}"),
            }
        };
        let sorted = || {
            let mut examples = self.examples();
            examples.sort();
            examples.into_iter()
        };
        match self.by_detail.as_slice() {
            [] => String::new(),
            [same] => words(same),
            _ if self.has_short_details() => {
                let both = sorted().map(|one| format!("{} ({})", without_domain(&one.node), one.detail));
                listed(&both.collect::<Vec<_>>(), MAX_NAMED_NODES)
            }
            // Each node has its own.
            [(detail, nodes), ..] if nodes.len() == 1 => {
                let names = sorted().map(|one| without_domain(&one.node).to_owned());
                let names = listed(&names.collect::<Vec<_>>(), MAX_NAMED_NODES);
                format!("{names}; the first of them: {detail}")
            }
            several => {
                let named = several.iter().take(MAX_DETAILS);
                let mut named: Vec<String> = named
                    .map(|same| format!("{}: {}", same.1.len(), words(same).trim_end_matches('.')))
                    .collect();
                let more: usize = several.iter().skip(MAX_DETAILS).map(|(_, nodes)| nodes.len()).sum();
                named.extend((more > 0).then(|| format!("{more} others")));
                named.join("; ")
            }
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
    fn different_details_of_a_reason_are_named_by_how_many_nodes_have_them() {
        let of = |details: &[&str]| {
            let refusals = (1..).zip(details).map(|(number, detail)| {
                let name = format!("w-{number}.dc1");
                (name, Refusal::new("not Ready", *detail))
            });
            let refusals: Vec<(String, Refusal)> = refusals.collect();
            let groups = groups(refusals.iter().map(|(node, refusal)| (node.as_str(), refusal)));
            groups[0].such_as()
        };
        let (rack, other) = ("Kubelet stopped posting", "the network is not ready");
        for (details, expected) in [
            (
                &[other, rack, rack, rack, rack, rack][..],
                "5: w-2, w-3, w-4, …: Kubelet stopped posting; 1: w-1: the network is not ready",
            ),
            // A single further name is not left out.
            (&[rack; 4], "w-1, w-2, w-3, w-4: Kubelet stopped posting"),
            (&[""; 5], "w-1, w-2, w-3, …"),
            (&["2 of 4", "1 of 4"], "w-1 (2 of 4), w-2 (1 of 4)"),
            (
                &["the checksum is 1", "the checksum is 2", "the checksum is 3"],
                "w-1, w-2, w-3; the first of them: the checksum is 1",
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
