//! The file for the cluster's publisher: the node, its VMs and their events (`crates/api/src/publication/` has its format).
//!
//! A task in the entry points' runtime follows the engine's view and its audits, and replaces the file where its bytes differ. What blocks is done
//! on another thread, one thing at a time. While publishing is switched off nothing is read, kept or timed.

mod event_log;
mod folder;
mod node;
mod pod_messages;
mod status;
mod task;

pub(crate) use folder::Directory;
#[cfg(test)]
pub(crate) use folder::Folder;
pub(crate) use task::run;
