//! The D-Bus objects and the two entry points through which they are reached: the system bus and the runner socket.

mod bus_gate;
mod bus_members;
mod cached_readings;
mod call;
mod caller;
#[cfg(test)]
mod contract_tests;
mod description;
mod evaluate;
mod exported_objects;
mod instance;
mod job;
mod ledger_signals;
mod manager;
mod node_properties;
mod node_topology;
mod object_tree;
mod options;
mod polkit;
mod properties_changed;
mod rate;
mod reasons;
mod reconcile_report;
mod registration;
mod requests;
pub(crate) mod runner_gate;
mod runner_socket;
mod system_bus;
#[cfg(test)]
mod test_bus;
#[cfg(test)]
mod unfriendly_user_tests;
mod user_limits;

pub(crate) use ledger_signals::emit_signals as emit_ledger_signals;

pub use runner_socket::{serve as serve_runner_socket, serve_as as serve_runner_socket_as};
pub use system_bus::{Bus, BusError, Name, check_alone, connect, connect_client, serve as serve_bus};
