//! Commands that say why, and whether what is promised holds: the group "Explain and check" of the help.

pub mod doctor;
pub(crate) mod explain;
pub mod ledger;
pub(crate) mod quiet;
pub(crate) mod report;
pub(crate) mod verify;
