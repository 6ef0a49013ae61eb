//! The daemon: calls, signals, and what it says of the node and its VMs.

mod client;
mod condition;
mod failure;
mod names;
pub(crate) mod node;
mod pod;
mod selection;
pub(crate) mod signals;

pub(crate) use client::{CALL_TIMEOUT, Client, Found, Mode, connect, options, parse, reason_of};
pub(crate) use condition::{Condition, Rows, age, assigned_by, counts, fact, is_in_trouble, note, own_cpus, reasons};
pub(crate) use failure::Failure;
pub(crate) use names::{VmPattern, is_glob, no_instance, none_among, one as named_pod, vms};
pub(crate) use node::{
    Description, FORMER, OnlineCpus, Owner, former_in_words, former_since, former_vms, is_file_unusable, is_reported,
    owner, recreate, whose_former,
};
pub(crate) use pod::{NODE, Pod, Pods, counted_uids, lines_by_pod, whose};
pub(crate) use selection::{Selected, Selection};
pub(crate) use stelia_api::reason::fix_of_kubelet_file as remedy_of_file;
