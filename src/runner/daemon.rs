//! The daemon, as the runner's peer-to-peer client.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use zbus::connection::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError, Fd, OwnedObjectPath, Variant};

use super::error::Error;
use super::qmp::Vcpu;
use crate::dbus::client::{Dict, InstanceProxy, ManagerProxy, VcpuArg};

/// A registration waits up to 5 s for kubelet and moves every process of the container; a node can be busy.
const METHOD_TIMEOUT: Duration = Duration::from_secs(120);
/// Connecting includes the handshake, and the daemon gives a peer 2 s for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(500);

/// What RegisterInstance answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The instance's object.
    pub instance: OwnedObjectPath,
    /// Its scope's cgroup path.
    pub cgroup: String,
}

/// The daemon behind its socket. The connection is made when it is needed, and made again when it broke: a daemon that
/// is restarted must not disturb the guest.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    connection: Option<Connection>,
}

impl Daemon {
    /// No connection is made yet.
    pub fn new(socket: &Path) -> Daemon {
        Daemon {
            socket: socket.to_owned(),
            connection: None,
        }
    }

    /// Forget the connection; the next call makes a new one.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Register this container, trying again until `limit` while the daemon is absent, restarting or at its limit.
    pub async fn register(
        &mut self,
        pod_uid: &str,
        cpuset: &str,
        anchor: BorrowedFd<'_>,
        limit: Duration,
    ) -> Result<Registration, Error> {
        let deadline = Instant::now() + limit;
        let mut told = false;
        loop {
            let error = match self.try_register(pod_uid, cpuset, anchor).await {
                Ok(registration) => return Ok(registration),
                Err(error) => error,
            };
            if !error.is_transient() || Instant::now() + RETRY >= deadline {
                return Err(error);
            }
            if !told {
                tracing::warn!("{error}; trying again for {} s", limit.as_secs());
                told = true;
            }
            sleep(RETRY).await;
        }
    }

    async fn try_register(
        &mut self,
        pod_uid: &str,
        cpuset: &str,
        anchor: BorrowedFd<'_>,
    ) -> Result<Registration, Error> {
        let manager = self.manager().await?;
        let options = Dict::from([("anchor", Variant::from(Fd::from(anchor)))]);
        let answer = manager.register_instance(pod_uid, cpuset, options).await;
        let (instance, cgroup) = answer.map_err(|e| self.failed("RegisterInstance", &e))?;
        Ok(Registration { instance, cgroup })
    }

    /// Hand the vCPU threads over. Answers (vCPU, thread id on the host, CPU) and the state, which is `isolated` or
    /// `contained`: any other is an error.
    pub async fn attach(
        &mut self,
        instance: &OwnedObjectPath,
        qemu: BorrowedFd<'_>,
        vcpus: &[Vcpu],
    ) -> Result<(Vec<(u32, u32, u32)>, String), Error> {
        let proxy = self.instance(instance).await?;
        let list: Vec<VcpuArg<'_>> = vcpus.iter().map(Vcpu::to_dbus).collect();
        let placement = proxy.attach_vcpus(qemu.as_fd().into(), list, Dict::new()).await;
        let placement = placement.map_err(|e| self.failed("AttachVcpus", &e))?;
        let state = proxy.state().await.map_err(|e| self.failed("Get State", &e))?;
        if state != "isolated" && state != "contained" {
            return Err(Error::NotIsolated(state));
        }
        Ok((placement, state))
    }

    /// Give everything back; tries a second time on a new connection if the old one turns out to be dead.
    pub async fn deregister(&mut self) -> Result<(), Error> {
        match self.try_deregister().await {
            Err(error) if error.is_transient() => self.try_deregister().await,
            done => done,
        }
    }

    async fn try_deregister(&mut self) -> Result<(), Error> {
        let manager = self.manager().await?;
        let done = manager.deregister("", Dict::new()).await;
        done.map_err(|e| self.failed("Deregister", &e))
    }

