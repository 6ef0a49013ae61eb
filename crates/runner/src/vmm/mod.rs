//! Where a VM's threads are found, and how it is let run.

mod monitor;
mod names;

pub use monitor::Monitor;
pub use names::{Named, find_vm};

use std::future::Future;

use super::error::Error;
use super::qmp::{Iothread, Qmp, Vcpu};

/// The threads of a VM at one time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Threads {
    /// In ascending index.
    pub vcpus: Vec<Vcpu>,
    /// Not vCPUs: they stay on the shared CPUs.
    pub iothreads: Vec<Iothread>,
    /// A vCPU could be plugged without anybody being told: worth asking again now and then.
    pub may_grow: bool,
}

/// What happened to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Its threads may be others.
    Threads,
    /// It runs, or does so no more.
    RunState,
}

/// How a guest is let run once its vCPUs are in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// It was started paused: continue it.
    Continue,
    /// It was started with `-incoming defer`, in the place of this address: let the migration in.
    Migration(String),
    /// Somebody else does it, by a migration he drives himself.
    Others,
    /// It runs already.
    Running,
}

/// A virtual machine monitor, as the runner needs it.
pub trait Vmm {
    /// The threads as they are now.
    fn threads(&mut self) -> impl Future<Output = Result<Threads, Error>>;
    /// Wait for something to happen. Dropping the wait loses nothing.
    fn change(&mut self) -> impl Future<Output = Result<Change, Error>>;
    /// The run state, in QMP's words; `unknown` where it cannot be told.
    fn run_state(&mut self) -> impl Future<Output = Result<String, Error>>;
    /// Let the guest run.
    fn release(&mut self, how: &Release) -> impl Future<Output = Result<(), Error>>;
    /// Drop every connection; the next call makes a new one.
    fn disconnect(&mut self);
    /// The monitor connection, for the shutdown.
    fn take_qmp(&mut self) -> Option<Qmp>;
}
