//! The HTTP service that kube-scheduler calls.

mod calls;
mod idle_timeout;
mod metrics;
mod server;
#[cfg(test)]
mod tests;
mod tls;
mod types;

pub use server::{Bounds, Paths, Service, serve};
pub use tls::{Files as TlsFiles, Tls, TlsError};
