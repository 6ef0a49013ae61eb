//! What `run` and `attach` share: signals, probes, the anchor, the registration and its end.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;
use zbus::OwnedObjectPath;

use super::anchor::Anchor;
use super::children::{Children, Exit};
use super::cli::{CommonOptions, state_directory};
use super::daemon::Daemon;
use super::error::Error;
use super::signals::Stop;
use super::state::{Phase, State};
use super::status::Status;
use super::{EXIT_REFUSED, EXIT_UNREACHABLE};

const DEREGISTER_LIMIT: Duration = Duration::from_secs(10);

/// What `run` and `attach` have from their start to their end.
#[derive(Debug)]
pub struct Base {
    /// The signals.
    pub stop: Stop,
    /// The reaper.
    pub children: Children,
    /// The anchor.
    pub anchor: Anchor,
    /// The daemon.
    pub daemon: Daemon,
    /// What a probe is told.
    pub status: Status,
}

impl Base {
    /// Signals, probes, the anchor.
    pub fn start(options: &CommonOptions, qmp: Option<&Path>, paused_start: bool) -> Result<Base, Error> {
        // PID 1 has no default actions: without handlers SIGTERM would be lost. So they come first.
        let handlers = |cause| Error::System {
            operation: "install signal handlers",
            cause,
        };
        let stop = Stop::listen().map_err(handlers)?;
        let children = Children::reap().map_err(handlers)?;
        let status = Status::new(State::new(options.require_isolation, paused_start));
        match state_directory(options.state_dir.as_deref(), qmp) {
            Some(directory) => status.serve(&directory),
            None => tracing::info!("no --state-dir and no --qmp: no probes"),
        }
        let anchor = Anchor::spawn(&options.anchor, &children)?;
        let daemon = Daemon::new(&options.socket);
        Ok(Base {
            stop,
            children,
            anchor,
            daemon,
            status,
        })
    }

    /// Register. No instance: it could not be done, and need not. An error is the exit code.
    pub async fn register(&mut self, options: &CommonOptions) -> Result<Option<OwnedObjectPath>, u8> {
        let pidfd = self.anchor.pidfd.as_fd();
        let registered = tokio::select! {
            registered = self.daemon.register(options.claims(), pidfd, options.register_timeout) => registered,
            number = self.stop.recv() => {
                tracing::info!("signal {number} while registering: leaving");
                // The daemon may have done it already; it gives everything back when the container is gone.
                self.anchor.kill();
                return Err(Exit::Signal(number).code());
            }
        };
        let error = match registered {
            Ok(registration) => {
                tracing::info!("registered as {} in {}", registration.instance, registration.cgroup);
                self.status.update(|state| {
                    state.phase = Phase::Starting;
                    state.daemon = true;
                });
                return Ok(Some(registration.instance));
            }
            Err(error) => error,
        };
        self.status.update(|state| {
            state.phase = Phase::Starting;
            state.reason = error.to_string();
        });
        if !options.require_isolation {
            tracing::error!(
                "not registered: {error}; --require-isolation=no: going on DEGRADED, on CPUs that are shared"
            );
            return Ok(None);
        }
        tracing::error!("not registered: {error}");
        self.anchor.kill();
        Err(if error.is_transient() {
            EXIT_UNREACHABLE
        } else {
            EXIT_REFUSED
        })
    }

    /// Give everything back. A daemon that is away does so when the container is gone.
    pub async fn leave(&mut self) {
        match timeout(DEREGISTER_LIMIT, self.daemon.deregister()).await {
            Ok(Ok(())) => tracing::info!("deregistered"),
            Ok(Err(error)) => tracing::warn!("not deregistered: {error}"),
            Err(_) => tracing::warn!(
                "not deregistered: Deregister: no answer within {} s",
                DEREGISTER_LIMIT.as_secs()
            ),
        }
        self.anchor.kill();
    }
}
