//! The administrators' door: the system bus.

use zbus::{Connection, connection::Builder, fdo};

use super::caller::Door;
use super::export::Exporter;
use super::manager::Manager;
use super::{BUS_NAME, MANAGER_PATH};
use crate::engine::Handle;

/// A connection to the system bus.
pub type Bus = Connection;

/// Connect, without a name yet.
///
/// # Errors
/// There is no system bus.
pub async fn connect() -> zbus::Result<Bus> {
    Builder::system().build().await
}

/// Serve the engine on this connection, and then take the name.
///
/// # Errors
/// The name is taken or the policy does not let us have it.
pub async fn serve(connection: &Bus, engine: Handle) -> zbus::Result<()> {
    let exporter = Exporter::new(engine.clone(), Door::Bus, None);
    exporter.attach(connection);
    let server = connection.object_server();
    server.at(MANAGER_PATH, fdo::ObjectManager).await?;
    server
        .at(
            MANAGER_PATH,
            Manager {
                engine,
                door: Door::Bus,
                exporter: exporter.clone(),
                readings: super::readings::Readings::default(),
            },
        )
        .await?;
    tokio::spawn(async move { exporter.follow().await });
    connection.request_name(BUS_NAME).await
}
