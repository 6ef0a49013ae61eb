//! Commands that say why, and whether what is promised holds: the group "Check" of the help.

pub mod doctor;
pub mod ledger;
pub(crate) mod noise;
pub(crate) mod report;
pub(crate) mod verify;
pub(crate) mod why;
