//! The runners' door: peer-to-peer D-Bus on a socket that is mounted into tenants' containers.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;
use nix::errno::Errno;
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
use crate::engine::{Handle, View};
use crate::kubelet::PodUid;
use crate::proc::pid_of_pidfd;

/// Accept until cancelled; each peer is who the kernel says it is.
pub async fn serve(listener: UnixListener, engine: Handle, cancel: CancellationToken) {
    let identify = {
        let engine = engine.clone();
        move |stream: &UnixStream, queue_was_empty| peer(stream, &engine, queue_was_empty).map(Arc::new)
    };
    accept(listener, identify, engine, cancel).await;
}

/// Accept until cancelled; every peer is taken for the process of `pidfd`. Only the simulator knows its peers so well.
pub async fn serve_as(listener: UnixListener, pidfd: Arc<OwnedFd>, engine: Handle, cancel: CancellationToken) {
    accept(listener, |_, _| Ok(pidfd.clone()), engine, cancel).await;
}

async fn accept(
    listener: UnixListener,
    identify: impl Fn(&UnixStream, Option<u64>) -> anyhow::Result<Arc<OwnedFd>>,
    engine: Handle,
    cancel: CancellationToken,
) {
    let gate = Gate::default();
    let mut queue_was_empty = None;
    loop {
        let accept = poll_fn(|context| {
            let accepted = listener.poll_accept(context);
            if accepted.is_pending() {
                queue_was_empty = Some(ticks_since_boot());
            }
            accepted
        });
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let peer = match identify(&stream, queue_was_empty) {
                    Ok(peer) => peer,
                    Err(error) => {
                        tracing::debug!("runner socket: {error:#}");
                        continue;
                    }
                };
                let (engine, gate, cancel) = (engine.clone(), gate.clone(), cancel.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        result = connection(stream, peer, engine, &gate) => {
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

/// Clock ticks since boot, as `/proc/<pid>/stat` counts a process's start.
fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 100 + part(now.tv_nsec) / 10_000_000
}

/// The process that connected.
///
/// Kernels before 6.5 know only its number, which may be another process's by now. It is the one that connected if it
/// started before the queue of connections was last seen empty: then it had its number all the time since. A runner that
/// is younger than that is turned away once, and comes in at its next attempt.
fn peer(stream: &UnixStream, engine: &Handle, queue_was_empty: Option<u64>) -> anyhow::Result<OwnedFd> {
    match getsockopt(stream, sockopt::PeerPidfd) {
        Err(Errno::ENOPROTOOPT) => {}
        result => return Ok(result?),
    }
    let pid = getsockopt(stream, sockopt::PeerCredentials)?.pid();
    let number = rustix::process::Pid::from_raw(pid).context("the peer is in no PID namespace that we see")?;
    let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
    let task = engine.system().procs.identify(pid)?;
    // The pidfd's process lives still, so what was read of its number was read of it.
    anyhow::ensure!(pid_of_pidfd(pidfd.as_fd())? == pid, "the peer ended");
    let certain = queue_was_empty.is_some_and(|empty| task.start < empty);
    anyhow::ensure!(
        certain,
        "process {pid} is too young to be surely the one that connected"
    );
    Ok(pidfd)
}

/// The pods that have an instance, or CPUs of kubelet's for one.
fn known(view: &View) -> BTreeSet<&str> {
    let instances = view.instances.keys();
    let pods = instances.chain(view.entries.keys()).chain(view.pod_entries.keys());
    pods.map(PodUid::as_str).collect()
}

/// Messages of a peer that wait to be looked at: of its calls no more are under way (see [`gate`]).
const QUEUED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// One peer, from its first byte to its last.
async fn connection(stream: UnixStream, pidfd: Arc<OwnedFd>, engine: Handle, gate: &Gate) -> anyhow::Result<()> {
    let door = Door::Runner(pidfd);
    let pod = door.peer(&engine)?.and_then(|(_, peer)| peer.pod().cloned());
    let Some(pod) = pod else {
        anyhow::bail!("the peer belongs to no pod");
    };
    let socket = gate.admit(stream, pod.as_str(), &known(&engine.view()))?;
    // One pod's calls wait for each other and for nobody else's.
    let engine = engine.on_behalf_of(&pod);
    let exporter = Exporter::new(engine.clone(), door.clone(), Some(pod));
    let manager = Manager {
        engine,
        door,
        exporter: exporter.clone(),
        // A pod may have none of them.
        readings: super::readings::Readings::default(),
    };
    let build = Builder::socket(socket)
        .server(Guid::generate())
        .p2p()
        .max_queued(QUEUED)
        .serve_at("/org/freedesktop/DBus", Driver)
        .serve_at(MANAGER_PATH, fdo::ObjectManager)
        .serve_at(MANAGER_PATH, manager)
        .build();
    // What the handshake needs is given back with it: a runner's connection lasts as long as its VM.
    let connection = tokio::time::timeout(gate::HANDSHAKE_TIMEOUT, Box::pin(build)).await??;
    exporter.attach(&connection);
    tokio::select! {
        () = exporter.follow() => {}
        () = connection.closed() => {}
    }
    connection.closed().await;
    exporter.detach();
    Ok(connection.close().await?)
}
