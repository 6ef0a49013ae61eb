//! The gate in front of zbus on the runner socket, which tenants can reach.
//!
//! zbus trusts its peer before it authenticates: a line feed as first byte ends its handshake in a panic, descriptors sent
//! early pile up, a header may claim 128 MiB, and a peer that says nothing is waited for without end. Every byte passes
//! [`stream::Stream`] first, so zbus never sees what would hurt it; [`limits::Limits`] bounds connections and calls of a
//! pod.

mod calls;
mod cuts;
mod greeting;
mod limits;
mod line;
pub(crate) mod stream;
mod transport;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;

pub use line::Line;
pub use stream::GateError;
pub use transport::GatedSocket;

/// How long a peer may take to authenticate; to be put round `Builder::build`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The limits all connections share.
#[derive(Debug, Clone)]
pub struct Gate {
    limits: Arc<limits::Limits>,
    cuts: Arc<cuts::Cuts>,
}

impl Default for Gate {
    /// As many connections as this process may have descriptors for.
    fn default() -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limits::connections(descriptors.unwrap_or(u64::MAX));
        Self {
            limits: Arc::new(limits::Limits::new(most)),
            cuts: Arc::default(),
        }
    }
}

impl Gate {
    /// Let a connection of pod `pod` in. A place is kept for each pod in `known`.
    ///
    /// # Errors
    /// [`GateError::TooManyConnections`].
    pub fn admit(&self, stream: UnixStream, pod: &str, known: &BTreeSet<&str>) -> Result<GatedSocket, GateError> {
        let slot = limits::Limits::connect(&self.limits, pod, known, Instant::now())
            .inspect_err(|error| self.cuts.cut(pod, error))?;
        Ok(GatedSocket::new(stream, slot, self.cuts.clone()))
    }
}

#[cfg(test)]
mod tests;
