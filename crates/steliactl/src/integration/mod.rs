//! Commands whose output other programs read: the group "Node and integration" of the help.

pub mod metrics;
pub(crate) mod node_topology;
