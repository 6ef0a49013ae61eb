//! steliad gives a VM inside a Kubernetes pod its CPUs to itself.
//!
//! Dependencies point downward only; [`plan`], [`alloc`] and [`planner`] do no I/O.
//!
//! | module | what it is |
//! |---|---|
//! | [`dbus`] | the D-Bus contract: interfaces, client proxies, errors, the two doors |
//! | [`runner`] | `stelia-runner`: PID 1 of the VM's container |
//! | [`ctl`] | `steliactl`: the operator's view |
//! | [`engine`] | the loop: events, bounded turns, calls |
//! | [`plan`] | pure decisions: admission, placement, steps |
//! | [`alloc`] | our own CPU allocator: policies, pools, QoS classes |
//! | [`node_topology`] | what schedulers are told of the node: NodeResourceTopology |
//! | [`planner`] | what would kubelet do: its managers' answers |
//! | [`authz`] | who may do what: a pure table |
//! | [`config`] | fragments → merge → settings |
//! | [`systemd`] | the few manager calls we need |
//! | [`kubelet`] | checkpoints, checksum, pod cgroup names |
//! | [`cgroup`] | cgroup v2 files and extended attributes |
//! | [`mod@proc`] | processes: pidfds, PID namespaces, affinity |
//! | [`model`] | a node in memory that keeps the kernel's rules, for tests |
//! | [`topology`], [`cpuset`] | CPUs |
//! | [`quantity`] | Kubernetes' quantities |

pub mod authz;
pub mod daemon;
pub mod dbus;
pub(crate) mod decide;
pub mod engine;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod journal;
