//! The runners' entry point: peer-to-peer D-Bus on a socket that is mounted into tenants' containers.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use stelia_api::{Error, MANAGER_PATH};
use stelia_kernel::clock::since_boot;
use stelia_kernel::proc::pid_of_pidfd;
use stelia_kubelet::PodUid;
use stelia_model as model;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zbus::connection::Builder;
use zbus::{Connection, Guid, fdo};

use super::bus_members::Driver;
use super::cached_readings::Readings;
use super::caller::EntryPoint;
use super::exported_objects::{Exporter, Shown};
use super::manager::Manager;
use super::properties_changed;
use super::runner_gate::{self, Gate, GatedSocket, PeerConnection};
use crate::engine::Handle;

/// Accept until cancelled; the kernel says which process each peer is.
pub async fn serve(listener: UnixListener, engine: Handle, cancel: CancellationToken) {
    let identify = {
        let engine = engine.clone();
        move |stream: &UnixStream, queue_was_empty| peer(stream, &engine, queue_was_empty).map(Arc::new)
    };
    accept(listener, identify, engine, cancel).await;
}

/// Accept until cancelled; every peer counts as the process of `pidfd`. For the simulator.
pub async fn serve_as(listener: UnixListener, pidfd: Arc<OwnedFd>, engine: Handle, cancel: CancellationToken) {
    accept(listener, |_, _| Ok(pidfd.clone()), engine, cancel).await;
}

