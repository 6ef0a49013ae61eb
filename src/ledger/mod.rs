//! Keeps the ledger: records from the kernel's counters what ran on the CPUs of VMs, in files (`docs/ledger.md`).
//!
//! A task in the main runtime follows the engine and never blocks. It queues requests to read; the ledger's own thread reads the
//! counters, decides what becomes an entry, and writes it. The queue holds at most one reading, of the newest targets. There is no timer:
//! counters are read when a VM's CPUs change, when a caller asks for an account, and at each audit of the engine.

mod accounts;
mod attribution;
mod counter_reader;
mod kernel_backend;
mod locator;
mod open_ledger;
mod open_ring;
mod queue;
mod status;
mod target;
mod task;
mod thread;
mod throttle;
mod visible_to_pods;

use std::sync::Arc;

use stelia_kubelet::PodUid;
use stelia_ledger::entry::Event;

pub(crate) use accounts::AccountReader;
pub(crate) use attribution::Tracer;
pub(crate) use counter_reader::CounterReader;
pub(crate) use kernel_backend::KernelBackend;
#[cfg(test)]
pub(crate) use kernel_backend::RingDirectory;
pub(crate) use open_ring::RingOpener;
#[cfg(test)]
pub(crate) use open_ring::{OpenedRing, RingWriter};
pub(crate) use task::run;

/// The interface to the kernel and the state directory, which tests replace.
pub(crate) trait LedgerBackend: Send + Sync {
    fn counter_reader(&self) -> Box<dyn CounterReader>;
    fn ring_opener(&self) -> Box<dyn RingOpener>;
    fn account_reader(&self) -> Arc<dyn AccountReader>;
    fn tracer(&self) -> Arc<dyn Tracer>;
}

/// A signal that the bus emits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The intrusions of one entry on the CPUs of this pod's VM; each is an [`Event::Intruded`].
    Intruded(PodUid, Vec<Event>),
    /// A signed head, an [`Event::Head`].
    Head(Event),
}
