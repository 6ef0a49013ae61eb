//! The administrators' entry point: the system bus.

use futures_util::StreamExt as _;
use stelia_api::{BUS_NAME, MANAGER_PATH};
use zbus::Connection;
use zbus::address::Address;
use zbus::fdo::{DBusProxy, NameLostStream, RequestNameFlags};
use zbus::names::BusName;

use super::bus_gate;
use super::caller::{EntryPoint, Users};
use super::exported_objects::Exporter;
use super::manager::Manager;
use super::object_tree::ObjectTree;
use crate::engine::Handle;

/// A connection on which users of a bus are answered.
#[derive(Debug, Clone)]
pub struct Bus {
    connection: Connection,
    users: Users,
}

impl std::ops::Deref for Bus {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// Why the bus cannot be served, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Another daemon has the name.
    #[error("already running{}", .0.map(|pid| format!(" (PID {pid})")).unwrap_or_default())]
    AlreadyRunning(Option<u32>),
    /// The connection was closed: the bus ended or was started anew.
    #[error("the system bus went away")]
    Gone,
    /// Another process took the name.
    #[error("the bus name {BUS_NAME} was lost")]
    NameLost,
    /// The bus refuses.
    #[error(transparent)]
    Bus(#[from] zbus::Error),
}

impl Bus {
    /// Connect to a bus, without a name yet.
    pub(super) async fn connect(address: &Address) -> zbus::Result<Self> {
        let users = Users::default();
        let connection = bus_gate::connect_service(address, &users).await?;
        Ok(Self { connection, users })
    }

    #[cfg(test)]
    pub(super) async fn close(self) -> zbus::Result<()> {
        self.connection.close().await
    }
}

/// Connect to the system bus, without a name yet.
///
/// # Errors
/// There is no system bus.
pub async fn connect() -> zbus::Result<Bus> {
    Bus::connect(&Address::system()?).await
}

/// A connection to the system bus for the daemon's own calls. What callers keep another one waiting for is none of its business.
///
/// # Errors
/// There is no system bus.
pub async fn connect_client() -> zbus::Result<Connection> {
    bus_gate::connect_client(&Address::system()?).await
}

/// Make sure that no daemon runs, before anything of the system is touched.
///
/// The name is not taken yet, since a call that it draws would be answered before the first pass has adopted what is there.
/// Two daemons that start at the same moment may both pass this check; one of them fails in [`serve`].
///
/// # Errors
/// [`BusError::AlreadyRunning`], or the bus does not answer.
pub async fn check_alone(connection: &Bus) -> Result<(), BusError> {
    let bus = DBusProxy::new(connection).await?;
    if bus.name_has_owner(name()?).await.map_err(zbus::Error::from)? {
        return Err(already_running(&bus).await);
    }
    Ok(())
}

fn name() -> zbus::Result<BusName<'static>> {
    BusName::try_from(BUS_NAME)
}

async fn already_running(bus: &DBusProxy<'_>) -> BusError {
    // It may have ended meanwhile: that it ran is reason enough.
    let pid = match name() {
        Ok(name) => bus.get_connection_unix_process_id(name).await.ok(),
        Err(_) => None,
    };
    BusError::AlreadyRunning(pid)
}

/// Serve the engine on this connection, and then take the name. It is not taken from a process that has it, and cannot
/// be taken away.
///
/// The user `root` may do everything: 0, or the user who runs a simulated node.
///
/// # Errors
/// [`BusError::AlreadyRunning`], or the policy does not let us have the name.
pub async fn serve(connection: &Bus, engine: Handle, root: u32) -> Result<Name, BusError> {
    connection.users.limits.set_root(root);
    let entry_point = EntryPoint::Bus(connection.users.clone());
    let exporter = Exporter::new(engine.clone(), entry_point.clone(), None);
    exporter.attach(connection);
    let server = connection.object_server();
    server
        .at(MANAGER_PATH, ObjectTree::new(exporter.clone(), entry_point.clone()))
        .await?;
    let manager = Manager {
        engine,
        entry_point,
        exporter: exporter.clone(),
        readings: super::cached_readings::Readings::default(),
    };
    server.at(MANAGER_PATH, manager).await?;
    tokio::spawn(async move { exporter.follow().await });
    take_name(connection).await
}