async fn accept(
    listener: UnixListener,
    identify: impl Fn(&UnixStream, Option<u64>) -> anyhow::Result<Arc<OwnedFd>>,
    engine: Handle,
    cancel: CancellationToken,
) {
    let names = engine.clone();
    let gate = Gate::naming(move |pod| names.pod_name(&PodUid::parse(pod).ok()?));
    let mut queue_was_empty = None;
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = next(&listener, &mut queue_was_empty) => accepted,
        };
        match accepted {
            Ok(stream) => {
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

/// The next connection. `queue_was_empty`: when the kernel last said that none was waiting, in clock ticks since boot. The
/// kernel is asked directly, because the runtime also waits when its budget is used up or before it has seen a connection.
async fn next(listener: &UnixListener, queue_was_empty: &mut Option<u64>) -> io::Result<UnixStream> {
    // A peer that connects all the time must not keep the runtime from everything else.
    tokio::task::consume_budget().await;
    let before = ticks_since_boot();
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(stream) => UnixStream::from_std(stream.into()),
        Err(Errno::AGAIN) => {
            *queue_was_empty = Some(before);
            Ok(listener.accept().await?.0)
        }
        Err(cause) => Err(cause.into()),
    }
}

/// Clock ticks since boot, as `/proc/<pid>/stat` counts a process's start.
fn ticks_since_boot() -> u64 {
    u64::try_from(since_boot().as_millis() / 10).unwrap_or(u64::MAX)
}

/// The process that connected.
///
/// Kernels before 6.5 know only its number, which may be another process's by now. It is the one that connected if it
/// started before the queue of connections was last seen empty: then it had its number all the time since. A runner that
/// is younger than that is turned away once, and comes in at its next attempt.
fn peer(stream: &UnixStream, engine: &Handle, queue_was_empty: Option<u64>) -> anyhow::Result<OwnedFd> {
    match getsockopt(stream, sockopt::PeerPidfd) {
        Err(nix::errno::Errno::ENOPROTOOPT) => {}
        result => return Ok(result?),
    }
    let pid = getsockopt(stream, sockopt::PeerCredentials)?.pid();
    let number =
        rustix::process::Pid::from_raw(pid).context("the peer is outside the PID namespaces that are visible here")?;
    let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
    let task = engine.system().procs.identify(pid)?;
    // The pidfd's process lives still, so what was read of its number was read of it.
    anyhow::ensure!(pid_of_pidfd(pidfd.as_fd())? == pid, "the peer ended");
    let certain = queue_was_empty.is_some_and(|empty| task.start < empty);
    anyhow::ensure!(
        certain,
        "process {pid} started after the queue was last empty: another process may have connected"
    );
    Ok(pidfd)
}

/// The pods that have an instance, or exclusive CPUs in kubelet's file.
fn known(view: &model::Node) -> BTreeSet<&str> {
    let instances = view.instances.keys();
    let pods = instances.chain(view.entries.keys()).chain(view.pod_entries.keys());
    pods.map(PodUid::as_str).collect()
}

/// Messages of a peer that may wait for zbus; the calls under way are bounded by [`gate`].
const QUEUED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// One peer, from its first byte to its last.
async fn connection(stream: UnixStream, pidfd: Arc<OwnedFd>, engine: Handle, gate: &Gate) -> anyhow::Result<()> {
    let (mut peer, socket) = Peer::admit(stream, pidfd, engine, gate)?;
    // What zbus allocates is freed while the connection rests, which is nearly as long as its VM runs.
    Box::pin(peer.attend(Builder::socket(socket).server(Guid::generate()))).await?;
    while peer.rest().await {
        let builder = Builder::authenticated_socket(GatedSocket::again(&peer.connection), Guid::generate());
        let waking = gate.waking().await;
        Box::pin(waking.during(peer.attend(builder))).await?;
    }
    Ok(())
}

struct Peer {
    engine: Handle,
    entry_point: EntryPoint,
    pod: PodUid,
    connection: Arc<PeerConnection>,
    /// Its own instance only: there are as many connections as VMs, and none should wake for a change of another.
    own: watch::Receiver<Option<Shown>>,
    /// The instance as it was last shown to the peer.
    told: Option<Shown>,
}

impl Peer {
    fn admit(
        stream: UnixStream,
        pidfd: Arc<OwnedFd>,
        engine: Handle,
        gate: &Gate,
    ) -> anyhow::Result<(Self, GatedSocket)> {
        let entry_point = EntryPoint::Runner(pidfd);
        let pod = entry_point.peer(&engine)?.and_then(|(_, peer)| peer.pod().cloned());
        let Some(pod) = pod else {
            anyhow::bail!("the peer belongs to no pod");
        };
        let socket = gate.admit(stream, pod.as_str(), &known(&engine.view()))?;
        let peer = Self {
            // Calls of one pod wait for each other only.
            engine: engine.on_behalf_of(&pod),
            own: engine.follow(&pod),
            entry_point,
            pod,
            connection: socket.connection().clone(),
            told: None,
        };
        Ok((peer, socket))
    }

    /// Answer the peer and show it its instance, until it disconnects or its connection rests.
    async fn attend(&mut self, builder: Builder<'_>) -> anyhow::Result<()> {
        let exporter = Exporter::new(self.engine.clone(), self.entry_point.clone(), Some(self.pod.clone()));
        let manager = Manager {
            engine: self.engine.clone(),
            entry_point: self.entry_point.clone(),
            exporter: exporter.clone(),
            // Pods are not permitted any of them.
            readings: Readings::default(),
        };
        let build = builder
            .p2p()
            .max_queued(QUEUED)
            .serve_at("/org/freedesktop/DBus", Driver)
            .serve_at(MANAGER_PATH, fdo::ObjectManager)
            .serve_at(MANAGER_PATH, manager)
            .build();
        let connection = tokio::time::timeout(runner_gate::HANDSHAKE_TIMEOUT, build).await??;
        exporter.attach(&connection);
        if let Err(error) = self.tell(&connection, &exporter).await {
            tracing::debug!("objects of a connection: {error}");
        }
        connection.closed().await;
        self.told = exporter.shown_instance(&self.pod).await;
        exporter.detach();
        if self.connection.is_resting() {
            return Ok(());
        }
        Ok(connection.close().await?)
    }

    /// Show the peer its instance until the engine or the connection is gone.
    async fn tell(&mut self, connection: &Connection, exporter: &Exporter) -> Result<(), Error> {
        // Nothing of this is written: after a rest the peer knows it.
        let known = exporter.sync_own(&self.pod, self.told.as_ref()).await;
        self.connection.wake();
        known?;
        loop {
            // To its end, or a message might be half written when the connection rests.
            let Some(telling) = self.connection.tell() else {
                return Ok(());
            };
            let now = self.own.borrow_and_update().clone();
            exporter.sync_own(&self.pod, now.as_ref()).await?;
            drop(telling);
            tokio::select! {
                changed = self.own.changed() => if changed.is_err() {
                    return Ok(());
                },
                () = connection.closed() => return Ok(()),
            }
        }
    }

    /// Wait until zbus is needed again: the peer sends something, or its instance comes or goes. False when the connection
    /// does not rest, or the peer has left.
    ///
    /// A change of the shared pool is written to all peers, without zbus.
    async fn rest(&mut self) -> bool {
        if !self.connection.is_resting() {
            return false;
        }
        loop {
            tokio::select! {
                is_called = self.connection.is_called() => return is_called,
                Ok(()) = self.own.changed() => {}
            }
            let now = self.own.borrow_and_update().clone();
            if self.told.is_some() != now.is_some() {
                return true;
            }
            let told = std::mem::replace(&mut self.told, now);
            if let (Some(old), Some(new)) = (told, &self.told)
                && let Err(error) = self.tell_of_change(&old, new).await
            {
                tracing::debug!("objects of a connection: {error}");
                return false;
            }
        }
    }

    async fn tell_of_change(&self, old: &model::Instance, new: &model::Instance) -> anyhow::Result<()> {
        if let Some(message) = properties_changed::message(old, new)? {
            runner_gate::write(&self.connection, message.data()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_queue_was_empty_when_the_kernel_says_so_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let connect = || std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (mut empty, _queued) = (None, [connect(), connect(), connect()]);
        // The runtime has not heard of them yet.
        for _ in 0..3 {
            next(&listener, &mut empty).await.unwrap();
            assert_eq!(empty, None);
        }
        let late = tokio::task::spawn_blocking({
            let path = path.clone();
            move || std::os::unix::net::UnixStream::connect(path).unwrap()
        });
        next(&listener, &mut empty).await.unwrap();
        late.await.unwrap();
        assert!(empty.is_none_or(|empty| empty <= ticks_since_boot()));
        let (first, _late) = tokio::join!(next(&listener, &mut empty), async { connect() });
        first.unwrap();
        assert!(empty.is_some());
    }
}
