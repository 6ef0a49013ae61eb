//! Commands that change something: the group "Change" of the help.

pub(crate) mod deregister;
pub(crate) mod rebind;
pub(crate) mod reconcile;
pub(crate) mod resize;
