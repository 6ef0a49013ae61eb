//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! This package is the daemon; what it decides is in `crates/decide/`, what it shares with other programs in the other `crates/`. Dependencies point downward only
//! (`docs/architecture.md` has the picture of all crates, and follows three calls file by file).
//!
//! ```
//! use clap::Parser;
//! use steliad::daemon::Arguments;
//!
//! assert!(Arguments::try_parse_from(["steliad", "--print-config"]).is_ok());
//! ```

pub(crate) mod adoption;
pub(crate) mod caller_rights;
pub mod daemon;
pub mod dbus;
pub mod engine;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod journal;
pub(crate) mod kubelet_config;
pub(crate) mod lasting_problem;
pub(crate) mod ledger;
pub(crate) mod publishing;
pub(crate) mod quiet;
pub(crate) mod runtime_check;
pub(crate) mod vm_capacity;
pub(crate) mod wait_until;
