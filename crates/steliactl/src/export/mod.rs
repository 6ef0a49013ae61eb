//! What other programs read: the group "Export" of the help.

pub(crate) mod metrics;
pub(crate) mod topology;
