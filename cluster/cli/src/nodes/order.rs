//! Which nodes are listed, and in which order.

use std::cmp::Reverse;

use stelia_cpus::text::named;

use super::{Nodes, Row};

/// The states by which nodes are chosen. A newer publisher may write others.
pub const STATES: [&str; 9] = [
    "usable",
    "cordoned",
    "node-not-ready",
    "not-ready",
    "away",
    "unusable",
    "unreadable",
    "unpublished",
    "left-behind",
];

named! {
    /// By what rows are ordered.
    pub enum NodeOrder {
        /// By state, what needs attention first.
        Trouble = "trouble",
        Name = "name",
        /// The node with room for the largest VM first.
        Largest = "largest",
        /// The node with the most free CPUs first, of those that admit VMs.
        Free = "free",
    }
}

impl Nodes {
    /// The nodes in these states, or all of them if none is named, in this order; equal ones by name.
    pub fn listed(mut self, states: &[&str], order: NodeOrder) -> Self {
        self.nodes
            .retain(|row| states.is_empty() || states.contains(&row.state.as_str()));
        self.nodes.sort_by(|one, other| one.name.cmp(&other.name));
        match order {
            NodeOrder::Trouble => self.nodes.sort_by_key(trouble),
            NodeOrder::Name => {}
            NodeOrder::Largest => self.nodes.sort_by_key(|row| Reverse(row.largest_vm_cpus)),
            NodeOrder::Free => self.nodes.sort_by_key(|row| (row.admits_none, Reverse(row.free_cpus))),
        }
        self
    }
}

/// What needs attention first, in the order of `health`.
fn trouble(row: &Row) -> u8 {
    match row.state.as_str() {
        _ if row.is_without_steliad => 6,
        _ if row.is_not_ready => 0,
        "left-behind" => 3,
        "unpublished" => 2,
        "usable" if row.warnings.is_empty() => 5,
        "usable" | "cordoned" => 4,
        _ => 1,
    }
}
