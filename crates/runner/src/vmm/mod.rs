//! A VM as the runner needs it: its threads, its run state, and how its guest is started. By QMP, or by the names of threads.

mod monitor;
mod thread_names;

pub(crate) use monitor::Monitor;
pub(crate) use thread_names::{ThreadNames, find_vm};

use std::future::Future;

use super::error::Error;
use super::qmp::{Iothread, Qmp, Vcpu};

/// The threads of a VM, as they were when asked.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Threads {
    /// By ascending index.
    pub(crate) vcpus: Vec<Vcpu>,
    /// Not vCPUs: they stay on the shared CPUs.
    pub(crate) iothreads: Vec<Iothread>,
    /// A vCPU could be plugged, which no event reports: ask again now and then.
    pub(crate) may_grow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The threads may have changed.
    Threads,
    /// The run state may have changed.
    RunState,
}

/// How a guest is started once its vCPUs are in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// It was started paused: QMP `cont`.
    Continue,
    /// It was started with `-incoming defer` in place of this address: QMP `migrate-incoming`.
    Migration(String),
    /// The program that drives the incoming migration continues the guest.
    External,
    AlreadyRunning,
}

/// A virtual machine monitor, as the runner needs it.
pub(crate) trait Vmm {
    fn threads(&mut self) -> impl Future<Output = Result<Threads, Error>>;
    /// Waits for a change. Cancel-safe.
    fn change(&mut self) -> impl Future<Output = Result<Change, Error>>;
    /// The run state by its QMP name; `unknown` without a monitor.
    fn run_state(&mut self) -> impl Future<Output = Result<String, Error>>;
    fn release(&mut self, how: &Release) -> impl Future<Output = Result<(), Error>>;
    /// Closes the connection; the next call opens a new one.
    fn disconnect(&mut self);
    /// Hands the open QMP connection to the shutdown.
    fn take_qmp(&mut self) -> Option<Qmp>;
}
