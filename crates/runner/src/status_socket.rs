//! The state, shared within the runner and served on a socket: a client gets it as one line of JSON.
//!
//! A socket rather than a file: it answers only while the runner's loop runs, so nothing stale is read. It is beside the QMP
//! socket by default, where a container with a read-only root file system can write.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::error::Error;
use super::stale_sockets::remove_stale_socket;
use super::state::RunnerState;

pub(crate) const SOCKET: &str = "stelia-runner.sock";
/// Limit for a client to read the answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Status(watch::Sender<RunnerState>);

impl Status {
    pub(crate) fn new(state: RunnerState) -> Status {
        Status(watch::Sender::new(state))
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut RunnerState)) {
        self.0.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }

    pub(crate) fn now(&self) -> RunnerState {
        self.0.borrow().clone()
    }

    pub(crate) async fn wait_for(&self, condition: impl FnMut(&RunnerState) -> bool) {
        // It cannot fail: `self` is the channel's sender.
        let _ = self.0.subscribe().wait_for(condition).await;
    }

    /// Serves the state on a socket in `directory`. If that cannot be written there are no probes, but the guest runs.
    pub(crate) fn serve(&self, directory: &Path) {
        let path = directory.join(SOCKET);
        let bound = remove_stale_socket(&path)
            .and_then(|()| UnixListener::bind(&path).map_err(Error::path("listen on", &path)));
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
                    let text = serde_json::to_string(&self.now()).unwrap_or_default() + "\n";
                    tokio::spawn(answer(stream, text));
                }
                Err(error) => {
                    tracing::warn!("accept on {}: {error}", path.display());
                    tokio::time::sleep(WRITE_TIMEOUT).await;
                }
            }
        }
    }
}

async fn answer(mut stream: UnixStream, text: String) {
    // The client may have closed the connection.
    let _ = tokio::time::timeout(WRITE_TIMEOUT, stream.write_all(text.as_bytes())).await;
}
