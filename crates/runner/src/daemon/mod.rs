//! The daemon, as the runner's peer-to-peer client.

mod link;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_allocator::AllocationRequest;
use stelia_allocator::Qos;
use stelia_api::NOT_PINNED;
use stelia_api::client::{Dict, InstanceProxy, ManagerProxy, VcpuArg};
use stelia_api::dict::{borrowed, to_dict};
use stelia_node::cgroup::hierarchy;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError, Fd, OwnedObjectPath, Variant};

use super::error::Error;
use super::qmp::Vcpu;
use link::Link;

/// Connecting includes the handshake, and the daemon gives a peer 2 s for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(500);
/// A daemon that went away is looked for after this time first, and ever more seldom then: its socket may be there without
/// it, and connecting starts it, which an administrator who stopped it may not want every second.
const FIRST_RETURN: Duration = Duration::from_secs(2);
/// And up to so much later.
const SPREAD: Duration = Duration::from_secs(1);
const LAST_RETURN: Duration = Duration::from_secs(60);
/// A new connection has its objects a moment later.
const OBJECT_RETRIES: u32 = 10;
const OBJECT_RETRY: Duration = Duration::from_millis(200);

/// What became of the connection to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The daemon told of some change.
    Signal,
    /// The connection is gone.
    Lost,
    /// There is one again.
    Back,
}

/// What RegisterInstance is told.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'a> {
    /// `--pod-uid`.
    pub pod_uid: &'a str,
    /// `--cpuset`.
    pub cpuset: &'a str,
    /// What is asked of steliad's own allocator.
    pub allocation: &'a AllocationRequest,
}

/// What AttachVcpus answered, and what the instance is then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// (vCPU, thread id on the host, CPU).
    pub placement: Vec<(u32, u32, u32)>,
    /// `isolated` or `contained`; `floating` for an instance that has no CPUs of its own by its class.
    pub state: String,
    /// The QoS class; `None` where kubelet chose the CPUs.
    pub qos: Option<Qos>,
}

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
    link: Option<Link>,
    /// When a lost daemon is looked for next, and how long it was waited before that.
    next: (Instant, Duration),
}

/// All the runners of a node lose the daemon at the same moment, and are not to return at the same one.
fn spread() -> Duration {
    let random = RandomState::new().build_hasher().finish();
    SPREAD.mul_f64(random as f64 / u64::MAX as f64)
}

impl Daemon {
    /// No connection is made yet.
    pub fn new(socket: &Path) -> Daemon {
        Daemon {
            socket: socket.to_owned(),
            link: None,
            next: (Instant::now(), FIRST_RETURN),
        }
    }

    /// Forget the connection; the next call makes a new one.
    pub fn disconnect(&mut self) {
        self.link = None;
        self.next = (Instant::now() + FIRST_RETURN + spread(), FIRST_RETURN);
    }

