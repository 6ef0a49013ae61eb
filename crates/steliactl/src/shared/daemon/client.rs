//! The calls to the daemon.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::client::{Dict, ManagerProxy, MoveRow, OwnedDict};
use stelia_api::{BUS_NAME, MANAGER_PATH, NOT_PINNED, Reason, ReasonCode, State, instance_path};
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::record::VcpuThread;
use stelia_model::{Instance, PinnedThread, Unadopted};
use stelia_settings::Isolation;
use tokio::time::timeout;
use zbus::names::InterfaceName;
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::wire::DynamicDeserialize;
use zbus::{Connection, OwnedObjectPath, Variant, connection, fdo};

use super::failure::{Failure, is_silent};
use super::name;
use super::node::{self, Description};
use super::pod::{Pod, Pods};
use crate::shared::output::{json_of, text_of};

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

/// A VM that was asked for by name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub pod: Pod,
    /// Its object on the bus.
    pub path: OwnedObjectPath,
    pub cpus: CpuSet,
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

    /// The VM that `vm` names. If it is only the beginning of a UID, that is noted.
    ///
    /// # Errors
    /// No VM fits, or more than one does.
    pub(crate) async fn find(&self, vm: &str) -> Result<Found, Failure> {
        self.found(vm, false).await
    }

    /// As [`Client::find`], for a command that changes something.
    ///
    /// # Errors
    /// As [`Client::find`]; and the beginning of the UID is too short.
    pub(crate) async fn find_for_change(&self, vm: &str) -> Result<Found, Failure> {
        self.found(vm, true).await
    }

    async fn found(&self, vm: &str, for_change: bool) -> Result<Found, Failure> {
        let described = self.view().await?;
        let pod = name::one(Pods::of(&described).into_pods(), vm, for_change)?;
        let found = described.node.instances.get_key_value(pod.pod_uid.as_str());
        let (uid, instance) = found.ok_or_else(|| name::no_instance(vm))?;
        Ok(Found {
            path: path_of(uid)?,
            cpus: instance.exclusive.clone(),
            pod,
        })
    }

    /// All properties of an instance, read in one call.
    pub(crate) async fn properties(&self, uid: &PodUid) -> Result<Map<String, Value>, Failure> {
        let properties = fdo::PropertiesProxy::builder(self.connection())
            .destination(BUS_NAME)
            .path(path_of(uid)?)
            .build()
            .await?;
        Ok(json_of(
            &self.answer_in_time(properties.get_all(INSTANCE_INTERFACE)).await?,
        ))
    }

    /// The node. A daemon that does not run is not started for it.
    pub(crate) async fn describe(&self) -> Result<Description, Failure> {
        node::parsed("Describe", &self.without_start::<String>("Describe", &()).await?)
    }

    /// What the caller may know: the node; of a pod, which may not ask for that, its own VM alone.
    pub(crate) async fn view(&self) -> Result<Description, Failure> {
        match self.describe().await {
            Err(_) if !self.connection().is_bus() => self.own().await,
            answer => answer,
        }
    }

    async fn own(&self) -> Result<Description, Failure> {
        let mut description = Description::default();
        for row in self.answer_in_time(self.manager.list_instances()).await? {
            let Ok(uid) = PodUid::parse(&row.0) else { continue };
            let properties = match self.properties(&uid).await {
                Ok(properties) => properties,
                // It ended meanwhile.
                Err(Failure::NoSuchInstance(_)) => continue,
                Err(failure) => return Err(failure),
            };
            let instance = Arc::new(instance_of(&properties));
            description.node.instances.insert(uid, instance);
        }
        Ok(description)
    }

    /// The VMs of a running daemon, as far as the caller may know them.
    pub(crate) async fn pods_running(&self) -> Pods {
        let described = self.view().await;
        described.as_ref().map(Pods::of).unwrap_or_default()
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
    /// The VMs and containers that the rules of this configuration match and that are not managed.
    pub(crate) async fn preview_adoption(&self, config: &str) -> Result<Vec<Unadopted>, Failure> {
        let preview = self.manager.preview_adoption(config, Dict::new());
        node::parsed("PreviewAdoption", &self.answer_in_time(preview).await?)
    }

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
        let found = self.find_for_change(vm).await?;
        self.answer_while_alive(self.manager.deregister(&found.pod.pod_uid, Dict::new()))
            .await?;
        Ok((found.pod, found.cpus.to_string()))
    }
}

