//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! | module | what it is |
//! |---|---|
//! | [`dbus`] | the D-Bus contract: client proxies, errors, the two doors |
//! | [`runner`] | `stelia-runner`: PID 1 of the VM's container |
//! | [`ctl`] | `steliactl`: the operator's view |

pub mod ctl;
pub mod dbus;
pub mod runner;
