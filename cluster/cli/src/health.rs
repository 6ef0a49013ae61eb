//! `health`: what is wrong on which nodes, and which versions run where, from what the nodes publish.

mod node_state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_table::{Column, Meaning, Render, TextStyle, column, counted, properties, table};

use crate::cluster::{Cluster, each};
use crate::nodes::number;
use crate::objects::Problem;
use crate::reasons::{Group, groups, table_of};
pub use node_state::{NodeHealth, NodeState, OTHER, STATES};

/// The answer.
#[derive(Debug, Serialize)]
pub struct Health {
    pub nodes: Vec<NodeHealth>,
    /// Nodes that publish nothing and are not meant to run steliad.
    pub without_steliad: u64,
    /// How many of the nodes are in which state; states without a node are left out.
    pub states: Vec<Count>,
    pub versions: Vec<Count>,
    pub vms: VmCounts,
    /// What is wrong, with the nodes where it is.
    pub reasons: Vec<Group>,
    pub problems: Vec<Problem>,
    /// How many nodes do not work as they should.
    #[serde(skip)]
    broken: u64,
    /// How many of the nodes publish neither a version nor numbers of VMs.
    #[serde(skip)]
    without_summary: u64,
    /// How many objects could not be read and do not say which node they describe.
    #[serde(skip)]
    unreadable_without_name: u64,
}

/// How many nodes have this state or version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    pub name: String,
    pub nodes: u64,
}

/// The sums over the nodes that publish them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VmCounts {
    /// How many VMs are in each of [`STATES`].
    #[serde(flatten)]
    pub by_state: BTreeMap<&'static str, u64>,
    /// In whatever state: with a reason of degradation.
    pub degraded: u64,
    /// Those that are waiting for more than 120 s.
    pub waiting_too_long: u64,
}

impl VmCounts {
    /// How many are in one of [`STATES`].
    pub fn count(&self, state: &str) -> u64 {
        self.by_state.get(state).copied().unwrap_or(0)
    }

    fn add(&mut self, other: &Self) {
        for (state, count) in &other.by_state {
            let sum = self.by_state.entry(state).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.degraded = self.degraded.saturating_add(other.degraded);
        self.waiting_too_long = self.waiting_too_long.saturating_add(other.waiting_too_long);
    }

    fn total(&self) -> u64 {
        self.by_state.values().copied().fold(0, u64::saturating_add)
    }

    fn in_words(&self) -> String {
        let states = STATES.into_iter().filter(|state| self.count(state) > 0);
        let states = states.map(|state| match state {
            OTHER => format!("{} in other states", self.count(state)),
            state => format!("{} {state}", self.count(state)),
        });
        let states: Vec<String> = states.collect();
        let mut words = self.total().to_string();
        if !states.is_empty() {
            words += &format!(": {}", states.join(", "));
        }
        if self.degraded > 0 {
            words += &format!("; {} degraded", self.degraded);
        }
        words
    }
}

/// A column of the VMs in a state.
const fn state_column(heading: &'static str, cell: fn(&NodeHealth) -> String) -> Column<NodeHealth> {
    column(heading, cell).wide().right()
}

/// The columns of the table.
pub const COLUMNS: [Column<NodeHealth>; 9] = [
    column("NODE", |node: &NodeHealth| node.name.clone())
        .yields(1)
        .shortens(),
    column("HEALTH", |node: &NodeHealth| node.health.name().to_owned()).means(|node| node.health.meaning()),
    column("VERSION", |node: &NodeHealth| node.version.clone().unwrap_or_default()).yields(2),
    column("VMS", |node: &NodeHealth| {
        number(node.vms.as_ref().map(VmCounts::total))
    })
    .right(),
    state_column("ISOLATED", |node| node.in_state("isolated")),
    state_column("PINNED", |node| node.in_state("pinned")),
    state_column("WAITING", |node| node.in_state("waiting")),
    state_column("DEGRADED", |node| number(node.vms.as_ref().map(|vms| vms.degraded))).means(|node| match &node.vms {
        Some(vms) if vms.degraded > 0 => Meaning::Attention,
        _ => Meaning::Plain,
    }),
    column("REASON", NodeHealth::reason).wraps().or_nothing(),
];

impl Health {
    /// That of the cluster's nodes.
    pub fn of(cluster: &Cluster) -> Self {
        let mut all: Vec<NodeHealth> = each(&cluster.members, NodeHealth::of).into_iter().flatten().collect();
        all.sort_by_cached_key(|node| (node.health, node.name.clone()));
        let counted = |names: &mut dyn Iterator<Item = String>| {
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            names.for_each(|name| *counts.entry(name).or_default() += 1);
            let counts = counts.into_iter().map(|(name, nodes)| Count { name, nodes });
            let mut counts: Vec<Count> = counts.collect();
            counts.sort_by_key(|count| std::cmp::Reverse(count.nodes));
            counts
        };
        let mut health = Self {
            without_steliad: (cluster.members.len() - all.len()) as u64,
            states: counted(&mut all.iter().map(|node| node.health.name().to_owned())),
            versions: counted(&mut all.iter().filter_map(|node| node.version.clone())),
            vms: VmCounts::default(),
            reasons: grouped(&all),
            problems: cluster.problems.stored().to_vec(),
            without_summary: all.iter().filter(|node| node.has_unknown_vms()).count() as u64,
            unreadable_without_name: cluster.unreadable_without_name,
            broken: all.iter().filter(|node| node.health.is_failure()).count() as u64,
            nodes: Vec::new(),
        };
        let vms = all.iter().filter_map(|node| node.vms.as_ref());
        vms.for_each(|vms| health.vms.add(vms));
        health.nodes = all;
        health
    }

