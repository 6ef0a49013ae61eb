//! The daemon: calls, signals, and what it says of the node and its VMs.
//!
//! | module | what is there |
//! |---|---|
//! | `client` | calls, and the errors that they end in |
//! | `signals` | the daemon's signals, for commands that run until interrupted |
//! | `node` | the node as the daemon describes it, and the owner of each CPU |
//! | `pod` | what an operator calls a VM |
//! | `candidates` | the VMs that a shell offers |
//! | `why_not_isolated` | why a VM has less than isolation |

mod candidates;
mod client;
pub(crate) mod node;
mod pod;
pub(crate) mod signals;
mod why_not_isolated;

pub(crate) use candidates::vms;
pub(crate) use client::{CALL_TIMEOUT, Client, Failure, connect};
pub(crate) use node::{Description, OnlineCpus, Owner, owner, state_and_class};
pub(crate) use pod::{ListedInstance, Pod, Pods, fitting, lines_by_pod, no_instance};
pub(crate) use why_not_isolated::{Why, age, not_isolated};
