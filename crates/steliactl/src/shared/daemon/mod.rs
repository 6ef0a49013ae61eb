//! The daemon: calls, signals, and what it says of the node and its VMs.

mod candidates;
mod client;
mod failure;
mod fold;
pub(crate) mod node;
mod not_there;
mod pattern;
mod pod;
mod reported;
mod selection;
pub(crate) mod signals;
mod trouble;
mod why_not_isolated;

pub(crate) use candidates::vms;
pub(crate) use client::{CALL_TIMEOUT, Client, connect};
pub(crate) use failure::Failure;
pub(crate) use fold::{fold, named, whose};
pub(crate) use node::{Description, OnlineCpus, Owner, owner, state_and_class};
pub(crate) use not_there::{no_instance, perhaps_meant};
pub(crate) use pattern::{VmPattern, is_glob};
pub(crate) use pod::{ListedInstance, Pod, Pods, fitting, lines_by_pod, uid_prefix_note};
pub(crate) use reported::is_reported;
pub(crate) use selection::Selection;
pub(crate) use stelia_api::reason::fix_of_kubelet_file as remedy_of_file;
pub(crate) use trouble::{Trouble, causes_of, less_than_isolated};
pub(crate) use why_not_isolated::{Why, age, not_isolated};
