//! Keeps the plugin registered with kubelet: its socket is in kubelet's folder, and kubelet has a stream of its devices.

mod decide;
mod folder_watch;
mod socket;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::api::transport::Channel;
use crate::api::v1beta1::{DevicePluginOptions, RegisterRequest};
use crate::api::{KUBELET_SOCKET, VERSION};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::file_error::FileError;
use crate::required_files::RequiredFiles;
use crate::service::Shared;
use crate::{RESOURCE, connections};
use decide::{History, Next, Situation, next};
use folder_watch::FolderWatch;
use socket::{PluginSocket, SocketNames, remove_dead, socket_at};

/// How long kubelet may take to answer: it connects to the plugin first, for which it takes up to 10 s.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause after the folder could not be watched.
const WATCH_PAUSE: Duration = Duration::from_secs(10);

/// Whether kubelet knows the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KubeletRegistration {
    /// Nothing was tried yet.
    Starting,
    Registered,
    /// kubelet does not run, as far as its folder shows.
    NoKubelet(String),
    /// Why the plugin is not registered with a kubelet that runs.
    Failed(String),
}

/// What keeps the plugin registered.
pub(crate) struct Registrar {
    pub(crate) folder: PathBuf,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: watch::Sender<KubeletRegistration>,
    /// When the plugin registered for the first time.
    pub(crate) registered: watch::Sender<Option<Instant>>,
}

/// The socket, and the task that serves it.
struct ServedSocket {
    socket: PluginSocket,
    task: AbortOnDropHandle<()>,
}

impl ServedSocket {
    /// Ends the connections, and removes the socket.
    async fn close(self) {
        self.task.abort();
        // It was ended on purpose.
        let _ = self.task.await;
        drop(self.socket);
    }
}

impl Registrar {
    /// Keeps the plugin registered as long as it is polled; dropping it removes the socket.
    ///
    /// # Errors
    ///
    /// Only what another attempt of this process would meet again.
    pub(crate) async fn run(&self) -> Result<Infallible, FileError> {
        let mut watch = FolderWatch::new(&self.folder);
        let mut streams = self.shared.streams.subscribe();
        let (start, mut history, mut names) = (Instant::now(), History::default(), SocketNames::new());
        let mut served: Option<ServedSocket> = None;
        // A kubelet that runs may not have seen yet that the process before this one ended.
        let seen = self.look(None);
        history.saw(&seen);
        if seen.kubelet.is_some() {
            history.stream_ended(start.elapsed());
        }
        loop {
            match watch.renew() {
                Ok(true) => {}
                Ok(false) => {
                    served = None;
                    let problem = format!("{} does not exist: kubelet has not made it", self.folder.display());
                    self.report(KubeletRegistration::NoKubelet(problem));
                    let _ = tokio::time::timeout(watch.max_wait(), watch.changed()).await;
                    continue;
                }
                Err(error) => {
                    served = None;
                    self.report(KubeletRegistration::Failed(error.to_string()));
                    let _ = tokio::time::timeout(WATCH_PAUSE, watch.changed()).await;
                    continue;
                }
            }
            streams.mark_unchanged();
            let seen = self.look(served.as_ref());
            history.saw(&seen);
            match next(&seen, &history, start.elapsed()) {
                Next::Register(kubelet) => {
                    // kubelet is to see the end of the old stream before it hears of the new socket.
                    close(served.take()).await;
                    match self.register_anew(&mut names, &mut served).await? {
                        Ok(()) => history.accepted(kubelet, start.elapsed()),
                        Err(problem) => {
                            close(served.take()).await;
                            self.report(KubeletRegistration::Failed(problem));
                            history.failed(start.elapsed());
                        }
                    }
                }
                Next::StreamEnded => {
                    close(served.take()).await;
                    let problem = "kubelet does not watch the devices any more".to_owned();
                    self.report(KubeletRegistration::Failed(problem));
                    history.stream_ended(start.elapsed());
                }
                Next::Wait(until) => {
                    self.report_wait(&seen);
                    let longest = Instant::now() + watch.max_wait();
                    let until = until.map_or(longest, |until| longest.min(start + until));
                    tokio::select! {
                        () = watch.changed() => {}
                        _ = streams.changed() => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn look(&self, served: Option<&ServedSocket>) -> Situation {
        let listening = served.is_some_and(|served| served.socket.is_there() && !served.task.is_finished());
        Situation {
            listening,
            kubelet: socket_at(&self.kubelet()),
            kubelet_watches: self.shared.kubelet_watches(),
        }
    }

    fn kubelet(&self) -> PathBuf {
        self.folder.join(KUBELET_SOCKET)
    }

    /// Makes a new socket and registers it. The inner error is why kubelet does not know it.
    async fn register_anew(
        &self,
        names: &mut SocketNames,
        served: &mut Option<ServedSocket>,
    ) -> Result<Result<(), String>, FileError> {
        let files = RequiredFiles::read(&self.shared.paths);
        // kubelet may start containers again with the name that it got before.
        self.shared.cdi.write(&files.devices)?;
        let name = names.next();
        match self.make_socket(&name) {
            Ok(made) => *served = Some(made),
            Err(error) if error.needs_new_process() => return Err(error),
            Err(error) => return Ok(Err(error.to_string())),
        }
        Ok(self.register(&name).await)
    }

    fn make_socket(&self, name: &str) -> Result<ServedSocket, FileError> {
        remove_dead(&self.folder)?;
        let (listener, socket) = PluginSocket::make(&self.folder.join(name))?;
        let task = tokio::spawn(connections::serve(listener, self.shared.clone()));
        Ok(ServedSocket {
            socket,
            task: AbortOnDropHandle::new(task),
        })
    }

    async fn register(&self, name: &str) -> Result<(), String> {
        let path = self.kubelet();
        match tokio::time::timeout(REGISTER_TIMEOUT, self.ask_kubelet(&path, name)).await {
            Ok(result) => result,
            Err(_) => Err(format!(
                "kubelet did not answer the registration within {} s",
                REGISTER_TIMEOUT.as_secs()
            )),
        }
    }

    async fn ask_kubelet(&self, path: &Path, name: &str) -> Result<(), String> {
        let channel = Channel::connect(path).await.map_err(|error| error.to_string())?;
        // Before kubelet connects, so that its connection is known as its.
        self.shared.kubelet.send_replace(Some(channel.server_pid()));
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: name.to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: Some(DevicePluginOptions::default()),
        };
        let answer = channel.kubelet().register(request).await;
        answer.map_err(|status| {
            let text = stelia_cpus::text::excerpt::cause(&status.message());
            format!("kubelet refused the registration: {text} ({})", status.code())
        })?;
        self.registered.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert_with(Instant::now);
            is_first
        });
        Ok(())
    }

    /// Reports what is so while nothing is to be done.
    fn report_wait(&self, seen: &Situation) {
        if seen.kubelet_watches {
            self.report(KubeletRegistration::Registered);
        } else if seen.kubelet.is_none() {
            let problem = format!("{} does not exist: kubelet does not run", self.kubelet().display());
            self.report(KubeletRegistration::NoKubelet(problem));
        }
    }

    fn report(&self, state: KubeletRegistration) {
        self.state.send_if_modified(|before| {
            let is_new = *before != state;
            *before = state;
            is_new
        });
    }
}

async fn close(served: Option<ServedSocket>) {
    if let Some(served) = served {
        served.close().await;
    }
}
