//! Who is on the way to a node, told as a whole by who keeps the reservations.

use super::{Change, Cluster};
use crate::evaluate::Arrival;
use crate::node::Uid;

impl Cluster {
    /// These pods are on their way to the node, in this order, and no others.
    pub fn expect(&mut self, name: &str, coming: Vec<(Uid, Arrival)>) -> Change {
        let at = self.names.get(name).copied();
        let Some((at, slot)) = at.and_then(|at| Some((at, self.nodes.get_mut(at)?))) else {
            return Change::default();
        };
        slot.coming = coming;
        self.restate(at)
    }
}
