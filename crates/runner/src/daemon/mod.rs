//! The peer-to-peer client of the daemon.

mod link;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_api::NOT_PINNED;
use stelia_api::client::{Dict, InstanceProxy, ManagerProxy, VcpuArg};
use stelia_api::dict::{borrowed, to_dict};
use stelia_kernel::cgroup::hierarchy;
use stelia_koordinator::allocator::Qos;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError, Fd, OwnedObjectPath, Variant};

use super::cli::CommonOptions;
use super::error::Error;
use super::qmp::Vcpu;
use super::resize::CpuLoss;
use super::state::Isolation;
use link::Link;

/// Connecting includes the handshake, and the daemon gives a peer 2 s for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// First pause before the runner connects again; it doubles up to `MAX_RECONNECT_DELAY`. The socket unit starts the daemon at each
/// connection, which an administrator who stopped the daemon does not want every second.
const FIRST_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// A random time up to this is added.
const MAX_RECONNECT_JITTER: Duration = Duration::from_secs(1);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(60);
/// The daemon exports the objects of a new connection shortly after it accepts it.
const MAX_OBJECT_RETRIES: u32 = 10;
const OBJECT_RETRY_INTERVAL: Duration = Duration::from_millis(200);
const TOO_MANY_REFERENCES: i32 = rustix::io::Errno::TOOMANYREFS.raw_os_error();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DaemonEvent {
    /// A signal of the daemon: something changed.
    Signal,
    Lost,
    Reconnected,
}

/// The result of AttachVcpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    /// (vCPU, thread id on the host, CPU).
    pub(crate) placement: Vec<(u32, u32, u32)>,
    pub(crate) isolation: Isolation,
    /// The QoS class; `None` if kubelet chose the CPUs.
    pub(crate) qos: Option<Qos>,
}

/// The daemon by its socket. It connects when needed, and again after a failure: a restart of the daemon must not disturb the
/// guest.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: PathBuf,
    link: Option<Link>,
    /// The next attempt to connect after a loss, and the pause before it.
    next: (Instant, Duration),
}

/// A random delay, because all runners of a node lose the daemon at the same moment.
fn reconnect_jitter() -> Duration {
    let random = RandomState::new().build_hasher().finish();
    MAX_RECONNECT_JITTER.mul_f64(random as f64 / u64::MAX as f64)
}

impl Daemon {
    pub(crate) fn new(socket: &Path) -> Daemon {
        Daemon {
            socket: socket.to_owned(),
            link: None,
            next: (Instant::now(), FIRST_RECONNECT_DELAY),
        }
    }

    /// Closes the connection; the next call opens a new one.
    pub(crate) fn disconnect(&mut self) {
        self.link = None;
        self.next = (
            Instant::now() + FIRST_RECONNECT_DELAY + reconnect_jitter(),
            FIRST_RECONNECT_DELAY,
        );
    }

