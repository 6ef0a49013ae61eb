//! The gate in front of zbus on the runner socket, which tenants can reach.
//!
//! zbus trusts its peer before it authenticates: a line feed as first byte ends its handshake in a panic, descriptors sent
//! early pile up, a header may claim 128 MiB, and a peer that says nothing is waited for without end. Every byte passes
//! [`stream::Stream`] first, so zbus never sees what would hurt it; [`pod_call_limits::PodCallLimits`] bounds connections and calls of a
//! pod. The part of a connection that remains while nothing is under way on it is a [`PeerConnection`].

mod calls;
mod cut_off_log;
mod greeting;
mod peer_connection;
pub(super) mod pod_call_limits;
pub(crate) mod stream;
pub(super) mod transport;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_kubelet::PodName;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use peer_connection::PeerConnection;
pub use stream::GateError;
pub use transport::{GatedSocket, write};

/// How long a peer may take to authenticate: the time limit of `Builder::build`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that wake at the same time. A change that all runners hear of makes a wave of calls; this bounds the memory that it needs,
/// which the allocator would keep.
const MAX_WAKING_CONNECTIONS: usize = 32;
/// A connection counts as waking for so long, or until it rests. At most 400 calls a second of all pods together are read, so that
/// slow ones do not take all turns.
const WAKING_TIME: Duration = Duration::from_millis(50);
/// A connection wakes without a turn after this long: saving memory is not worth a longer delay of a runner.
const MAX_WAKE_DELAY: Duration = Duration::from_millis(500);

/// The limits all connections share.
#[derive(Debug, Clone)]
pub struct Gate {
    limits: Arc<pod_call_limits::PodCallLimits>,
    cuts: Arc<cut_off_log::Cuts>,
    waking: Arc<Semaphore>,
}

/// A connection's turn to wake; free again when dropped.
#[derive(Debug)]
pub struct Waking {
    turn: Option<OwnedSemaphorePermit>,
}

impl Waking {
    /// Do what a connection does when it is awake, and let others wake soon.
    pub async fn during<T>(self, work: impl Future<Output = T>) -> T {
        let turn = async {
            tokio::time::sleep(WAKING_TIME).await;
            drop(self.turn);
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            done = work => done,
            never = turn => match never {},
        }
    }
}

impl Gate {
    /// As many connections as this process may have descriptors for. `names` tells the journal what a pod is called.
    pub fn naming(names: impl Fn(&str) -> Option<PodName> + Send + Sync + 'static) -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = pod_call_limits::connections(descriptors.unwrap_or(u64::MAX));
        Self {
            limits: Arc::new(pod_call_limits::PodCallLimits::new(most)),
            cuts: Arc::new(cut_off_log::Cuts::new(Box::new(names))),
            waking: Arc::new(Semaphore::new(MAX_WAKING_CONNECTIONS)),
        }
    }

    /// Let a connection of pod `pod` in. A place is kept for each pod in `known`.
    ///
    /// # Errors
    /// [`GateError::TooManyConnections`].
    pub fn admit(&self, stream: UnixStream, pod: &str, known: &BTreeSet<&str>) -> Result<GatedSocket, GateError> {
        let slot = pod_call_limits::PodCallLimits::connect(&self.limits, pod, known, Instant::now())
            .inspect_err(|error| self.cuts.cut(pod, error))?;
        Ok(GatedSocket::new(stream, slot, self.cuts.clone()))
    }

    /// Wait for a connection's turn to wake, but not for long.
    pub async fn waking(&self) -> Waking {
        let turn = self.waking.clone().acquire_owned();
        let turn = tokio::time::timeout(MAX_WAKE_DELAY, turn).await;
        Waking {
            turn: turn.ok().and_then(Result::ok),
        }
    }
}

#[cfg(test)]
mod tests;