async fn take_name(connection: &Bus) -> Result<Name, BusError> {
    let bus = DBusProxy::new(connection).await?;
    // Listen before there is something to lose.
    let lost = bus.receive_name_lost_with_args(&[(0, BUS_NAME)]).await?;
    let taken = connection.request_name_with_flags(BUS_NAME, RequestNameFlags::DO_NOT_QUEUE);
    match taken.await {
        Ok(_) => Ok(Name {
            connection: connection.connection.clone(),
            lost,
        }),
        Err(zbus::Error::NameTaken) => Err(already_running(&bus).await),
        Err(cause) => Err(cause.into()),
    }
}

/// The daemon's name on the bus.
#[derive(Debug)]
pub struct Name {
    connection: Connection,
    lost: NameLostStream,
}

impl Name {
    /// Wait until the name or the whole bus is lost: no caller can reach the daemon then, and it cannot reach systemd.
    /// zbus does not connect again, so a daemon that went on would be useless.
    pub async fn lost(&mut self) -> BusError {
        let told = tokio::select! {
            biased;
            () = self.connection.closed() => None,
            told = self.lost.next() => told,
        };
        match told {
            Some(_) if !self.connection.is_closed() => BusError::NameLost,
            _ => BusError::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::test_bus::PrivateBus;
    use super::*;

    async fn lost(name: &mut Name) -> BusError {
        tokio::time::timeout(Duration::from_secs(10), name.lost())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_second_daemon_is_told_of_the_first_and_takes_nothing_from_it() {
        let bus = PrivateBus::start();
        let (first, second) = (bus.connect().await, bus.connect().await);
        check_alone(&first).await.unwrap();
        let mut name = take_name(&first).await.unwrap();
        for error in [
            check_alone(&second).await.unwrap_err(),
            take_name(&second).await.unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                format!("already running (PID {})", std::process::id())
            );
        }
        // Nor does one that asks to replace the owner get it.
        let flags = RequestNameFlags::REPLACE_EXISTING | RequestNameFlags::DO_NOT_QUEUE;
        assert!(second.request_name_with_flags(BUS_NAME, flags).await.is_err());
        let still = tokio::time::timeout(Duration::from_millis(100), name.lost()).await;
        assert!(still.is_err());
        first.close().await.unwrap();
        drop(name);
        let bus = DBusProxy::new(&second).await.unwrap();
        while bus.name_has_owner(super::name().unwrap()).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        check_alone(&second).await.unwrap();
    }

    #[tokio::test]
    async fn the_bus_is_asked_once_who_a_sender_is() {
        let bus = PrivateBus::start();
        let (daemon, client) = (bus.connect().await, bus.connect().await);
        let sender = client.unique_name().unwrap().to_owned();
        let users = Users::default();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(users.of(&daemon, &sender).await.unwrap(), own);
        client.close().await.unwrap();
        let bus = DBusProxy::new(&daemon).await.unwrap();
        while bus.name_has_owner(sender.as_ref().into()).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The bus does not know it any more.
        assert_eq!(users.of(&daemon, &sender).await.unwrap(), own);
        assert!(Users::default().of(&daemon, &sender).await.is_err());
    }

    #[tokio::test]
    async fn a_bus_that_ends_and_a_name_that_is_taken_away_are_noticed() {
        let mut bus = PrivateBus::start();
        let connection = bus.connect().await;
        let mut name = take_name(&connection).await.unwrap();
        let proxy = DBusProxy::new(&connection).await.unwrap();
        proxy.release_name(BUS_NAME.try_into().unwrap()).await.unwrap();
        assert!(matches!(lost(&mut name).await, BusError::NameLost));
        bus.stop();
        assert!(matches!(lost(&mut name).await, BusError::Gone));
    }
}