fn path_of(uid: &PodUid) -> Result<OwnedObjectPath, Failure> {
    let path = OwnedObjectPath::try_from(instance_path(uid));
    path.map_err(|cause| Failure::Other(format!("the object path of pod {uid}: {cause}")))
}

/// The VM by the properties of its object, which has less than `Describe` says.
fn instance_of(properties: &Map<String, Value>) -> Instance {
    let text = |name| text_of(properties, name);
    let number = |name| properties.get(name).and_then(Value::as_u64);
    let cpus = |name| text(name).parse::<CpuSet>().unwrap_or_default();
    let path = |name| CgroupPath::parse(text(name)).unwrap_or_default();
    let rows = |name| properties.get(name).and_then(Value::as_array).into_iter().flatten();
    let vcpu = |row: &Value| {
        let number = |at| u32::try_from(row.get(at)?.as_u64()?).ok();
        let thread = VcpuThread {
            role: number(0)?.into(),
            task: TaskId {
                id: number(1)?.try_into().ok()?,
                ..TaskId::default()
            },
            cpu: number(2).filter(|cpu| *cpu != NOT_PINNED),
        };
        Some(PinnedThread {
            thread,
            ..PinnedThread::default()
        })
    };
    Instance {
        pod_name: PodName::new(text("PodNamespace"), text("PodName")),
        container: text("Container").to_owned(),
        adopted_by: Some(text("AdoptedBy").to_owned()).filter(|rule| !rule.is_empty()),
        state: State::parse(text("State")).unwrap_or_default(),
        isolation: Isolation::parse(text("Isolation")).unwrap_or_default(),
        degraded: rows("Degraded").filter_map(reason_of).collect(),
        not_isolated: rows("NotIsolated").find_map(reason_of),
        exclusive: cpus("ExclusiveCPUs"),
        float: cpus("FloatCPUs"),
        registered_us: number("RegisteredTimestamp").unwrap_or(0),
        isolated_us: number("IsolatedTimestamp").unwrap_or(0),
        memory_limit: number("MemoryLimit").filter(|bytes| *bytes < u64::MAX),
        partition: text("Partition").to_owned(),
        scope: path("ControlGroup"),
        origin: path("OriginControlGroup"),
        vcpus: rows("VCPUs").filter_map(vcpu).collect(),
        ..Instance::default()
    }
}

/// A reason from a row of D-Bus: code, text, fix.
pub(crate) fn reason_of(row: &Value) -> Option<Reason> {
    let text = |at| row.get(at).and_then(Value::as_str);
    // A newer daemon has other codes.
    let code = ReasonCode::parse(text(0)?).unwrap_or(ReasonCode::Detail);
    let reason = Reason::of_node(code, text(1)?);
    Some(reason.with_fix(text(2)?.to_owned()))
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

    #[test]
    fn a_pods_own_vm_is_what_its_properties_say() {
        let properties = serde_json::json!({
            "PodNamespace": "team-a", "PodName": "web", "State": "waiting", "ExclusiveCPUs": "4-5", "MemoryLimit": u64::MAX,
            "ControlGroup": "/stelia.slice/a.scope", "VCPUs": [[0, 70, 4], [1, 71, NOT_PINNED]],
            "NotIsolated": [["no-vcpus", "waiting for vCPUs", "read the log"]], "Degraded": [["of-a-newer-daemon", "x", "y"]],
        });
        let instance = instance_of(properties.as_object().unwrap());
        assert_eq!((instance.name(), instance.state), ("web", State::Waiting));
        assert_eq!((instance.exclusive.len(), instance.memory_limit), (2, None));
        let cpus: Vec<Option<u32>> = instance.vcpus.iter().map(|one| one.thread.cpu).collect();
        assert_eq!(cpus, [Some(4), None]);
        let reason = instance.not_isolated.unwrap();
        assert_eq!(
            (reason.code, reason.fix.as_str()),
            (ReasonCode::NoVcpus, "read the log")
        );
        assert_eq!(instance.degraded[0].code, ReasonCode::Detail);
    }
}
