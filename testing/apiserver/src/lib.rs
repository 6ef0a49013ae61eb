#![doc = include_str!("../README.md")]

mod apply;
mod binding;
mod counts;
mod discovery;
mod failure;
mod faults;
mod http_server;
mod lists;
mod query;
mod requests;
mod resources;
mod server;
mod service;
mod store;
mod watch;
mod write;

pub use counts::{Count, LoggedRequest};
pub use faults::{Answer, Fault};
pub use http_server::serve;
pub use server::Server;
pub use service::{Body, Closed};
