//! The calls to the daemon, and the errors that they end in.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::BUS_NAME;
use stelia_api::client::{Dict, InstanceRow, ManagerProxy, MoveRow, OwnedDict};
use zbus::names::InterfaceName;
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::{Connection, OwnedObjectPath, Variant, connection, fdo};

use crate::node::{self, Description};
use crate::view::{json_of, text_of, texts_of};

const INSTANCE_INTERFACE: InterfaceName<'static> =
    InterfaceName::from_static_str_unchecked("io.stelia.Isolation1.Instance");
const NO_SUCH_INSTANCE: &str = "io.stelia.Isolation1.Error.NoSuchInstance";
/// A pass over a busy node may take longer than D-Bus's usual 25 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a command failed. The exit code follows from the variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    NoSuchInstance(String),
    /// The command line is valid for clap, but ambiguous or contradictory.
    #[error("{0}")]
    Usage(String),
    /// The answer is printed, and the exit code is 1 all the same.
    #[error("{reason}")]
    Partial { printed: String, reason: String },
    /// Anything else: the daemon's own text where there is one.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Partial { .. } | Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            Failure::NoSuchInstance(_) => 3,
        }
    }
}

fn does_not_run() -> Failure {
    Failure::Other(format!(
        "steliad does not run ({BUS_NAME} is not on the bus): systemctl status steliad"
    ))
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, text, _) => {
                let text = text.unwrap_or_else(|| name.to_string());
                match name.as_str() {
                    NO_SUCH_INSTANCE => Failure::NoSuchInstance(text),
                    "org.freedesktop.DBus.Error.ServiceUnknown" | "org.freedesktop.DBus.Error.NameHasNoOwner" => {
                        does_not_run()
                    }
                    _ => Failure::Other(text),
                }
            }
            zbus::Error::FDO(error) => Failure::from(*error),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<fdo::Error> for Failure {
    fn from(error: fdo::Error) -> Self {
        match error {
            fdo::Error::ZBus(error) => Failure::from(error),
            // The object disappeared between two calls.
            fdo::Error::UnknownObject(text) => Failure::NoSuchInstance(text),
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => does_not_run(),
            other => Failure::Other(other.to_string()),
        }
    }
}

/// Connects to the system bus, or to a peer-to-peer address.
pub(crate) async fn connect(address: Option<&str>) -> Result<Connection, Failure> {
    let builder = match address {
        Some(address) => connection::Builder::address(address).p2p(),
        None => connection::Builder::system(),
    };
    builder
        .method_timeout(CALL_TIMEOUT)
        .build()
        .await
        .map_err(|error| Failure::Other(format!("connect to {}: {error}", address.unwrap_or("the system bus"))))
}

/// One row of `list`; in JSON the fields have the names of the D-Bus properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct InstanceSummary {
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    pub container: String,
    pub object: String,
    pub state: String,
    #[serde(rename = "ExclusiveCPUs")]
    pub exclusive_cpus: String,
    /// The CPUs of all other threads of the instance.
    #[serde(rename = "FloatCPUs")]
    pub float_cpus: String,
    /// Why isolation is degraded; empty where it is not.
    pub degraded: Vec<String>,
}

pub(crate) struct Client {
    connection: Connection,
    manager: ManagerProxy<'static>,
}

impl Client {
    /// Makes the proxy; nothing is sent yet.
    pub(crate) async fn new(connection: Connection) -> Result<Self, Failure> {
        let manager = ManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        Ok(Self { connection, manager })
    }

    /// Every instance, by pod UID. One that disappears meanwhile is left out.
    pub(crate) async fn instances(&self) -> Result<Vec<InstanceSummary>, Failure> {
        let mut rows = self.manager.list_instances().await?;
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        let mut instances = Vec::with_capacity(rows.len());
        for row in rows {
            let properties = match self.properties(&row).await {
                Ok(properties) => properties,
                Err(Failure::NoSuchInstance(_)) => continue,
                Err(failure) => return Err(failure),
            };
            let (pod_uid, container, object, state, exclusive_cpus) = row;
            instances.push(InstanceSummary {
                pod_uid,
                container,
                object: object.to_string(),
                state,
                exclusive_cpus,
                float_cpus: text_of(&properties, "FloatCPUs").to_owned(),
                degraded: texts_of(&properties, "Degraded").map(str::to_owned).collect(),
            });
        }
        Ok(instances)
    }

    /// The instance whose pod UID is `uid` or, if there is none, the only one whose UID begins with it.
    pub(crate) async fn find(&self, uid: &str) -> Result<InstanceRow, Failure> {
        pick(self.manager.list_instances().await?, uid)
    }

    /// All properties of an instance, read in one call.
    pub(crate) async fn properties(&self, row: &InstanceRow) -> Result<Map<String, Value>, Failure> {
        let properties = fdo::PropertiesProxy::builder(&self.connection)
            .destination(BUS_NAME)
            .path(&row.2)
            .build()
            .await?;
        Ok(json_of(&properties.get_all(INSTANCE_INTERFACE).await?))
    }

    pub(crate) async fn describe(&self) -> Result<Description, Failure> {
        node::parse(&self.describe_text().await?)
    }

    /// `describe` as the daemon sends it, not parsed.
    pub(crate) async fn describe_text(&self) -> Result<String, Failure> {
        Ok(self.manager.describe().await?)
    }

