//! Whether steliad admits VMs, as it says on the system bus.

use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use stelia_api::{BUS_NAME, MANAGER_PATH};
use stelia_model::Description;
use stelia_text::excerpt;
use tokio::sync::{Notify, watch};
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, PropertiesProxy};
use zbus::names::{OwnedUniqueName, UniqueName};
use zbus::proxy::CacheProperties;

use crate::offer::Admission;

const MANAGER: &str = "io.stelia.Isolation1.Manager";

/// How long the bus or the daemon may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long any other call may take: longer, so that a daemon that does not answer is told from a connection that broke.
const BUS_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the daemon is asked although it reported no change. With [`CALL_TIMEOUT`] it bounds how long a daemon that hangs counts as
/// one that admits VMs.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Limit of the time until devices are unhealthy after the daemon has stopped to answer.
const MAX_DELAY: Duration = Duration::from_secs(5);
const _: () = assert!(CHECK_INTERVAL.as_millis() + CALL_TIMEOUT.as_millis() < MAX_DELAY.as_millis());

/// The pause before the bus is tried again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// What is known before the daemon was asked.
pub(crate) fn unknown() -> Admission {
    Admission {
        problem: Some("steliad has not been asked yet".to_owned()),
        capacity: None,
    }
}

/// Follows the daemon.
pub(crate) struct Follower {
    /// The system bus, or another one in tests.
    pub(crate) bus: Option<String>,
    pub(crate) admission: watch::Sender<Admission>,
    /// Whether the daemon is asked for how many VMs the node has room.
    pub(crate) with_capacity: bool,
    /// That the number may be another one: kubelet was restarted.
    pub(crate) capacity_changed: std::sync::Arc<Notify>,
}

impl Follower {
    /// Follows the daemon as long as it is polled.
    pub(crate) async fn follow(&self) {
        loop {
            let error = match self.connect().await {
                Ok(connection) => self.follow_on(&connection).await,
                Err(error) => error,
            };
            // Nothing that was known holds: what changes meanwhile is not heard.
            self.report(Some(format!("steliad cannot be asked over the system bus: {error}")));
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let builder = match &self.bus {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        let connected = builder.method_timeout(BUS_TIMEOUT).build();
        match tokio::time::timeout(CALL_TIMEOUT, connected).await {
            Ok(connection) => connection.map_err(|error| excerpt::cause(&error)),
            Err(_) => Err(format!("no connection within {} ms", CALL_TIMEOUT.as_millis())),
        }
    }

    /// Follows whoever has the daemon's name. Returns why this connection is of no more use.
    async fn follow_on(&self, connection: &Connection) -> String {
        match self.follow_owners(connection).await {
            Ok(never) => match never {},
            Err(error) => excerpt::cause(&error),
        }
    }

    async fn follow_owners(&self, connection: &Connection) -> zbus::Result<std::convert::Infallible> {
        let bus = DBusProxy::builder(connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        // Before the first question, so that no change falls between.
        let mut changes = bus.receive_name_owner_changed_with_args(&[(0, BUS_NAME)]).await?;
        loop {
            while let Some(Some(_)) = changes.next().now_or_never() {}
            match owner(&bus).await? {
                Some(owner) => self.follow_daemon(connection, owner.into_inner(), &mut changes).await?,
                None => {
                    self.report(Some("steliad does not run".to_owned()));
                    changes.next().await.ok_or_else(closed)?;
                }
            }
        }
    }

    /// Follows this daemon until the owner of the name changes. It is called by its unique name: that starts no other, and no other answers.
    async fn follow_daemon(
        &self,
        connection: &Connection,
        daemon: UniqueName<'static>,
        owner_changes: &mut (impl Stream<Item = impl Sized> + Unpin),
    ) -> zbus::Result<()> {
        let builder = PropertiesProxy::builder(connection).cache_properties(CacheProperties::No);
        let properties = builder.destination(daemon).path(MANAGER_PATH).build().await?;
        let mut changes = properties.receive_properties_changed().await?;
        let mut capacity_is_known = !self.with_capacity;
        loop {
            // One question is enough for all changes that were reported before it.
            while let Some(Some(_)) = changes.next().now_or_never() {}
            let problem = problem(&properties).await;
            let answered = problem.is_ok();
            if !capacity_is_known && answered {
                // Before the devices become healthy, so that kubelet gets one list and not two.
                capacity_is_known = self.ask_capacity(&properties).await;
            }
            self.report(problem.unwrap_or_else(Some));
            tokio::select! {
                change = owner_changes.next() => {
                    change.ok_or_else(closed)?;
                    return Ok(());
                }
                change = changes.next() => drop(change.ok_or_else(closed)?),
                () = self.capacity_changed.notified(), if self.with_capacity => capacity_is_known = false,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Asks the daemon for how many VMs the node has room. Returns whether it said so.
    async fn ask_capacity(&self, properties: &PropertiesProxy<'_>) -> bool {
        let destination = properties.inner().destination().clone();
        let call = properties.inner().connection().call_method(
            Some(destination),
            MANAGER_PATH,
            Some(MANAGER),
            "Describe",
            &(),
        );
        let answer = match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::debug!("Describe: {error}");
                return false;
            }
            Err(_) => return false,
        };
        let capacity = answer
            .body()
            .deserialize::<String>()
            .ok()
            .and_then(|json| capacity(&json));
        if let Some(capacity) = capacity {
            self.admission.send_if_modified(|admission| {
                let before = admission.capacity.replace(capacity);
                before != Some(capacity)
            });
        }
        capacity.is_some()
    }

    fn report(&self, problem: Option<String>) {
        self.admission.send_if_modified(|admission| {
            let is_new = admission.problem != problem;
            admission.problem = problem;
            is_new
        });
    }
}

async fn owner(bus: &DBusProxy<'_>) -> zbus::Result<Option<OwnedUniqueName>> {
    let name = zbus::names::BusName::from_static_str(BUS_NAME)?;
    match bus.get_name_owner(name).await {
        Ok(owner) => Ok(Some(owner)),
        Err(zbus::fdo::Error::NameHasNoOwner(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Why the daemon would admit no VM, as it says; the error is why it does not say it.
async fn problem(properties: &PropertiesProxy<'_>) -> Result<Option<String>, String> {
    let interface = zbus::names::InterfaceName::from_static_str(MANAGER).map_err(|error| error.to_string())?;
    let asked = properties.get(interface, "AdmissionProblem");
    let value = match tokio::time::timeout(CALL_TIMEOUT, asked).await {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            return Err(format!(
                "steliad does not say whether it admits VMs: {}",
                excerpt::cause(&error)
            ));
        }
        Err(_) => return Err(format!("steliad did not answer within {} ms", CALL_TIMEOUT.as_millis())),
    };
    let text = String::try_from(value).map_err(|error| format!("AdmissionProblem of steliad: {error}"))?;
    Ok((!text.is_empty()).then(|| excerpt::cause(&text)))
}

fn capacity(json: &str) -> Option<u32> {
    let description: Description = serde_json::from_str(json).ok()?;
    Some(description.vm_capacity())
}

fn closed() -> zbus::Error {
    zbus::Error::Failure("the connection was closed".to_owned())
}
