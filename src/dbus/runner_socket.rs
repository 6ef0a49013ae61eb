//! The runners' door: peer-to-peer D-Bus on a socket that is mounted into tenants' containers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::socket::{getsockopt, sockopt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use zbus::{Guid, connection::Builder, fdo};

use super::MANAGER_PATH;
use super::caller::Door;
use super::driver::Driver;
use super::export::Exporter;
use super::gate::{self, Gate};
use super::manager::Manager;
use crate::engine::Handle;

/// Accept until cancelled.
pub async fn serve(listener: UnixListener, engine: Handle, cancel: CancellationToken) {
    let gate = Gate::default();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (engine, gate, cancel) = (engine.clone(), gate.clone(), cancel.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        result = connection(stream, engine, &gate) => {
                            if let Err(error) = result {
                                tracing::debug!("runner socket: {error:#}");
                            }
                        }
                    }
                });
            }
            Err(cause) => {
                // Out of descriptors, most likely: give those that end time to end.
                tracing::warn!("accept on the runner socket: {cause}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// One peer, from its first byte to its last.
async fn connection(stream: UnixStream, engine: Handle, gate: &Gate) -> anyhow::Result<()> {
    let pidfd: OwnedFd = getsockopt(&stream, sockopt::PeerPidfd)?;
    let door = Door::Runner(Arc::new(pidfd));
    let pod = door.peer(&engine)?.and_then(|(_, peer)| peer.pod().cloned());
    let Some(pod) = pod else {
        anyhow::bail!("the peer belongs to no pod");
    };
    let socket = gate.admit(stream, pod.as_str())?;
    let exporter = Exporter::new(engine.clone(), door.clone(), Some(pod));
    let manager = Manager {
        engine,
        door,
        exporter: exporter.clone(),
    };
    let build = Builder::socket(socket)
        .server(Guid::generate())
        .p2p()
        .serve_at("/org/freedesktop/DBus", Driver)
        .serve_at(MANAGER_PATH, fdo::ObjectManager)
        .serve_at(MANAGER_PATH, manager)
        .build();
    let connection = tokio::time::timeout(gate::HANDSHAKE_TIMEOUT, build).await??;
    exporter.attach(&connection);
    tokio::select! {
        () = exporter.follow() => {}
        () = connection.closed() => {}
    }
    connection.closed().await;
    Ok(())
}