    /// `describe` of a running daemon: unlike the other calls this does not start it.
    pub(crate) async fn describe_running(&self) -> Result<Description, Failure> {
        node::parse(&self.without_start("Describe", &()).await?)
    }

    /// The node's NodeResourceTopology object, as JSON text. A daemon that does not run is started only if `start` is
    /// set.
    pub(crate) async fn node_topology(
        &self,
        api_version: &str,
        node_name: Option<&str>,
        start: bool,
    ) -> Result<String, Failure> {
        let mut options = Dict::new();
        options.insert("api-version", Variant::from(api_version));
        if let Some(name) = node_name {
            options.insert("node-name", Variant::from(name));
        }
        match start {
            true => Ok(self.manager.node_topology(options).await?),
            false => self.without_start("NodeTopology", &(options,)).await,
        }
    }

    async fn without_start(
        &self,
        method: &str,
        arguments: &(impl Serialize + zbus::DynamicType),
    ) -> Result<String, Failure> {
        let manager = self.manager.inner();
        let answer = manager.call_with_flags(method, MethodFlags::NO_AUTO_START, arguments);
        answer
            .await?
            .ok_or_else(|| Failure::Other(format!("{method} was not answered")))
    }

    /// The allocator's answer to each request.
    pub(crate) async fn evaluate(&self, requests: Vec<Dict<'_>>) -> Result<Vec<OwnedDict>, Failure> {
        Ok(self.manager.evaluate_placement(requests, Dict::new()).await?)
    }

    /// Runs one pass and returns its report.
    pub(crate) async fn reconcile(&self) -> Result<Map<String, Value>, Failure> {
        Ok(json_of(&self.manager.reconcile(Dict::new()).await?))
    }

    /// The steps that a pass would begin with, and what is degraded now; nothing is changed.
    pub(crate) async fn preview(&self) -> Result<Map<String, Value>, Failure> {
        let mut options = Dict::new();
        options.insert("dry-run", Variant::from(true));
        Ok(json_of(&self.manager.reconcile(options).await?))
    }

    /// Starts a rebind job, or with a dry run only plans it; returns the job's path and the planned moves.
    pub(crate) async fn rebind(
        &self,
        scope: &str,
        deadline_s: u32,
        dry_run: bool,
    ) -> Result<(OwnedObjectPath, Vec<MoveRow>), Failure> {
        let mut options = Dict::new();
        if dry_run {
            options.insert("dry-run", Variant::from(true));
        }
        Ok(self.manager.rebind(scope, deadline_s, options).await?)
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Deregisters an instance; returns the full UID.
    pub(crate) async fn deregister(&self, uid: &str) -> Result<String, Failure> {
        let (uid, ..) = self.find(uid).await?;
        self.manager.deregister(&uid, Dict::new()).await?;
        Ok(uid)
    }

    pub(crate) async fn reload(&self) -> Result<(), Failure> {
        Ok(self.manager.reload().await?)
    }
}

/// The row that `uid` names: an exact match, else the only one that begins with it.
fn pick(rows: Vec<InstanceRow>, uid: &str) -> Result<InstanceRow, Failure> {
    if uid.is_empty() {
        return Err(Failure::Usage("the UID is empty".to_owned()));
    }
    let (exact, others): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .filter(|row| row.0.starts_with(uid))
        .partition(|row| row.0 == uid);
    let mut fitting = if exact.is_empty() { others } else { exact };
    match (fitting.pop(), fitting.len()) {
        (Some(row), 0) => Ok(row),
        (Some(row), _) => {
            let mut uids: Vec<_> = fitting.into_iter().chain([row]).map(|row| row.0).collect();
            uids.sort();
            Err(Failure::Usage(format!(
                "more than one instance begins with {uid}: {}",
                uids.join(", ")
            )))
        }
        (None, _) => Err(no_instance(uid)),
    }
}

pub(crate) fn no_instance(uid: &str) -> Failure {
    Failure::NoSuchInstance(format!("pod {uid} has no instance on this node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(uids: &[&str]) -> Vec<InstanceRow> {
        let path = OwnedObjectPath::try_from("/io/stelia/Isolation1/instance/x").unwrap();
        let row = |uid: &&str| {
            (
                uid.to_string(),
                "vm".to_owned(),
                path.clone(),
                "isolated".to_owned(),
                "2-3".to_owned(),
            )
        };
        uids.iter().map(row).collect()
    }

    #[test]
    fn a_unique_beginning_is_enough() {
        assert_eq!(pick(rows(&["aaa-1", "aab-2"]), "aab").unwrap().0, "aab-2");
    }

    #[test]
    fn an_exact_uid_wins_over_a_longer_one() {
        assert_eq!(pick(rows(&["aa", "aab"]), "aa").unwrap().0, "aa");
    }

    #[test]
    fn an_ambiguous_beginning_names_what_fits() {
        let failure = pick(rows(&["aab", "aaa", "b"]), "aa").unwrap_err();
        assert_eq!(failure.to_string(), "more than one instance begins with aa: aaa, aab");
        assert_eq!(failure.exit_code(), 2);
    }

    #[test]
    fn an_unknown_uid_has_its_own_exit_code() {
        assert_eq!(pick(rows(&["aaa"]), "c").unwrap_err().exit_code(), 3);
        assert_eq!(pick(rows(&["aaa"]), "").unwrap_err().exit_code(), 2);
    }
}
