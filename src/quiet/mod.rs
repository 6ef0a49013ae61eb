//! Keeps disturbances other than tasks off the CPUs of VMs: device interrupts, wake-up latency and others. The daemon's sandbox forbids
//! these writes, so it sends orders to `steliad-quiet`, and works without it.
//!
//! An order is sent when it differs from the last one, at each audit while there are VMs, and when an administrator requests a
//! reconciliation. It is always complete: a daemon that starts needs no state of a former one.

mod executor;
mod order_from_view;
mod status;
mod task;

#[cfg(test)]
pub(crate) use executor::OrderExecutor;
pub(crate) use executor::QuietExecutor;
pub(crate) use task::run;
