//! Commands that change something: the group "Change" of the help.

pub(crate) mod rebalance;
pub(crate) mod reconcile;
pub(crate) mod release;
pub(crate) mod resize;
