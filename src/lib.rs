//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! Dependencies point downward only; [`plan`] does no I/O.
//!
//! | module | what it is |
//! |---|---|
//! | [`dbus`] | the D-Bus contract: interfaces, client proxies, errors, the two doors |
//! | [`runner`] | `stelia-runner`: PID 1 of the VM's container |
//! | [`ctl`] | `steliactl`: the operator's view |
//! | [`engine`] | observe, apply, the reconcile loop |
//! | [`plan`] | pure decisions: admission, placement, steps |
//! | [`authz`] | who may do what: a pure table |
//! | [`config`] | fragments → merge → settings |
//! | [`systemd`] | the few manager calls we need |
//! | [`kubelet`] | checkpoints, checksum, pod cgroup names |
//! | [`cgroup`] | cgroup v2 files and extended attributes |
//! | [`mod@proc`] | processes: pidfds, PID namespaces, affinity |
//! | [`model`] | a node in memory that keeps the kernel's rules, for tests |
//! | [`topology`], [`cpuset`] | CPUs |

pub mod authz;
pub mod cgroup;
pub mod config;
pub mod cpuset;
pub mod ctl;
pub mod daemon;
pub mod dbus;
pub mod engine;
pub mod journal;
pub mod kubelet;
pub mod model;
pub mod plan;
pub mod proc;
pub mod runner;
pub mod simulate;
pub mod systemd;
pub mod topology;
