//! The parts of the plugin, put together.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use stelia_cpus::CpuSet;
use stelia_settings::DevicePluginSettings;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::allocated_devices::AllocatedDevices;
use crate::cdi::CdiFile;
use crate::daemon::Follower;
use crate::file_error::FileError;
use crate::offer::{Admission, Offer, OfferFacts};
use crate::registration::{KubeletRegistration, Registrar};
use crate::required_files::{Paths, RequiredFiles};
use crate::service::Shared;
use crate::status;

/// How often the files that containers get, and kubelet's record, are looked at. systemd's watchdog is fed as often.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// For how long the program waits for the daemon before it says that it is ready: kubelet's start waits for that.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of online CPUs.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";

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
pub(crate) async fn run(configuration: Configuration) -> Result<Infallible, FileError> {
    let Configuration {
        folder,
        settings,
        bus,
        runner,
        socket_folder,
        cdi_folder,
    } = configuration;
    let paths = Paths {
        runner,
        socket_folder,
        devices: settings.device_nodes.clone(),
    };
    let admission = watch::Sender::new(Admission::unknown());
    let registered = watch::Sender::new(None);
    let mut offerer = Offerer {
        admission: admission.subscribe(),
        registered: registered.subscribe(),
        allocated: AllocatedDevices::new(&folder),
        paths: paths.clone(),
        settings: settings.clone(),
        fed: None,
    };
    // Before kubelet starts a container again with the name that it got before.
    let (files, first) = offerer.look();
    let offers = watch::Sender::new(first);
    let shared = Shared::new(offers.subscribe(), paths, CdiFile::new(cdi_folder, settings.cdi));
    shared.cdi.write(&files.devices)?;
    let follower = Follower {
        bus,
        admission: admission.clone(),
    };
    let registrar = Registrar {
        folder,
        shared: shared.clone(),
        state: watch::Sender::new(KubeletRegistration::Starting),
        registered,
    };
    let report = async {
        answer_or_timeout(admission.subscribe()).await;
        status::notify(&[NotifyState::Ready]);
        status::report(offers.subscribe(), registrar.state.subscribe()).await;
    };
    // In this order, so that what is reported is the offer after the last change.
    tokio::select! {
        biased;
        () = follower.follow() => std::future::pending().await,
        ended = offerer.run(&offers, &shared) => ended,
        () = report => std::future::pending().await,
        ended = registrar.run() => ended,
    }
}

async fn answer_or_timeout(mut admission: watch::Receiver<Admission>) {
    let answered = async {
        while !admission.borrow_and_update().answered {
            if admission.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(READY_TIMEOUT, answered).await;
}

/// What makes the offers.
struct Offerer {
    admission: watch::Receiver<Admission>,
    /// When the plugin registered for the first time.
    registered: watch::Receiver<Option<Instant>>,
    allocated: AllocatedDevices,
    paths: Paths,
    settings: DevicePluginSettings,
    /// When systemd's watchdog was last fed.
    fed: Option<Instant>,
}

impl Offerer {
    /// Makes an offer of each change of what is known, as long as it is polled.
    ///
    /// # Errors
    ///
    /// The folder of CDI files is read-only for this process, and containers get the name of its device.
    async fn run(mut self, offers: &watch::Sender<Offer>, shared: &Arc<Shared>) -> Result<Infallible, FileError> {
        loop {
            let (files, offer) = self.look();
            shared.cdi.write(&files.devices)?;
            offers.send_if_modified(|before| {
                let is_new = *before != offer;
                *before = offer;
                is_new
            });
            let now = Instant::now();
            if self.fed.is_none_or(|fed| now >= fed + CHECK_INTERVAL) {
                self.fed = Some(now);
                status::notify(&[NotifyState::Watchdog]);
            }
            let next_look = now + CHECK_INTERVAL;
            let until = self.next_change(now).map_or(next_look, |change| change.min(next_look));
            tokio::select! {
                Ok(()) = self.admission.changed() => {}
                Ok(()) = self.registered.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn look(&mut self) -> (RequiredFiles, Offer) {
        let files = RequiredFiles::read(&self.paths);
        let admission = self.admission.borrow_and_update().clone();
        let registered = *self.registered.borrow_and_update();
        let offer = Offer::new(&OfferFacts {
            settings: &self.settings,
            admission: &admission,
            files: &files,
            recorded: self.allocated.at_start(),
            allocated: self.allocated.read(),
            registered,
            online_cpus: online_cpus(Path::new(ONLINE_CPUS)),
            now: Instant::now(),
        });
        (files, offer)
    }

    /// When an offer becomes another one without any event.
    fn next_change(&self, now: Instant) -> Option<Instant> {
        let admission = self.admission.borrow();
        crate::offer::next_change(&admission, *self.registered.borrow(), now)
    }
}

/// How many CPUs are online; `None` where that cannot be read.
fn online_cpus(path: &Path) -> Option<u32> {
    let list = std::fs::read_to_string(path).ok()?;
    let cpus: CpuSet = list.trim().parse().ok()?;
    u32::try_from(cpus.len()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn online_cpus_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("online");
        assert_eq!(online_cpus(&path), None);
        std::fs::write(&path, "0-2,5\n").unwrap();
        assert_eq!(online_cpus(&path), Some(4));
    }

    #[tokio::test(start_paused = true)]
    async fn the_program_is_ready_at_the_daemons_first_answer_or_after_5_s() {
        let admission = watch::Sender::new(Admission::unknown());
        let begin = Instant::now();
        answer_or_timeout(admission.subscribe()).await;
        assert!(begin.elapsed() >= READY_TIMEOUT);
        admission.send_modify(|admission| admission.answered = true);
        let begin = Instant::now();
        answer_or_timeout(admission.subscribe()).await;
        assert!(begin.elapsed() < READY_TIMEOUT);
    }
}