    /// Whether there is a connection. Without one [`Daemon::event`] makes one, which takes a while.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Waits for a signal of the daemon's, the loss of the connection or its return. Cancel-safe.
    pub(crate) async fn event(&mut self) -> DaemonEvent {
        if let Some(link) = &mut self.link {
            if link.signal().await {
                return DaemonEvent::Signal;
            }
            self.disconnect();
            return DaemonEvent::Lost;
        }
        loop {
            sleep_until(self.next.0).await;
            // Set before the attempt, so that a cancelled one counts.
            let pause = self.next.1.saturating_mul(2).min(MAX_RECONNECT_DELAY);
            self.next = (Instant::now() + pause, pause);
            match self.connection().await {
                Ok(_) => return DaemonEvent::Reconnected,
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    /// State and CPUs of an instance of this pod; `None` if the daemon has no such instance.
    pub(crate) async fn state(&mut self, instance: &OwnedObjectPath) -> Result<Option<(String, String)>, Error> {
        // ListInstances needs no exported object, which a new connection may not have yet.
        let manager = self.manager().await?;
        let list = manager.list_instances().await;
        let list = list.map_err(|e| self.failed("ListInstances", &e))?;
        let row = list.into_iter().find(|row| row.2 == *instance);
        Ok(row.map(|row| (row.3, row.4)))
    }

    /// The CPUs that the instance is about to lose; `None` if there are none. It has to be read before the CPUs: the daemon clears it when it
    /// has taken them.
    pub(crate) async fn pending_resize(&mut self, instance: &OwnedObjectPath) -> Result<Option<CpuLoss>, Error> {
        let proxy = self.instance(instance).await?;
        let found = proxy.inner().get_property::<(u32, u32, u64)>("PendingResize").await;
        let (now, remaining, deadline) = found.map_err(|e| self.failed("Get PendingResize", &e))?;
        Ok(CpuLoss::new(now, remaining, deadline))
    }

    /// How many bytes of memory the instance may use; `None` if there is no limit.
    pub(crate) async fn memory_limit(&mut self, instance: &OwnedObjectPath) -> Result<Option<u64>, Error> {
        let proxy = self.instance(instance).await?;
        let limit = proxy.inner().get_property::<u64>("MemoryLimit").await;
        let limit = limit.map_err(|e| self.failed("Get MemoryLimit", &e))?;
        Ok(Some(limit).filter(|limit| *limit < u64::MAX))
    }

    /// What is wrong with the VM, in words.
    pub(crate) async fn degraded(&mut self, instance: &OwnedObjectPath) -> Result<Vec<String>, Error> {
        let proxy = self.instance(instance).await?;
        let reasons = proxy.degraded().await.map_err(|e| self.failed("Get Degraded", &e))?;
        Ok(reasons.into_iter().map(|(_, text, _)| text).collect())
    }

    /// Registers this container; tries again for `--register-timeout` while the daemon is absent, restarting or busy.
    pub(crate) async fn register(
        &mut self,
        claims: &CommonOptions,
        anchor: BorrowedFd<'_>,
    ) -> Result<OwnedObjectPath, Error> {
        let limit = claims.register_timeout;
        let deadline = Instant::now() + limit;
        let mut warned = false;
        loop {
            let error = match self.try_register(claims, anchor).await {
                Ok(instance) => return Ok(instance),
                Err(error) => error,
            };
            if !error.is_transient() || Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(error);
            }
            if !warned {
                tracing::warn!("{error}; trying again for {} s", limit.as_secs());
                warned = true;
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    pub(crate) async fn try_register(
        &mut self,
        claims: &CommonOptions,
        anchor: BorrowedFd<'_>,
    ) -> Result<OwnedObjectPath, Error> {
        let manager = self.manager().await?;
        let failed = |cause: stelia_api::Error| {
            Error::system("write the options of RegisterInstance")(io::Error::other(cause.text))
        };
        let mut requested = to_dict(&claims.allocation).map_err(failed)?;
        requested.extend(to_dict(&claims.allocation.schedule).map_err(failed)?);
        let mut options = borrowed(&requested);
        options.insert("anchor", Variant::from(Fd::from(anchor)));
        let quiet_options = [("latency", &claims.latency), ("cache-class", &claims.cache_class)];
        let quiet_options = quiet_options
            .into_iter()
            .filter_map(|(name, value)| Some((name, Variant::from(value.as_deref()?))));
        options.extend(quiet_options);
        let answer = manager
            .register_instance(&claims.pod_uid, &claims.cpuset, options)
            .await;
        let (instance, cgroup) = answer.map_err(|e| self.failed("RegisterInstance", &e))?;
        tracing::info!("registered as {instance} in {cgroup}");
        Ok(instance)
    }

    /// Attaches the vCPU threads, and the I/O threads that get CPUs too. It is an error when the instance is neither
    /// `isolated` nor `pinned` afterwards, unless its class has no exclusive CPUs and nothing was pinned.
    pub(crate) async fn attach(
        &mut self,
        instance: &OwnedObjectPath,
        qemu: BorrowedFd<'_>,
        threads: (&[Vcpu], &[u32]),
    ) -> Result<Attached, Error> {
        let mut tries = 0;
        let placement = loop {
            match self.try_attach(instance, qemu, threads).await {
                Err(error) if error.is_absent() && tries < MAX_OBJECT_RETRIES => {
                    tries += 1;
                    sleep(OBJECT_RETRY_INTERVAL).await;
                }
                other => break other?,
            }
        };
        let proxy = self.instance(instance).await?;
        let state = proxy.state().await.map_err(|e| self.failed("Get State", &e))?;
        let qos = self.qos(&proxy).await?;
        let isolation = Isolation::of(&state, qos);
        let is_pinned = placement.iter().any(|(.., cpu)| *cpu != NOT_PINNED);
        if !isolation.is_as_promised() || (isolation == Isolation::Shared && is_pinned) {
            return Err(Error::NotIsolated(state));
        }
        Ok(Attached {
            placement,
            isolation,
            qos,
        })
    }

    /// The instance's class; `None` if kubelet chose its CPUs.
    async fn qos(&mut self, proxy: &InstanceProxy<'_>) -> Result<Option<Qos>, Error> {
        let name = proxy.inner().get_property::<String>("Qos").await;
        let name = name.map_err(|e| self.failed("Get Qos", &e))?;
        Ok(Qos::parse(&name))
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
        if !iothreads.is_empty() {
            options.insert("iothreads", Variant::from(iothreads));
        }
        let placement = proxy.attach_vcpus(qemu.as_fd().into(), list, options).await;
        placement.map_err(|e| self.failed("AttachVcpus", &e))
    }

    /// Deregisters this container. If the connection is broken, it tries once more on a new one.
    pub(crate) async fn deregister(&mut self) -> Result<(), Error> {
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
        // Not cached: the state is read after the call that changes it.
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
        self.next.1 = FIRST_RECONNECT_DELAY;
        Ok(connection)
    }

    /// A D-Bus error of the daemon, or a broken connection, which is then closed.
    fn failed(&mut self, operation: &'static str, error: &zbus::Error) -> Error {
        match error_reply(error) {
            Some((name, text)) => Error::Refused { operation, name, text },
            None => {
                self.disconnect();
                Error::Transport {
                    operation,
                    socket: self.socket.clone(),
                    text: with_cause(error),
                }
            }
        }
    }
}

/// The error's text; where the kernel passes no more descriptors of this user, with the reason. It counts those under way in sockets per user
/// id of the host (`too_many_unix_fds`), so pods with the same one can use up each other's.
fn with_cause(error: &zbus::Error) -> String {
    let is_full = matches!(error, zbus::Error::InputOutput(cause) if cause.raw_os_error() == Some(TOO_MANY_REFERENCES));
    if is_full {
        format!(
            "{error}: sockets of this user id, in whichever pod, hold as many descriptors as RLIMIT_NOFILE; use another runAsUser for each \
             tenant, or hostUsers: false"
        )
    } else {
        error.to_string()
    }
}

/// Why no daemon can run on this host, if the runner can find out: systemd skips the unit without a message.
fn unfit_host() -> Option<String> {
    hierarchy::unfit(&std::fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn with_reason(text: String, unfit: Option<String>) -> String {
    match unfit {
        Some(unfit) => format!("{text}; {unfit}: steliad needs version 2"),
        None => text,
    }
}

/// Name and text of a D-Bus error reply; `None` if there was no reply.
fn error_reply(error: &zbus::Error) -> Option<(String, String)> {
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

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_host_whose_cgroups_are_of_version_1_is_named_where_the_daemon_is_missing() {
        let text = with_reason(
            "Connection refused".into(),
            hierarchy::unfit("4:cpuset:/\n1:name=systemd:/\n"),
        );
        assert!(text.starts_with("Connection refused; the host's cgroups"), "{text}");
        assert_eq!(with_reason("x".into(), hierarchy::unfit("0::/\n")), "x");
    }

    #[test]
    fn descriptors_that_pods_of_the_same_user_keep_under_way_are_named_and_waited_for() {
        let error = |code| zbus::Error::InputOutput(io::Error::from_raw_os_error(code).into());
        let full = Daemon::new(Path::new("/s")).failed("RegisterInstance", &error(TOO_MANY_REFERENCES));
        assert!(full.is_transient() && full.to_string().contains("runAsUser"), "{full}");
        let other = Daemon::new(Path::new("/s")).failed("RegisterInstance", &error(32));
        assert!(!other.to_string().contains("runAsUser"), "{other}");
    }

    #[tokio::test]
    async fn an_absent_daemon_is_waited_for_and_named() {
        // Given a socket that is not there
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let null = std::fs::File::open("/dev/null").unwrap();
        let words = ["stelia-runner", "attach", "--register-timeout", "1"];
        let Command::Attach(options) = Cli::try_parse_from(words).unwrap().command else {
            panic!("{words:?}")
        };
        // When registering with a second's patience
        let started = Instant::now();
        let error = Daemon::new(&path)
            .register(&options.common, null.as_fd())
            .await
            .unwrap_err();
        // Then it tried more than once, and the error says where
        assert!(started.elapsed() >= RETRY_INTERVAL);
        assert!(error.is_transient());
        assert!(
            error
                .to_string()
                .starts_with(&format!("connect on {}: ", path.display())),
            "{error}"
        );
    }
}
