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

pub(crate) mod candidates;
pub(crate) mod client;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod signals;
pub(crate) mod why_not_isolated;
