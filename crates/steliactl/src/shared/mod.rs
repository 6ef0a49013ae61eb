//! What commands of several groups use: the daemon, the kernel's files, how answers are written. Nothing here uses a command.

pub(crate) mod daemon;
pub(crate) mod files;
pub(crate) mod kernel;
pub(crate) mod located;
pub mod output;
