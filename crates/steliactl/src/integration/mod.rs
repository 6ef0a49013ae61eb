//! Commands whose output other programs read, and the way to another program: the group "Node and integration" of the help.

pub(crate) mod cluster;
pub(crate) mod completions;
pub mod metrics;
pub(crate) mod node_topology;