    /// How many nodes are meant to run steliad.
    fn all(&self) -> u64 {
        self.states.iter().map(|count| count.nodes).sum()
    }
}

/// The reasons of the nodes. What may be the administrator's choice comes behind what is trouble.
fn grouped(nodes: &[NodeHealth]) -> Vec<Group> {
    let reasons = nodes.iter().flat_map(|node| {
        let reasons = node.reasons.iter();
        reasons.map(move |reason| (node.name.as_str(), reason))
    });
    let mut groups = groups(reasons);
    groups.sort_by_key(|group| group.reason == node_state::VMS_PINNED);
    groups
}

/// `3 ok, 1 away`.
fn list(counts: &[Count], of: impl Fn(&Count) -> String) -> String {
    counts.iter().map(of).collect::<Vec<_>>().join(", ")
}

impl Render for Health {
    fn text(&self, style: TextStyle) -> String {
        let mut nodes = match list(&self.states, |count| format!("{} {}", count.nodes, count.name)) {
            states if states.is_empty() => "none publishes".to_owned(),
            states => format!("{}: {states}", self.all()),
        };
        if self.without_steliad > 0 {
            nodes += &format!("; {} without steliad", counted(self.without_steliad, "node"));
        }
        let on = |count: &Count| format!("{} on {}", count.name, counted(count.nodes, "node"));
        let versions = match list(&self.versions, on) {
            versions if versions.is_empty() => "not published".to_owned(),
            versions => versions,
        };
        let mut vms = self.vms.in_words();
        if self.without_summary > 0 {
            vms += &format!("; not published by {}", counted(self.without_summary, "node"));
        }
        let lines = [("Nodes", nodes), ("Versions", versions), ("VMs", vms)];
        let mut parts = vec![properties(lines, style), table_of(&self.reasons, "NODES", style)];
        let is_shown = |node: &&NodeHealth| style.wide || node.health.is_failure();
        let shown: Vec<&NodeHealth> = self.nodes.iter().filter(is_shown).collect();
        if !shown.is_empty() {
            let rows = shown.into_iter().cloned().map(|mut node| {
                // The messages are in the table of reasons above.
                if style.width.is_some() && !style.wide {
                    node.reasons.iter_mut().for_each(|reason| reason.detail.clear());
                }
                node
            });
            parts.push(table(&COLUMNS, &rows.collect::<Vec<_>>(), style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        let broken = self.broken;
        let verb = if broken == 1 { "needs" } else { "need" };
        let nodes = match (self.all(), broken) {
            (0, _) => Some("no node publishes, and none is labelled stelia.io/steliad=true".to_owned()),
            (_, 0) => None,
            (all, _) => Some(format!("{broken} of {} {verb} attention", counted(all, "node"))),
        };
        // Whose health such an object would tell is not known.
        let unread = self.unreadable_without_name;
        let objects = (unread > 0).then(|| format!("{} could not be read", counted(unread, "object")));
        let failures: Vec<String> = nodes.into_iter().chain(objects).collect();
        (!failures.is_empty()).then(|| failures.join("; "))
    }
}