    async fn manager(&mut self) -> Result<ManagerProxy<'static>, Error> {
        let connection = self.connection().await?;
        let proxy = ManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await;
        proxy.map_err(|e| self.failed("make the Manager proxy", &e))
    }

    async fn instance(&mut self, path: &OwnedObjectPath) -> Result<InstanceProxy<'static>, Error> {
        let connection = self.connection().await?;
        // Not cached: the state is read once, after the call that changes it.
        let proxy = InstanceProxy::builder(&connection)
            .path(path.clone())
            .cache_properties(CacheProperties::No)
            .build()
            .await;
        proxy.map_err(|e| self.failed("make the Instance proxy", &e))
    }

    async fn connection(&mut self) -> Result<Connection, Error> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let connection = match timeout(CONNECT_TIMEOUT, connect(&self.socket)).await {
            Ok(connection) => connection,
            Err(_) => Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
        };
        let connection = connection.map_err(|text| Error::Transport {
            operation: "connect",
            socket: self.socket.clone(),
            text,
        })?;
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Sort a failure: the daemon's answer, or a broken connection, which is then forgotten.
    fn failed(&mut self, operation: &'static str, error: &zbus::Error) -> Error {
        match answered(error) {
            Some((name, text)) => Error::Refused { operation, name, text },
            None => {
                self.connection = None;
                Error::Transport {
                    operation,
                    socket: self.socket.clone(),
                    text: error.to_string(),
                }
            }
        }
    }
}

/// Name and text of a D-Bus error reply. `None`: the call got no reply.
fn answered(error: &zbus::Error) -> Option<(String, String)> {
    match error {
        zbus::Error::MethodError(name, text, _) => Some((name.to_string(), text.clone().unwrap_or_default())),
        zbus::Error::FDO(error) => Some((
            error.name().to_string(),
            error.description().unwrap_or_default().to_owned(),
        )),
        _ => None,
    }
}

async fn connect(socket: &Path) -> Result<Connection, String> {
    let stream = UnixStream::connect(socket)
        .await
        .and_then(UnixStream::into_std)
        .map_err(|e| e.to_string())?;
    let mut builder = Builder::unix_stream(stream).p2p().method_timeout(METHOD_TIMEOUT);
    // EXTERNAL compares the uid the client names with the one the kernel shows the daemon. In a user namespace those
    // differ, so name the outer one.
    if let Some(uid) = outer_uid_of_self() {
        builder = builder.user_id(uid);
    }
    builder.build().await.map_err(|e| e.to_string())
}

fn outer_uid_of_self() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    outer_uid(&map, rustix::process::geteuid().as_raw())
}

/// The uid outside the user namespace for `inner`, from the text of `/proc/self/uid_map` (user_namespaces(7): lines of
/// first inner id, first outer id, count). `None` when it is not mapped.
fn outer_uid(map: &str, inner: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (first, outer, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = inner.checked_sub(first)?;
        if offset < count {
            outer.checked_add(offset)
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("         0          0 4294967295\n", 107, Some(107))]
    #[case("         0     165536      65536\n", 0, Some(165_536))]
    #[case("         0     165536      65536\n", 107, Some(165_643))]
    #[case("0 1000 1\n1 100000 65536\n", 5, Some(100_004))]
    #[case("0 165536 65536\n", 65_536, None)]
    #[case("", 0, None)]
    #[case("nonsense here too", 0, None)]
    #[case("0 4294967295 2", 1, None)]
    fn outer_uid_is_found_by_range(#[case] map: &str, #[case] inner: u32, #[case] outer: Option<u32>) {
        assert_eq!(outer_uid(map, inner), outer);
    }

    #[tokio::test]
    async fn an_absent_daemon_is_waited_for_and_named() {
        // Given a socket that is not there
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let null = std::fs::File::open("/dev/null").unwrap();
        // When registering with a second's patience
        let started = Instant::now();
        let error = Daemon::new(&path)
            .register("", "", null.as_fd(), Duration::from_secs(1))
            .await
            .unwrap_err();
        // Then it tried more than once, and the error says where
        assert!(started.elapsed() >= RETRY);
        assert!(error.is_transient());
        assert!(
            error
                .to_string()
                .starts_with(&format!("connect on {}: ", path.display())),
            "{error}"
        );
    }
}
