//! What is done for the CPUs of VMs besides keeping tasks off them: device interrupts and the like. The daemon's sandbox forbids these
//! writes; it orders them of `steliad-quiet`, and works without it.
//!
//! An order is sent when it differs from the last one, at each audit while there are VMs, and when an administrator asks for a
//! reconciliation. It is always complete: a daemon that starts needs to know nothing of the orders of a former one.
//!
//! | file | its job |
//! |---|---|
//! | `task` | when an order is sent, and what its answer means for the next one |
//! | `target` | the order, from the engine's view and the settings |
//! | `executor` | who carries out orders |
//! | `status` | what the journal and the view say |

mod executor;
mod status;
mod target;
mod task;

#[cfg(test)]
pub(crate) use executor::OrderExecutor;
pub(crate) use executor::Programs;
pub(crate) use task::run;
