//! The parts of the plugin, put together.

use std::path::PathBuf;
use std::sync::Arc;

use stelia_settings::DevicePluginSettings;
use tokio::sync::{Notify, watch};

use crate::container_files::Paths;
use crate::daemon::{Follower, unknown};
use crate::offer::{Admission, Offer};
use crate::registration::{Fatal, Registrar, Registration};
use crate::service::Shared;
use crate::status;

/// What the plugin works with.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    /// kubelet's folder of plugins' sockets.
    pub(crate) folder: PathBuf,
    pub(crate) settings: DevicePluginSettings,
    /// The D-Bus address of the bus that steliad is on; the system bus if absent.
    pub(crate) bus: Option<String>,
    pub(crate) runner: PathBuf,
    pub(crate) socket_folder: PathBuf,
    pub(crate) cdi_folder: PathBuf,
}

/// Runs until the program has to end. Dropping it removes the socket.
pub(crate) async fn run(configuration: Configuration) -> Result<std::convert::Infallible, Fatal> {
    let Configuration {
        folder,
        settings,
        bus,
        runner,
        socket_folder,
        cdi_folder,
    } = configuration;
    let admission = watch::Sender::new(unknown());
    let first = Offer::new(&settings, &unknown());
    let offers = watch::Sender::new(first.clone());
    let kubelet_changed = Arc::new(Notify::new());
    let follower = Follower {
        bus,
        admission: admission.clone(),
        with_capacity: settings.vms.is_none(),
        capacity_changed: kubelet_changed.clone(),
    };
    let paths = Paths {
        runner,
        socket_folder,
        devices: settings.device_nodes.clone(),
    };
    let registrar = Registrar {
        folder,
        shared: Shared::new(offers.subscribe(), paths, settings.cdi.then_some(cdi_folder)),
        state: watch::Sender::new(Registration::Starting),
        registered: kubelet_changed,
    };
    let report = status::report(first, offers.subscribe(), registrar.state.subscribe());
    tokio::select! {
        () = follower.follow() => std::future::pending().await,
        () = offer(&settings, admission.subscribe(), &offers) => std::future::pending().await,
        () = report => std::future::pending().await,
        fatal = registrar.run() => fatal,
    }
}

/// Makes an offer of each change of what is known of the daemon.
async fn offer(
    settings: &DevicePluginSettings,
    mut admission: watch::Receiver<Admission>,
    offers: &watch::Sender<Offer>,
) {
    loop {
        let offer = Offer::new(settings, &admission.borrow_and_update());
        offers.send_if_modified(|before| {
            let is_new = *before != offer;
            *before = offer;
            is_new
        });
        if admission.changed().await.is_err() {
            return;
        }
    }
}
