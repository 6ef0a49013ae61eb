//! The connections to the plugin's socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::api::transport::serve_plugin;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::service::{Peer, Service, Shared};

/// How many connections are served at a time. kubelet has one.
const MAX_CONNECTIONS: usize = 8;

/// The pause after a connection could not be accepted: the reason, such as too many open files, lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A connection that is served.
struct Open {
    peer: Peer,
    task: AbortHandle,
}

/// Serves connections as long as it is polled. Dropping it ends all of them.
pub(crate) async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    let mut open: Vec<Open> = Vec::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let peer = peer(&stream);
                    while open.len() >= MAX_CONNECTIONS {
                        let peers: Vec<Peer> = open.iter().map(|one| one.peer).collect();
                        let ended = open.remove(connection_to_close(&peers, *shared.kubelet.borrow()));
                        ended.task.abort();
                        tracing::warn!("ended a connection of process {}: more than {MAX_CONNECTIONS} are open", shown(ended.peer));
                    }
                    let task = tasks.spawn(connection(stream, peer, shared.clone()));
                    open.push(Open { peer, task });
                }
                Err(error) => {
                    tracing::warn!("accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => open.retain(|one| !one.task.is_finished()),
        }
    }
}

async fn connection(stream: UnixStream, peer: Peer, shared: Arc<Shared>) {
    if let Err(error) = serve_plugin(stream, Arc::new(Service { shared, peer })).await {
        tracing::debug!("connection of process {}: {error}", shown(peer));
    }
}

fn peer(stream: &UnixStream) -> Peer {
    let credentials: io::Result<_> = stream.peer_cred();
    credentials
        .ok()
        .and_then(|credentials| credentials.pid())
        .filter(|pid| *pid > 0)
}

fn shown(peer: Peer) -> String {
    peer.map_or_else(|| "of another PID namespace".to_owned(), |pid| pid.to_string())
}

/// Which of too many connections ends: the oldest that is not kubelet's, or else the oldest. So nobody who opens connections ends kubelet's.
/// Where kubelet's process cannot be seen, no connection is known as kubelet's.
fn connection_to_close(peers: &[Peer], kubelet: Option<Peer>) -> usize {
    let is_kubelets = |peer: &Peer| peer.is_some() && Some(*peer) == kubelet;
    let foreign = peers.iter().position(|peer| !is_kubelets(peer));
    foreign.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_that_is_not_kubelets_ends() {
        let peers = [Some(7), Some(8), None, Some(9)];
        assert_eq!(connection_to_close(&peers, Some(Some(7))), 1);
        assert_eq!(connection_to_close(&peers, Some(Some(9))), 0);
        assert_eq!(connection_to_close(&[None, None, Some(8)], Some(None)), 0);
        assert_eq!(connection_to_close(&peers, None), 0);
        assert_eq!(connection_to_close(&[Some(7), Some(7)], Some(Some(7))), 0);
    }
}
