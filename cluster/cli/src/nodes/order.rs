//! Which nodes are listed, and in which order.

use std::cmp::Reverse;

use stelia_cpus::text::named;

use super::{Nodes, Row};
use crate::health::NodeState;

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
    pub fn listed(mut self, states: &[NodeState], order: NodeOrder) -> Self {
        let is_asked = |row: &Row| row.state.is_some_and(|state| states.contains(&state));
        self.nodes.retain(|row| states.is_empty() || is_asked(row));
        self.nodes.sort_by(|one, other| one.name.cmp(&other.name));
        match order {
            NodeOrder::Trouble => {
                let trouble = |row: &Row| (row.state.is_none(), row.state, row.warnings.is_empty());
                self.nodes.sort_by_key(trouble);
            }
            NodeOrder::Name => {}
            NodeOrder::Largest => self.nodes.sort_by_key(|row| Reverse(row.largest_vm_cpus)),
            NodeOrder::Free => self.nodes.sort_by_key(|row| (row.admits_none, Reverse(row.free_cpus))),
        }
        self
    }
}
