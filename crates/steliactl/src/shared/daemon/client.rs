//! The calls to the daemon.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::client::{Dict, InstanceRow, ManagerProxy, MoveRow, OwnedDict};
use stelia_api::{BUS_NAME, MANAGER_PATH};
use tokio::time::timeout;
use zbus::names::InterfaceName;
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::wire::DynamicDeserialize;
use zbus::{Connection, OwnedObjectPath, Variant, connection, fdo};

use super::failure::{Failure, is_silent};
use super::node::{self, Description};
use super::pod::{ListedInstance, Pod, Pods, pick, pick_for_change, uid_prefix_note};
use crate::shared::output::{json_of, note};

const INSTANCE_INTERFACE: InterfaceName<'static> =
    InterfaceName::from_static_str_unchecked("io.stelia.Isolation1.Instance");
/// The environment variable with the system bus's address, and the address without it (D-Bus specification, "System message bus").
const BUS_VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The daemon's own socket, which containers of VMs have.
const POD_ADDRESS: &str = "unix:path=/run/stelia/runner/socket";
/// Timeout of a call to the daemon.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Connects to the system bus, or to a peer-to-peer address, within `limit`: a peer may accept and not answer.
pub(crate) async fn connect(address: Option<&str>, limit: Duration) -> Result<Connection, Failure> {
    let builder = match address {
        Some(address) => connection::Builder::address(address).p2p(),
        None => connection::Builder::system(),
    };
    let connected = timeout(limit, builder.build()).await;
    connected.map_err(|_| is_silent(limit))?.map_err(|error| {
        let cause = match error {
            zbus::Error::InputOutput(cause) => cause.to_string(),
            other => other.to_string(),
        };
        // The library repeats the address.
        let cause = cause.rsplit("`: ").next().unwrap_or_default();
        unconnected(address, std::env::var(BUS_VARIABLE).ok().as_deref(), cause)
    })
}

/// Nothing answers at the address; without one, at that of the system bus, which an environment variable may set.
fn unconnected(address: Option<&str>, variable: Option<&str>, cause: &str) -> Failure {
    Failure::Other(match address {
        Some(address) => format!("connect to {address}: {cause}"),
        None => format!(
            "connect to the system bus ({}): {cause}: systemctl status dbus; in a container without it, \
             --address={POD_ADDRESS}",
            variable.unwrap_or(DEFAULT_BUS)
        ),
    })
}

#[derive(Clone)]
pub(crate) struct Client {
    manager: ManagerProxy<'static>,
    limit: Duration,
}

impl Client {
    /// Makes the proxy; nothing is sent yet.
    pub(crate) async fn new(connection: Connection, limit: Duration) -> Result<Self, Failure> {
        let manager = ManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        Ok(Self { manager, limit })
    }

