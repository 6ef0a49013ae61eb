//! The daemon: calls, signals, and what it says of the node and its VMs.

mod candidates;
mod client;
mod condition;
mod failure;
mod fold;
mod name;
pub(crate) mod node;
mod pod;
mod reported;
mod selection;
pub(crate) mod signals;

pub(crate) use candidates::vms;
pub(crate) use client::{CALL_TIMEOUT, Client, connect, reason_of};
pub(crate) use condition::{Condition, age, counts, fact, is_in_trouble, note, reasons};
pub(crate) use failure::Failure;
pub(crate) use fold::{fold, whose};
pub(crate) use name::{VmPattern, fitting, is_glob, no_instance, perhaps_meant, uid_prefix_note};
pub(crate) use node::{Description, OnlineCpus, Owner, owner};
pub(crate) use pod::{Pod, Pods, lines_by_pod};
pub(crate) use reported::is_reported;
pub(crate) use selection::Selection;
pub(crate) use stelia_api::reason::fix_of_kubelet_file as remedy_of_file;
