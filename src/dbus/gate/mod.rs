//! The gate in front of zbus on the runner socket, which tenants can reach.
//!
//! zbus trusts its peer before it authenticates: a line feed as first byte ends its handshake in a panic, descriptors sent
//! early pile up, a header may claim 128 MiB, and a peer that says nothing is waited for without end. Every byte passes
//! [`stream::Stream`] first, so zbus never sees what would hurt it; [`limits::Limits`] bounds connections and calls of a
//! pod.

mod greeting;
mod limits;
pub(crate) mod stream;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

pub use stream::GateError;
pub use transport::GatedSocket;

/// How long a peer may take to authenticate; to be put round `Builder::build`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The limits all connections share.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    limits: Arc<limits::Limits>,
}

impl Gate {
    /// Let a connection of pod `pod` in.
    ///
    /// # Errors
    /// [`GateError::TooManyConnections`].
    pub fn admit(&self, stream: UnixStream, pod: &str) -> Result<GatedSocket, GateError> {
        let slot = limits::Limits::connect(&self.limits, pod)?;
        Ok(GatedSocket::new(stream, slot))
    }
}

#[cfg(test)]
mod tests;