    /// The answer of a call that only reads.
    ///
    /// # Errors
    /// No answer arrives in time, or the answer is an error.
    pub(crate) async fn answer_in_time<T, E>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let answer = timeout(self.limit, call).await;
        Ok(answer.map_err(|_| is_silent(self.limit))??)
    }

    /// The answer of a call that may take long, such as a pass over a busy node. Meanwhile the daemon is pinged: if it does
    /// not answer that either, the call fails.
    pub(crate) async fn answer_while_alive<T>(
        &self,
        call: impl Future<Output = zbus::Result<T>>,
    ) -> Result<T, Failure> {
        let peer = fdo::PeerProxy::builder(self.connection())
            .destination(BUS_NAME)
            .path(MANAGER_PATH)
            .build()
            .await?;
        let mut call = std::pin::pin!(call);
        loop {
            if let Ok(answer) = timeout(self.limit / 2, &mut call).await {
                return Ok(answer?);
            }
            // A refusal is an answer too.
            if timeout(self.limit / 2, peer.ping()).await.is_err() {
                return Err(is_silent(self.limit));
            }
        }
    }

    /// Every instance, by pod UID.
    pub(crate) async fn instances(&self) -> Result<Vec<ListedInstance>, Failure> {
        let mut rows = self.answer_in_time(self.manager.list_instances()).await?;
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        self.named(rows).await
    }

    /// The instance that `vm` names. If it is only the beginning of a UID, that is noted.
    ///
    /// # Errors
    /// No instance fits, or more than one does.
    pub(crate) async fn find(&self, vm: &str) -> Result<ListedInstance, Failure> {
        let found = pick(self.candidates(vm).await?, vm)?;
        note_if_begins(&found.pod, vm);
        Ok(found)
    }

    /// As [`Client::find`], for a command that changes something.
    ///
    /// # Errors
    /// As [`Client::find`]; and the beginning of the UID is too short.
    pub(crate) async fn find_for_change(&self, vm: &str) -> Result<ListedInstance, Failure> {
        let found = pick_for_change(self.candidates(vm).await?, vm)?;
        note_if_begins(&found.pod, vm);
        Ok(found)
    }

    /// The instances that `vm` may name.
    async fn candidates(&self, vm: &str) -> Result<Vec<ListedInstance>, Failure> {
        let mut rows = self.answer_in_time(self.manager.list_instances()).await?;
        // The names of all instances are needed only if `vm` is not a whole UID.
        if rows.iter().any(|row| row.0 == vm) {
            rows.retain(|row| row.0 == vm);
        }
        self.named(rows).await
    }

    /// With the names and all other properties of each.
    async fn named(&self, rows: Vec<InstanceRow>) -> Result<Vec<ListedInstance>, Failure> {
        let mut named = Vec::with_capacity(rows.len());
        for row in rows {
            let properties = match self.properties(&row).await {
                Ok(properties) => Some(properties),
                Err(Failure::NoSuchInstance(_)) => None,
                Err(failure) => return Err(failure),
            };
            let pod = match &properties {
                Some(properties) => Pod::of_properties(&row.0, properties),
                None => Pod::unnamed(&row.0),
            };
            named.push(ListedInstance { pod, row, properties });
        }
        Ok(named)
    }

    /// All properties of an instance, read in one call.
    async fn properties(&self, row: &InstanceRow) -> Result<Map<String, Value>, Failure> {
        let properties = fdo::PropertiesProxy::builder(self.connection())
            .destination(BUS_NAME)
            .path(&row.2)
            .build()
            .await?;
        Ok(json_of(
            &self.answer_in_time(properties.get_all(INSTANCE_INTERFACE)).await?,
        ))
    }

    pub(crate) async fn describe(&self) -> Result<Description, Failure> {
        node::parse(&self.answer_in_time(self.manager.describe()).await?)
    }

    /// The same of a running daemon: unlike the other calls this does not start it.
    pub(crate) async fn describe_running(&self) -> Result<Description, Failure> {
        node::parse(&self.without_start::<String>("Describe", &()).await?)
    }

    /// The names of a running daemon's instances, as far as the caller may know them.
    pub(crate) async fn pods_running(&self) -> Pods {
        match self.describe_running().await {
            Ok(description) => Pods::of(&description),
            // A pod may not call Describe, and lists only itself. Its socket does not start a daemon.
            Err(_) if !self.connection().is_bus() => {
                let instances = self.instances().await.unwrap_or_default();
                instances.into_iter().map(|found| found.pod).collect()
            }
            Err(_) => Pods::default(),
        }
    }

    /// The node's NodeResourceTopology object, as JSON text. A daemon that does not run is started only if `start` is
    /// set.
    pub(crate) async fn node_topology(
        &self,
        asked: impl Iterator<Item = (&str, &str)>,
        start: bool,
    ) -> Result<String, Failure> {
        let mut options = Dict::new();
        for (name, value) in asked {
            options.insert(name, Variant::from(value));
        }
        if start {
            self.answer_in_time(self.manager.node_topology(options)).await
        } else {
            self.without_start("NodeTopology", &(options,)).await
        }
    }

    async fn without_start<T: for<'d> DynamicDeserialize<'d>>(
        &self,
        method: &str,
        arguments: &(impl Serialize + zbus::DynamicType),
    ) -> Result<T, Failure> {
        let manager = self.manager.inner();
        let answer = manager.call_with_flags(method, MethodFlags::NO_AUTO_START, arguments);
        self.answer_in_time(answer)
            .await?
            .ok_or_else(|| Failure::Other(format!("{method} was not answered")))
    }

    /// The allocator's answer to each request.
    pub(crate) async fn evaluate(&self, requests: Vec<Dict<'_>>) -> Result<Vec<OwnedDict>, Failure> {
        self.answer_in_time(self.manager.evaluate_placement(requests, Dict::new()))
            .await
    }

    /// Runs one pass and returns its report; with a dry run only the steps that it would begin with, and what is degraded
    /// now.
    pub(crate) async fn reconcile(&self, dry_run: bool) -> Result<Map<String, Value>, Failure> {
        let report = self
            .answer_while_alive(self.manager.reconcile(options(dry_run)))
            .await?;
        Ok(json_of(&report))
    }

    /// Starts a rebind job, or with a dry run only plans it; returns the job's path and the planned moves.
    pub(crate) async fn rebind(
        &self,
        scope: &str,
        deadline_s: u32,
        dry_run: bool,
    ) -> Result<(OwnedObjectPath, Vec<MoveRow>), Failure> {
        self.answer_while_alive(self.manager.rebind(scope, deadline_s, options(dry_run)))
            .await
    }

    /// Gives an instance so many CPUs, or with a dry run answers what would be done; returns the CPUs, and whether they wait for vCPUs to
    /// be unplugged.
    pub(crate) async fn resize(&self, pod_uid: &str, cpus: u32, dry_run: bool) -> Result<(String, bool), Failure> {
        self.answer_while_alive(self.manager.resize(pod_uid, cpus, options(dry_run)))
            .await
    }

    pub(crate) fn manager(&self) -> &ManagerProxy<'static> {
        &self.manager
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.manager.inner().connection()
    }

    /// Deregisters an instance; returns its pod, and the CPUs that it had.
    pub(crate) async fn deregister(&self, vm: &str) -> Result<(Pod, String), Failure> {
        let ListedInstance { pod, row, .. } = self.find_for_change(vm).await?;
        self.answer_while_alive(self.manager.deregister(&pod.pod_uid, Dict::new()))
            .await?;
        Ok((pod, row.4))
    }
}

fn note_if_begins(pod: &Pod, asked: &str) {
    if let Some(text) = uid_prefix_note(pod, asked) {
        note(&text);
    }
}

fn options(dry_run: bool) -> Dict<'static> {
    dry_run.then(|| ("dry-run", Variant::from(true))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_answers_the_socket_and_the_cure_are_named() {
        let cause = "No such file or directory (os error 2)";
        let message = |address, variable| unconnected(address, variable, cause).to_string();
        assert_eq!(
            message(None, None),
            "connect to the system bus (unix:path=/var/run/dbus/system_bus_socket): No such file or directory (os error 2): \
             systemctl status dbus; in a container without it, --address=unix:path=/run/stelia/runner/socket"
        );
        let named = message(None, Some("unix:path=/tmp/bus"));
        assert!(
            named.starts_with("connect to the system bus (unix:path=/tmp/bus): No such file"),
            "{named}"
        );
        assert_eq!(
            message(Some("unix:path=/x"), Some("unix:path=/tmp/bus")),
            "connect to unix:path=/x: No such file or directory (os error 2)"
        );
    }
}