    /// Wait for a signal of the daemon's, for its loss or its return. Dropping the wait loses nothing.
    pub async fn news(&mut self) -> News {
        if let Some(link) = &mut self.link {
            return match link.signal().await {
                true => News::Signal,
                false => {
                    self.disconnect();
                    News::Lost
                }
            };
        }
        loop {
            sleep_until(self.next.0).await;
            // Before the attempt, so that one that is dropped counts.
            let pause = self.next.1.saturating_mul(2).min(LAST_RETURN);
            self.next = (Instant::now() + pause, pause);
            match self.connection().await {
                Ok(_) => return News::Back,
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    /// The state of an instance of this pod's and its CPUs; `None` when the daemon knows none of that name.
    pub async fn state(&mut self, instance: &OwnedObjectPath) -> Result<Option<(String, String)>, Error> {
        // The list is the engine's own; the objects of a new connection come a moment later.
        let manager = self.manager().await?;
        let list = manager.list_instances().await;
        let list = list.map_err(|e| self.failed("ListInstances", &e))?;
        let row = list.into_iter().find(|row| row.2 == *instance);
        Ok(row.map(|row| (row.3, row.4)))
    }

    /// The reasons why an instance's promise is not whole.
    pub async fn degraded(&mut self, instance: &OwnedObjectPath) -> Result<Vec<String>, Error> {
        let proxy = self.instance(instance).await?;
        proxy.degraded().await.map_err(|e| self.failed("Get Degraded", &e))
    }

    /// Register this container, trying again until `limit` while the daemon is absent, restarting or at its limit.
    pub async fn register(
        &mut self,
        claims: Claims<'_>,
        anchor: BorrowedFd<'_>,
        limit: Duration,
    ) -> Result<Registration, Error> {
        let deadline = Instant::now() + limit;
        let mut told = false;
        loop {
            let error = match self.try_register(claims, anchor).await {
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

    /// Register once.
    pub async fn try_register(&mut self, claims: Claims<'_>, anchor: BorrowedFd<'_>) -> Result<Registration, Error> {
        let manager = self.manager().await?;
        let failed = |cause: stelia_api::Error| Error::System {
            operation: "write the options of RegisterInstance",
            cause: io::Error::other(cause.text),
        };
        let mut asked = to_dict(claims.allocation).map_err(failed)?;
        asked.extend(to_dict(&claims.allocation.schedule).map_err(failed)?);
        let mut options = borrowed(&asked);
        options.insert("anchor", Variant::from(Fd::from(anchor)));
        let answer = manager.register_instance(claims.pod_uid, claims.cpuset, options).await;
        let (instance, cgroup) = answer.map_err(|e| self.failed("RegisterInstance", &e))?;
        Ok(Registration { instance, cgroup })
    }

    /// Hand the vCPU threads over, and I/O threads that are to have CPUs too. A state other than `isolated` and `contained` is
    /// an error, unless the instance is of a class that has no CPUs of its own and nothing is pinned.
    pub async fn attach(
        &mut self,
        instance: &OwnedObjectPath,
        qemu: BorrowedFd<'_>,
        threads: (&[Vcpu], &[u32]),
    ) -> Result<Attached, Error> {
        let mut tries = 0;
        let placement = loop {
            match self.try_attach(instance, qemu, threads).await {
                Err(error) if error.is_absent() && tries < OBJECT_RETRIES => {
                    tries += 1;
                    sleep(OBJECT_RETRY).await;
                }
                other => break other?,
            }
        };
        let proxy = self.instance(instance).await?;
        let state = proxy.state().await.map_err(|e| self.failed("Get State", &e))?;
        let qos = self.qos(&proxy).await?;
        let shared = qos.is_some_and(|qos| !qos.is_exclusive()) && placement.iter().all(|(.., cpu)| *cpu == NOT_PINNED);
        let whole = match state.as_str() {
            "isolated" | "contained" => true,
            "floating" => shared,
            _ => false,
        };
        if !whole {
            return Err(Error::NotIsolated(state));
        }
        Ok(Attached { placement, state, qos })
    }

    /// The instance's class. A daemon that has no such property is older than steliad's own allocator, and a class that is not
    /// known promises nothing.
    async fn qos(&mut self, proxy: &InstanceProxy<'_>) -> Result<Option<Qos>, Error> {
        match proxy.inner().get_property::<String>("Qos").await {
            Ok(name) => Ok(Qos::parse(&name)),
            Err(error) => match self.failed("Get Qos", &error) {
                Error::Refused { .. } => Ok(None),
                error => Err(error),
            },
        }
    }

    async fn try_attach(
        &mut self,
        instance: &OwnedObjectPath,
        qemu: BorrowedFd<'_>,
        (vcpus, iothreads): (&[Vcpu], &[u32]),
    ) -> Result<Vec<(u32, u32, u32)>, Error> {
        let proxy = self.instance(instance).await?;
        let list: Vec<VcpuArg<'_>> = vcpus.iter().map(Vcpu::to_dbus).collect();
        let mut options = Dict::new();
        // An older daemon knows no such option and would refuse it.
        if !iothreads.is_empty() {
            options.insert("iothreads", Variant::from(iothreads));
        }
        let placement = proxy.attach_vcpus(qemu.as_fd().into(), list, options).await;
        placement.map_err(|e| self.failed("AttachVcpus", &e))
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
        if let Some(link) = &self.link {
            return Ok(link.connection.clone());
        }
        let link = match timeout(CONNECT_TIMEOUT, Link::connect(&self.socket)).await {
            Ok(link) => link,
            Err(_) => Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
        };
        let link = link.map_err(|text| Error::Transport {
            operation: "connect",
            socket: self.socket.clone(),
            text: with_reason(text, unfit_host()),
        })?;
        let connection = link.connection.clone();
        self.link = Some(link);
        self.next.1 = FIRST_RETURN;
        Ok(connection)
    }

    /// Sort a failure: the daemon's answer, or a broken connection, which is then forgotten.
    fn failed(&mut self, operation: &'static str, error: &zbus::Error) -> Error {
        match answered(error) {
            Some((name, text)) => Error::Refused { operation, name, text },
            None => {
                self.disconnect();
                Error::Transport {
                    operation,
                    socket: self.socket.clone(),
                    text: error.to_string(),
                }
            }
        }
    }
}

/// Why no daemon can run on this host, if that is known here: its unit is skipped there without a word to anybody.
fn unfit_host() -> Option<String> {
    hierarchy::unfit(&std::fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn with_reason(text: String, unfit: Option<String>) -> String {
    match unfit {
        Some(unfit) => format!("{text}; {unfit}: steliad needs version 2"),
        None => text,
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_host_whose_cgroups_are_of_version_1_is_named_where_the_daemon_is_missing() {
        let text = with_reason(
            "Connection refused".into(),
            hierarchy::unfit("4:cpuset:/\n1:name=systemd:/\n"),
        );
        assert!(
            text.starts_with("Connection refused; the host's cgroups are version 1"),
            "{text}"
        );
        assert_eq!(with_reason("x".into(), hierarchy::unfit("0::/\n")), "x");
    }

    #[tokio::test]
    async fn an_absent_daemon_is_waited_for_and_named() {
        // Given a socket that is not there
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let null = std::fs::File::open("/dev/null").unwrap();
        let claims = Claims {
            pod_uid: "",
            cpuset: "",
            allocation: &AllocationRequest::default(),
        };
        // When registering with a second's patience
        let started = Instant::now();
        let error = Daemon::new(&path)
            .register(claims, null.as_fd(), Duration::from_secs(1))
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
