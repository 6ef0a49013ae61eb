//! Commands that show the node as it is: the group "View" of the help.

pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod monitor;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod top;
