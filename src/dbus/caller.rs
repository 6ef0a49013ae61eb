//! Who calls, and what that caller may do.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use stelia_api::{Error, ErrorKind};
use stelia_kernel::runtime_config;
use stelia_kubelet::{PodName, PodUid};
use zbus::Connection;
use zbus::message::Header;
use zbus::names::UniqueName;

use super::polkit;
use super::user_limits::{CallUnderWay, UserLimits};
use crate::caller_rights::{Decision, Operation, Role, decide};
use crate::engine::{Handle, Peer};

/// The entry point that a connection came through.
#[derive(Debug, Clone)]
pub(super) enum EntryPoint {
    /// The system bus.
    Bus(Users),
    /// The runner socket; the descriptor is the peer's pidfd, as the kernel gave it (SO_PEERPIDFD).
    Runner(Arc<OwnedFd>),
}

/// A caller that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// For every instance (`None`) or for one pod's.
    pub(super) only: Option<PodUid>,
    /// The process and who it is, on the runner socket.
    pub(super) process: Option<(i32, Peer)>,
    /// Whether it is root, on the system bus.
    pub(super) is_root: bool,
}

impl EntryPoint {
    /// The peer process of the runner socket, by its cgroup now. The runner moves (by registering), so this is asked at
    /// each call; the pidfd is asked again after the cgroup was read, since the number could be another process's by
    /// then.
    pub(super) fn peer(&self, engine: &Handle) -> Result<Option<(i32, Peer)>, Error> {
        let Self::Runner(pidfd) = self else { return Ok(None) };
        let ended = ErrorKind::NotPermitted.context("the caller cannot be identified");
        let procs = &engine.system().procs;
        let pid = procs.pid_of_pidfd(pidfd.as_fd()).map_err(&ended)?;
        let cgroup = procs.cgroup(pid).map_err(&ended)?;
        procs.pid_of_pidfd(pidfd.as_fd()).map_err(&ended)?;
        Ok(Some((pid, Peer::of(cgroup))))
    }

    /// How many instances an answer has that has all.
    pub(super) fn set_instances(&self, instances: usize) {
        if let Self::Bus(users) = self {
            users.limits.set_instances(instances);
        }
    }

    /// Begin to answer a call. On the runner socket the gate has counted it.
    ///
    /// # Errors
    /// The caller's earlier calls leave no room.
    pub(super) fn begin(&self, header: &Header<'_>) -> Result<Option<CallUnderWay>, Error> {
        match self {
            Self::Bus(users) => users.begin(header).map(Some),
            Self::Runner(_) => Ok(None),
        }
    }

    /// On the bus the connection's own peer is the bus daemon: it is asked who the sender is.
    async fn bus_role(&self, connection: &Connection, header: &Header<'_>) -> Result<Role, Error> {
        let (Self::Bus(users), Some(sender)) = (self, header.sender()) else {
            return Err(ErrorKind::NotPermitted.because("the message has no sender"));
        };
        let user = users.of(connection, sender).await?;
        Ok(if users.limits.is_root(user) {
            Role::Root
        } else {
            Role::User
        })
    }

    /// Decide whether the caller of this message may do `operation`.
    pub(super) async fn admit(
        &self,
        engine: &Handle,
        connection: &Connection,
        header: &Header<'_>,
        operation: Operation,
    ) -> Result<Caller, Error> {
        let process = self.peer(engine)?;
        let role = match &process {
            Some((_, peer)) if peer.pod().is_some() => Role::Pod,
            Some(_) => Role::Stranger,
            None => self.bus_role(connection, header).await?,
        };
        let is_root = role == Role::Root;
        let caller = |only, process| Caller { only, process, is_root };
        match decide(role, operation) {
            Decision::Allow => Ok(caller(None, process)),
            Decision::Own => {
                let only = process.as_ref().and_then(|(_, peer)| peer.pod().cloned());
                Ok(caller(only, process))
            }
            Decision::Ask(action) => {
                polkit::ask(connection, header, action).await?;
                Ok(caller(None, process))
            }
            Decision::Deny => {
                Err(ErrorKind::NotPermitted.because(format!("{operation:?} is not permitted to this caller")))
            }
        }
    }
}

impl Caller {
    /// Whether the caller may see this pod's instance.
    pub(super) fn sees(&self, pod: &PodUid) -> bool {
        self.only.as_ref().is_none_or(|only| only == pod)
    }

    /// What the caller's pod is called, for the journal. While it has no instance the runtime's configuration of the
    /// calling container tells it.
    pub(super) fn pod_name(&self, engine: &Handle) -> Option<PodName> {
        engine.pod_name(self.only.as_ref()?).or_else(|| match &self.process {
            Some((_, Peer::Container(_, container))) => runtime_config::container(&engine.system().run, container).pod,
            _ => None,
        })
    }
}

/// The users of senders on the bus, as the bus told them. A connection's user never changes, and the bus gives no unique name
/// twice (D-Bus specification, "Message Bus Names").
#[derive(Debug, Clone)]
pub(super) struct Users {
    known: Arc<Mutex<BTreeMap<String, u32>>>,
    /// What each of them may ask.
    pub(super) limits: Arc<UserLimits>,
}

/// So many are remembered, as many as there can be connections on the bus; then all are forgotten and asked for again.
const USERS: usize = 2048;
/// The user that a call is charged to while its sender is unknown. No user has this ID.
const UNKNOWN: u32 = u32::MAX;

impl Default for Users {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            limits: UserLimits::new(0),
        }
    }
}

impl Users {
    #[cfg(test)]
    pub(super) fn with_root(root: u32) -> Self {
        let users = Self::default();
        users.limits.set_root(root);
        users
    }

    /// Begin to answer a call.
    ///
    /// # Errors
    /// Its sender's earlier calls leave no room.
    fn begin(&self, header: &Header<'_>) -> Result<CallUnderWay, Error> {
        let known = header.sender().and_then(|sender| self.known(sender));
        let primary = header.primary();
        self.limits
            .begin(known.unwrap_or(UNKNOWN), primary.body_len() as usize, Instant::now())
    }

    fn known(&self, sender: &UniqueName<'_>) -> Option<u32> {
        self.lock().get(sender.as_str()).copied()
    }

    pub(super) async fn of(&self, connection: &Connection, sender: &UniqueName<'_>) -> Result<u32, Error> {
        if let Some(user) = self.known(sender) {
            return Ok(user);
        }
        let unknown =
            |cause: String| ErrorKind::NotPermitted.because(format!("the bus does not say who {sender} is{cause}"));
        let bus = zbus::fdo::DBusProxy::new(connection).await?;
        let credentials = bus.get_connection_credentials(sender.to_owned().into());
        let credentials = credentials.await.map_err(|cause| unknown(format!(": {cause}")))?;
        let user = credentials.unix_user_id().ok_or_else(|| unknown(String::new()))?;
        let mut users = self.lock();
        // Names come and go, and connections are few: most of these have left.
        if users.len() >= USERS {
            users.clear();
        }
        users.insert(sender.to_string(), user);
        Ok(user)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u32>> {
        // A map that is whole after every call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
