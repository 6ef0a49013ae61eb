//! The calls to the daemon.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stelia_api::client::{Dict, ManagerProxy, OwnedDict};
use stelia_api::{BUS_NAME, MANAGER_PATH, Reason, ReasonCode};
use stelia_model::{Instance, Unadopted};
use tokio::time::timeout;
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::{Connection, Variant, connection, fdo};

use super::failure::{Failure, not_answered};
use super::names;
use super::node::Description;
use super::pod::{Pod, Pods};
use super::selection::{Selected, Selection};
use crate::shared::output::{json_of, note};

/// Timeout of a call to the daemon.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(25);
/// What follows from a daemon that is not reached, where nothing was to be changed.
const RUNNING_STAY: &str = "running VMs stay isolated";

/// Connects to the system bus within `limit`: a peer may accept and not answer.
pub(crate) async fn connect(limit: Duration) -> Result<Connection, Failure> {
    let connected = timeout(limit, connection::Builder::system().build()).await;
    connected
        .map_err(|_| not_answered(limit, RUNNING_STAY))?
        .map_err(|cause| {
            let text = format!("connect to the system bus: {cause}: {RUNNING_STAY}");
            Failure::WithFix(text, "systemctl status dbus")
        })
}

/// A VM that was asked for by name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub pod: Pod,
    pub instance: Arc<Instance>,
    /// The node.
    pub described: Description,
}

#[derive(Clone)]
pub(crate) struct Client {
    manager: ManagerProxy<'static>,
    limit: Duration,
}

/// A method's answer in JSON.
pub(crate) fn parse<T: DeserializeOwned>(method: &str, answer: &str) -> Result<T, Failure> {
    serde_json::from_str(answer).map_err(|cause| {
        Failure::Other(format!(
            "{method} answers what this program does not understand; is it as new as the daemon? {cause}"
        ))
    })
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
        Ok(answer.map_err(|_| not_answered(self.limit, RUNNING_STAY))??)
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
        if let Ok(answer) = timeout(self.limit / 10, &mut call).await {
            return Ok(answer?);
        }
        if io::stderr().is_terminal() {
            note("waiting until steliad has done this; Ctrl-C ends the waiting, not the work");
        }
        loop {
            if let Ok(answer) = timeout(self.limit / 2, &mut call).await {
                return Ok(answer?);
            }
            // A refusal is an answer too.
            if timeout(self.limit / 2, peer.ping()).await.is_err() {
                return Err(not_answered(
                    self.limit,
                    "it may still do what was asked: steliactl list",
                ));
            }
        }
    }

    /// The VM that `vm` names.
    ///
    /// # Errors
    /// No VM has this name, or several have it.
    pub(crate) async fn find(&self, vm: &str) -> Result<Found, Failure> {
        let described = self.describe().await?;
        let pod = names::one(&Pods::of(&described), vm).map_err(|failure| match failure {
            Failure::NoSuchInstance(_) => Failure::NoSuchInstance(names::none_on(&described, vm)),
            failure => failure,
        })?;
        let instance = described.node.instances.get(pod.pod_uid.as_str());
        Ok(Found {
            instance: Arc::clone(instance.ok_or_else(|| names::no_instance(vm))?),
            pod,
            described,
        })
    }

    /// The node. A daemon that does not run is not started for it.
    pub(crate) async fn describe(&self) -> Result<Description, Failure> {
        let manager = self.manager.inner();
        let call = manager.call_with_flags("Describe", MethodFlags::NO_AUTO_START, &());
        let answer: Option<String> = self.answer_in_time(call).await?;
        parse("Describe", &answer.unwrap_or_default())
    }

    /// What the selection means now.
    ///
    /// # Errors
    /// No VM has its namespace, or any of its names and patterns, or the daemon does not answer.
    pub(crate) async fn select(&self, selection: &Selection) -> Result<Selected, Failure> {
        Selected::of(selection, self.describe().await?)?.without_released()
    }

    /// The VMs and containers that the rules of this configuration match and that are not managed.
    pub(crate) async fn preview_adoption(&self, config: &str) -> Result<Vec<Unadopted>, Failure> {
        let preview = self.manager.preview_adoption(config, Dict::new());
        parse("PreviewAdoption", &self.answer_in_time(preview).await?)
    }

    /// The allocator's answer to each request.
    pub(crate) async fn evaluate(&self, requests: Vec<Dict<'_>>) -> Result<Vec<OwnedDict>, Failure> {
        self.answer_in_time(self.manager.evaluate_placement(requests, Dict::new()))
            .await
    }

    /// Runs one pass and returns its report; with a dry run only the steps that it would begin with, and what is degraded
    /// now.
    pub(crate) async fn reconcile(&self, mode: Mode) -> Result<Map<String, Value>, Failure> {
        let report = self.answer_while_alive(self.manager.reconcile(options(mode))).await?;
        Ok(json_of(&report))
    }

    pub(crate) fn manager(&self) -> &ManagerProxy<'static> {
        &self.manager
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.manager.inner().connection()
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

/// Whether a method that changes something does so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Change,
    /// Only what would change is answered.
    DryRun,
}

impl Mode {
    /// By `--dry-run`.
    pub(crate) fn of(dry_run: bool) -> Self {
        if dry_run { Self::DryRun } else { Self::Change }
    }
}

/// The options of a method that changes something.
pub(crate) fn options(mode: Mode) -> Dict<'static> {
    let dry_run = (mode == Mode::DryRun).then(|| ("dry-run", Variant::from(true)));
    dry_run.into_iter().collect()
}
