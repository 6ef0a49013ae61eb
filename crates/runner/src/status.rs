//! The runner's state, kept and served: whoever connects to the socket is told it as one line of JSON.
//!
//! A socket and not a file: it answers only while the runner's own loop runs, and nothing stale is ever read. It lies beside
//! the QMP socket, so a read-only root file system is no hindrance.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::error::Error;
use super::socket::remove_stale_socket;
use super::state::State;

/// The socket's name in the state directory.
pub const SOCKET: &str = "stelia-runner.sock";
/// A reader that does not read is left.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// The state, to be changed and looked at.
#[derive(Debug, Clone)]
pub struct Status(watch::Sender<State>);

impl Status {
    /// Not served yet.
    pub fn new(state: State) -> Status {
        Status(watch::Sender::new(state))
    }

    /// Change it.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        self.0.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }

    /// As it is.
    pub fn now(&self) -> State {
        self.0.borrow().clone()
    }

    /// Wait until it is so.
    pub async fn wait_for(&self, so: impl FnMut(&State) -> bool) {
        // This handle holds the sender, so the channel is open.
        let _ = self.0.subscribe().wait_for(so).await;
    }

    /// Serve it in `directory`. A directory that cannot be written costs the probes, not the guest.
    pub fn serve(&self, directory: &Path) {
        let path = directory.join(SOCKET);
        let bound = remove_stale_socket(&path).and_then(|()| {
            UnixListener::bind(&path).map_err(|cause| Error::Path {
                operation: "listen on",
                path: path.clone(),
                cause,
            })
        });
        match bound {
            Ok(listener) => {
                tokio::spawn(self.clone().accept(listener, path));
            }
            Err(error) => tracing::warn!("{error}: no probe will find this runner; see --state-dir"),
        }
    }

    async fn accept(self, listener: UnixListener, path: PathBuf) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let text = serde_json::to_string(&self.now()).unwrap_or_default();
                    tokio::spawn(tell(stream, text));
                }
                Err(error) => {
                    tracing::warn!("accept on {}: {error}", path.display());
                    tokio::time::sleep(WRITE_LIMIT).await;
                }
            }
        }
    }
}

async fn tell(mut stream: UnixStream, text: String) {
    let told = async {
        stream.write_all(text.as_bytes()).await?;
        stream.write_all(b"\n").await
    };
    // The reader may have left; that is its own affair.
    let _ = tokio::time::timeout(WRITE_LIMIT, told).await;
}
