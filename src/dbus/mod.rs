//! The D-Bus objects and the two doors through which they are reached: the system bus and the runner socket.

mod bus;
mod call;
mod caller;
mod changes;
#[cfg(test)]
mod contract_tests;
mod description;
mod driver;
mod evaluate;
mod export;
pub(crate) mod gate;
mod instance;
mod job;
mod ledger;
mod manager;
mod node_topology;
mod options;
mod polkit;
#[cfg(test)]
mod private_bus;
mod readings;
mod registration;
mod report;
mod runner_socket;

pub(crate) use ledger::emit_signals as emit_ledger_signals;

pub use bus::{Bus, BusError, Name, check_alone, connect, serve as serve_bus};
pub use runner_socket::{serve as serve_runner_socket, serve_as as serve_runner_socket_as};
