//! A stand-in for systemd's manager on a connection of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use zbus::connection::Builder;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, Guid, ObjectPath, OwnedObjectPath, OwnedVariant, fdo, interface};

use super::DbusSystemd;
use super::bus::UnitRow;

const MANAGER: &str = "/org/freedesktop/systemd1";
const UNIT: &str = "/org/freedesktop/systemd1/unit/a";

/// How it behaves.
#[derive(Clone, Default)]
pub(super) struct Fake {
    /// The caller is subscribed from before.
    pub(super) subscribed: bool,
    /// It tells of no job's end.
    pub(super) silent: bool,
    /// The unit does not become active.
    pub(super) fails: bool,
    /// It leaves the bus when it is asked for a change for the first time, having made it.
    pub(super) leaves: bool,
    /// It answers nothing.
    pub(super) hangs: bool,
    pub(super) calls: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refused {
    #[zbus(error)]
    Transport(zbus::Error),
    AlreadySubscribed(String),
}

type Properties = Vec<(String, OwnedVariant)>;

impl Fake {
    /// Serve; answers the server's end, which must be kept, and who speaks to it.
    pub(super) async fn serve(self) -> (Connection, DbusSystemd) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let server = Builder::unix_stream(ours).server(Guid::generate()).p2p();
        let unit = Unit(if self.fails { "failed" } else { "active" });
        let server = server.serve_at(MANAGER, self).serve_at(UNIT, unit).build();
        let client = Builder::unix_stream(theirs).p2p().build();
        let (server, client) = tokio::join!(server, client);
        let mut systemd = DbusSystemd::new(client.unwrap());
        systemd.poll_interval = Duration::from_millis(200);
        (server.unwrap(), systemd)
    }

    async fn told(&self, call: &str) {
        self.calls.lock().unwrap().push(call.to_owned());
        if self.hangs {
            std::future::pending().await
        }
    }

    /// What the bus says in place of who left.
    fn gone(&self, call: &str) -> fdo::Result<()> {
        let calls = self.calls.lock().unwrap();
        let first = calls.iter().filter(|told| *told == call).count() == 1;
        if self.leaves && first {
            Err(fdo::Error::NoReply(
                "Message recipient disconnected from message bus".into(),
            ))
        } else {
            Ok(())
        }
    }

    fn is_subscribed(&self) -> bool {
        let calls = self.calls.lock().unwrap();
        let last = calls.iter().rfind(|call| call.ends_with("ubscribe"));
        self.subscribed || last.is_some_and(|call| call == "Subscribe")
    }
}

/// The calls that came in, once those that are not answered are in too.
pub(super) async fn told(server: &Connection) -> Vec<String> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    let fake = server.object_server().interface::<_, Fake>(MANAGER).await.unwrap();
    let fake = fake.get().await;
    fake.calls.lock().unwrap().clone()
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Fake {
    async fn subscribe(&self) -> Result<(), Refused> {
        let before = self.is_subscribed();
        self.told("Subscribe").await;
        if before {
            return Err(Refused::AlreadySubscribed("Client is already subscribed.".into()));
        }
        Ok(())
    }

    async fn unsubscribe(&self) {
        self.told("Unsubscribe").await;
    }

    async fn get_unit(&self, _name: &str) -> OwnedObjectPath {
        self.told("GetUnit").await;
        UNIT.try_into().unwrap()
    }

    async fn start_transient_unit(
        &self,
        name: &str,
        _mode: &str,
        _properties: Properties,
        _aux: Vec<(String, Properties)>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<OwnedObjectPath> {
        self.told("StartTransientUnit").await;
        self.gone("StartTransientUnit")?;
        let path = format!("/job/{}", name.replace('.', "_"));
        let job: OwnedObjectPath = path.try_into().unwrap();
        let (fake, emitter) = (self.clone(), emitter.into_owned());
        let (told, name) = (job.clone(), name.to_owned());
        tokio::spawn(async move {
            let slow = name.starts_with("slow");
            tokio::time::sleep(Duration::from_millis(if slow { 150 } else { 20 })).await;
            if fake.is_subscribed() && !fake.silent {
                let _ = Self::job_removed(&emitter, 1, told.into(), &name, "done").await;
            }
        });
        Ok(job)
    }

    async fn list_units_by_patterns(&self, _states: Vec<String>, _patterns: Vec<String>) -> Vec<UnitRow> {
        self.told("ListUnitsByPatterns").await;
        Vec::new()
    }

    async fn stop_unit(&self, _name: &str, _mode: &str) -> OwnedObjectPath {
        self.told("StopUnit").await;
        "/job/1".try_into().unwrap()
    }

    async fn set_unit_properties(&self, _name: &str, _runtime: bool, _properties: Properties) -> fdo::Result<()> {
        self.told("SetUnitProperties").await;
        self.gone("SetUnitProperties")
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

/// With its state.
struct Unit(&'static str);

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn active_state(&self) -> &str {
        self.0
    }

    #[zbus(property)]
    fn job(&self) -> (u32, ObjectPath<'_>) {
        (0, ObjectPath::try_from("/").unwrap())
    }
}
