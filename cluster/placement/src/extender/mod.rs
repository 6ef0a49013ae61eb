//! The HTTP service that kube-scheduler calls.
//!
//! | module | what |
//! |---|---|
//! | `types` | the bodies of calls and answers: kube-scheduler's published types (`k8s.io/kube-scheduler/extender/v1`) |
//! | `calls` | filter, prioritize, preempt, bind |
//! | `best_nodes` | which of the nodes with room an answer names |
//! | `server` | connections, and what a client may cost |
//! | `idle_timeout` | how long a client may be silent |
//! | `tls` | certificates, read again when they change |
//! | `metrics` | OpenMetrics |

mod best_nodes;
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
