//! What other programs read: the group "Export" of the help.

pub mod metrics;
pub(crate) mod topology;
