//! What `run` and `attach` have in common: signals, probes, the anchor, the registration and its end.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use zbus::OwnedObjectPath;

use super::anchor::Anchor;
use super::children::{Children, Exit};
use super::cli::{CommonOptions, state_directory};
use super::daemon::Daemon;
use super::error::Error;
use super::exit_codes;
use super::signals::Stop;
use super::state::{Phase, RunnerState};
use super::status_socket::Status;

const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) stop: Stop,
    pub(crate) children: Children,
    pub(crate) anchor: Anchor,
    pub(crate) daemon: Daemon,
    pub(crate) status: Status,
    /// The folder of the socket for probes.
    pub(crate) directory: Option<PathBuf>,
}

impl Runner {
    pub(crate) fn start(options: &CommonOptions, control: Option<&Path>, paused_start: bool) -> Result<Runner, Error> {
        // First, because PID 1 has no default actions: without a handler SIGTERM would be lost.
        let failed = Error::system("install signal handlers");
        let stop = Stop::listen().map_err(&failed)?;
        let children = Children::reap().map_err(&failed)?;
        let status = Status::new(RunnerState::new(options.require_isolation, paused_start));
        let directory = state_directory(options.state_dir.as_deref(), control);
        match &directory {
            Some(directory) => status.serve(directory),
            None => tracing::info!("neither --state-dir nor a socket of the VMM is given: no socket for probes"),
        }
        let anchor = Anchor::spawn(&options.anchor, &children)?;
        let daemon = Daemon::new(&options.socket);
        Ok(Runner {
            stop,
            children,
            anchor,
            daemon,
            status,
            directory,
        })
    }

    /// Registers the container. `None` if that failed and isolation is not required. The error is the exit code.
    pub(crate) async fn register(&mut self, options: &CommonOptions) -> Result<Option<OwnedObjectPath>, u8> {
        let pidfd = self.anchor.pidfd.as_fd();
        let registered = tokio::select! {
            registered = self.daemon.register(options, pidfd) => registered,
            number = self.stop.recv() => {
                tracing::info!("signal {number} during the registration: exiting");
                // If the daemon has registered the container already, it deregisters it when the container ends.
                self.anchor.kill();
                return Err(Exit::Signal(number).code());
            }
        };
        self.status.update(|state| {
            state.phase = Phase::Starting;
            match &registered {
                Ok(_) => state.daemon = true,
                Err(error) => state.reason = error.to_string(),
            }
        });
        let error = match registered {
            Ok(instance) => return Ok(Some(instance)),
            Err(error) => error,
        };
        if !options.require_isolation {
            tracing::error!(
                "not registered: {error}; --require-isolation=no: the guest will run DEGRADED, on shared CPUs"
            );
            return Ok(None);
        }
        tracing::error!("not registered: {error}");
        self.anchor.kill();
        let code = if error.is_transient() {
            exit_codes::UNREACHABLE
        } else {
            exit_codes::REFUSED
        };
        Err(code)
    }

    /// Deregisters the container. If that fails, the daemon does it when the container ends.
    pub(crate) async fn deregister(&mut self) {
        match timeout(DEREGISTER_TIMEOUT, self.daemon.deregister()).await {
            Ok(Ok(())) => tracing::info!("deregistered"),
            Ok(Err(error)) => tracing::warn!("not deregistered: {error}"),
            Err(_) => tracing::warn!(
                "not deregistered: Deregister: no answer within {} s",
                DEREGISTER_TIMEOUT.as_secs()
            ),
        }
        self.anchor.kill();
    }
}
