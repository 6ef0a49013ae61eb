//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! This package is the daemon; what it decides is in `crates/decide/`, what it shares with other programs in the other `crates/`. Dependencies point downward only
//! (`docs/architecture.md` has the picture of all crates, and follows three calls file by file).
//!
//! | module | what it is |
//! |---|---|
//! | [`daemon`] | the program: command line, start, threads, watchdog, end |
//! | [`dbus`] | the two entry points (the bus and the runner socket), their objects, and the gate before them |
//! | `adoption` | the third entry point: VMs that do not register themselves, by the administrator's rules |
//! | `quiet` | what is ordered of `steliad-quiet`: interrupts kept off the CPUs of VMs, and the like |
//! | `publishing` | what the cluster's publisher is told: a file of the node, its VMs and what happened to them |
//! | `ledger` | who ran on the CPUs of VMs, read from the kernel's counters and written to files |
//! | `authz` | who may call what: a table |
//! | [`engine`] | the loop and all I/O: events, calls, bounded turns |
//! | [`journal`] | the ids of messages for operators |
//! | `kubelet_config` | the running kubelet's configuration, for `publishing` and `vm_capacity` |
//! | `lasting_problem`, `wait_until` | what the tasks have in common: a problem that is logged once, the wait for the next step |
//! | `runtime_check` | `--try-runtime`: whether an OCI runtime copes with threaded cgroups |
//!
//! ```
//! use clap::Parser;
//! use steliad::daemon::Arguments;
//!
//! assert!(Arguments::try_parse_from(["steliad", "--print-config"]).is_ok());
//! ```

pub(crate) mod adoption;
pub(crate) mod authz;
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
