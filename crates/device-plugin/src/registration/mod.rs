//! Keeps the plugin registered with kubelet: its socket is in kubelet's folder, and kubelet has a stream of its devices.

mod decide;
mod folder_watch;
mod socket;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stelia_device_plugin_api::messages::{DevicePluginOptions, RegisterRequest};
use stelia_device_plugin_api::registration::RegistrationClient;
use stelia_device_plugin_api::transport::Channel;
use stelia_device_plugin_api::{KUBELET_SOCKET, VERSION};
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::service::Shared;
use crate::{RESOURCE, connections};
use decide::{FileId, Next, Past, Situation, next};
use folder_watch::FolderWatch;
use socket::{PluginSocket, SocketError, socket_at};

/// The name of the plugin's socket in kubelet's folder.
pub(crate) const SOCKET: &str = "stelia.io_vm.sock";

/// How long kubelet may take to answer: it connects to the plugin first, for which it takes up to 10 s.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause after the folder could not be watched.
const WATCH_PAUSE: Duration = Duration::from_secs(10);

/// Whether kubelet knows the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Registration {
    /// Nothing was tried yet.
    Starting,
    Registered,
    /// Why not.
    Not(String),
}

/// Why the program has to end.
#[derive(Debug, Error)]
pub(crate) enum Fatal {
    #[error("{0}: the folder was made after this process started, and only a new process can write there")]
    NewProcess(#[source] SocketError),
    #[error("inotify cannot be used: {0}")]
    Watch(#[source] folder_watch::WatchError),
}

/// What keeps the plugin registered.
pub(crate) struct Registrar {
    pub(crate) folder: PathBuf,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: watch::Sender<Registration>,
    /// Told at each registration: kubelet may have another configuration.
    pub(crate) registered: Arc<Notify>,
}

/// The socket, and the task that serves it.
struct Served {
    socket: PluginSocket,
    task: AbortOnDropHandle<()>,
}

impl Registrar {
    /// Keeps the plugin registered as long as it is polled; dropping it removes the socket.
    ///
    /// # Errors
    ///
    /// Only what another attempt of this process would meet again.
    pub(crate) async fn run(&self) -> Result<std::convert::Infallible, Fatal> {
        let mut watch = FolderWatch::new(&self.folder).map_err(Fatal::Watch)?;
        let mut streams = self.shared.streams.subscribe();
        let (start, mut past, mut served) = (Instant::now(), Past::default(), None);
        loop {
            match watch.renew() {
                Ok(true) => {}
                Ok(false) => {
                    served = None;
                    self.not(format!(
                        "{} does not exist: kubelet has not made it",
                        self.folder.display()
                    ));
                    watch.changed().await;
                    continue;
                }
                Err(error) => {
                    served = None;
                    self.not(error.to_string());
                    let _ = tokio::time::timeout(WATCH_PAUSE, watch.changed()).await;
                    continue;
                }
            }
            streams.mark_unchanged();
            let seen = self.look(served.as_ref());
            past.saw(&seen);
            match next(&seen, &past, start.elapsed()) {
                Next::MakeSocket => {
                    end(served.take()).await;
                    match self.make_socket() {
                        Ok(made) => {
                            served = Some(made);
                            past.socket_made();
                        }
                        Err(error) if error.needs_new_process() => return Err(Fatal::NewProcess(error)),
                        Err(error) => {
                            self.not(error.to_string());
                            past.socket_failed(start.elapsed());
                        }
                    }
                }
                Next::Register(kubelet) => match self.register().await {
                    Ok(()) => past.accepted(kubelet, start.elapsed()),
                    Err(problem) => {
                        self.not(problem);
                        past.refused(start.elapsed());
                    }
                },
                Next::Lost => {
                    self.not("kubelet does not watch the devices any more".to_owned());
                    past.lost(start.elapsed());
                }
                Next::Wait(until) => {
                    if seen.kubelet_watches {
                        self.state.send_if_modified(|state| {
                            std::mem::replace(state, Registration::Registered) != Registration::Registered
                        });
                    } else if seen.kubelet.is_none() {
                        self.not(format!(
                            "{} does not exist: kubelet does not run",
                            self.kubelet().display()
                        ));
                    }
                    let pause = async {
                        match until {
                            Some(until) => tokio::time::sleep_until(start + until).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = watch.changed() => {}
                        _ = streams.changed() => {}
                        () = pause => {}
                    }
                }
            }
        }
    }

    fn look(&self, served: Option<&Served>) -> Situation {
        let listening = served.is_some_and(|served| served.socket.is_there() && !served.task.is_finished());
        let kubelet: Option<FileId> = socket_at(&self.kubelet());
        Situation {
            listening,
            kubelet,
            kubelet_watches: self.shared.kubelet_watches(),
        }
    }

    fn kubelet(&self) -> PathBuf {
        self.folder.join(KUBELET_SOCKET)
    }

    fn make_socket(&self) -> Result<Served, SocketError> {
        let (listener, socket) = PluginSocket::make(&self.folder.join(SOCKET))?;
        let task = tokio::spawn(connections::serve(listener, self.shared.clone()));
        Ok(Served {
            socket,
            task: AbortOnDropHandle::new(task),
        })
    }

    async fn register(&self) -> Result<(), String> {
        let path = self.kubelet();
        match tokio::time::timeout(REGISTER_TIMEOUT, self.ask_kubelet(&path)).await {
            Ok(result) => result,
            Err(_) => Err(format!(
                "kubelet did not answer the registration within {} s",
                REGISTER_TIMEOUT.as_secs()
            )),
        }
    }

    async fn ask_kubelet(&self, path: &Path) -> Result<(), String> {
        let channel = Channel::connect(path).await.map_err(|error| error.to_string())?;
        // Before kubelet connects, so that its connection is known as its.
        self.shared.kubelet.send_replace(Some(channel.server_pid()));
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: SOCKET.to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: Some(DevicePluginOptions::default()),
        };
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map_err(|status| {
            let text = stelia_text::excerpt::cause(&status.message());
            format!("kubelet refused the registration: {text} ({})", status.code())
        })?;
        self.registered.notify_one();
        Ok(())
    }

    fn not(&self, problem: String) {
        let state = Registration::Not(problem);
        self.state.send_if_modified(|before| {
            let is_new = *before != state;
            *before = state;
            is_new
        });
    }
}

/// Ends a task that serves, so that nobody listens on its socket when this returns.
async fn end(served: Option<Served>) {
    if let Some(Served { socket, task }) = served {
        task.abort();
        // It was ended on purpose.
        let _ = task.await;
        drop(socket);
    }
}
