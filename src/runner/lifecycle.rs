//! The runner's life, in order: anchor, registration, QEMU, vCPUs, shutdown, deregistration.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use zbus::OwnedObjectPath;

use super::anchor::{Anchor, open_pidfd};
use super::bringup::{Guest, bring_up};
use super::children::{Child, Children, Exit};
use super::cli::RunOptions;
use super::command::{QemuCommand, qemu_command};
use super::daemon::Daemon;
use super::error::Error;
use super::shutdown::shut_down;
use super::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_RUNNER, EXIT_UNREACHABLE};

const DEREGISTER_LIMIT: Duration = Duration::from_secs(10);

/// `stelia-runner run`; answers the exit code.
pub async fn run(options: RunOptions) -> u8 {
    // PID 1 has no default actions: without handlers SIGTERM would be lost. So they come first.
    let started = Stop::listen().and_then(|stop| Ok((stop, Children::reap()?)));
    let (mut stop, children) = match started {
        Ok(started) => started,
        Err(error) => {
            tracing::error!("install signal handlers: {error}");
            return EXIT_RUNNER;
        }
    };
    let anchor = match Anchor::spawn(&options.anchor, &children) {
        Ok(anchor) => anchor,
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    let mut daemon = Daemon::new(&options.socket);
    let registered = tokio::select! {
        registered = daemon.register(&options.pod_uid, &options.cpuset, anchor.pidfd.as_fd(), options.register_timeout) => registered,
        number = stop.recv() => {
            tracing::info!("signal {number} while registering: leaving");
            // The daemon may have done it already; it gives everything back when the container is gone.
            anchor.kill();
            return Exit::Signal(number).code();
        }
    };
    let registration = match registered {
        Ok(registration) => registration,
        Err(error) => {
            tracing::error!("not registered: {error}");
            anchor.kill();
            return if error.is_transient() {
                EXIT_UNREACHABLE
            } else {
                EXIT_REFUSED
            };
        }
    };
    tracing::info!("registered as {} in {}", registration.instance, registration.cgroup);
    let code = run_qemu(
        &options,
        &children,
        &anchor,
        &registration.instance,
        &mut daemon,
        &mut stop,
    )
    .await;
    match timeout(DEREGISTER_LIMIT, daemon.deregister()).await {
        Ok(Ok(())) => tracing::info!("deregistered"),
        Ok(Err(error)) => tracing::warn!("not deregistered: {error}"),
        Err(_) => tracing::warn!(
            "not deregistered: Deregister: no answer within {} s",
            DEREGISTER_LIMIT.as_secs()
        ),
    }
    anchor.kill();
    code
}

async fn run_qemu(
    options: &RunOptions,
    children: &Children,
    anchor: &Anchor,
    instance: &OwnedObjectPath,
    daemon: &mut Daemon,
    stop: &mut Stop,
) -> u8 {
    let Some(command) = qemu_command(&options.qemu, &options.qmp) else {
        tracing::error!("no QEMU given");
        return EXIT_RUNNER;
    };
    let started = remove_stale_socket(&options.qmp).and_then(|()| start_qemu(&command, children));
    let qemu = match started {
        Ok(qemu) => qemu,
        Err(error) => {
            tracing::error!("{error}");
            return start_failure(&error);
        }
    };
    let exit = match open_pidfd(qemu.pid()) {
        Ok(pidfd) => {
            let guest = Guest {
                qmp: &options.qmp,
                pidfd: pidfd.as_fd(),
                incoming: command.incoming,
                instance,
            };
            watch(guest, options.grace, qemu, anchor.child.clone(), daemon, stop).await
        }
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    tracing::info!("QEMU ended: {exit}");
    exit.code()
}

/// Everything between QEMU's start and its end.
async fn watch(
    guest: Guest<'_>,
    grace: Duration,
    mut qemu: Child,
    mut anchor: Child,
    daemon: &mut Daemon,
    stop: &mut Stop,
) -> Exit {
    let mut qmp = None;
    let mut anchor_watched = true;
    {
        let mut bringing_up = pin!(bring_up(guest, daemon));
        let mut up = false;
        loop {
            tokio::select! {
                exit = qemu.wait() => return exit,
                number = stop.recv() => {
                    tracing::info!("signal {number}: shutting the guest down");
                    break;
                }
                connection = &mut bringing_up, if !up => {
                    qmp = Some(connection);
                    up = true;
                }
                exit = anchor.wait(), if anchor_watched => {
                    anchor_died(exit);
                    anchor_watched = false;
                }
            }
        }
        // Whatever was still being brought up is dropped here, so nothing continues the guest behind the shutdown.
    }
    let mut shutting_down = pin!(shut_down(guest.qmp, qmp, guest.pidfd, grace));
    let mut killed = false;
    loop {
        tokio::select! {
            exit = qemu.wait() => return exit,
            () = &mut shutting_down, if !killed => killed = true,
            number = stop.recv() => tracing::info!("signal {number}: already shutting down"),
            exit = anchor.wait(), if anchor_watched => {
                anchor_died(exit);
                anchor_watched = false;
            }
        }
    }
}

fn anchor_died(exit: Exit) {
    tracing::warn!(
        "the anchor died ({exit}): systemd removes the container's own cgroup now, and the instance cannot go back to it"
    );
}

fn start_qemu(command: &QemuCommand, children: &Children) -> Result<Child, Error> {
    // In the foreground, with the container's own standard streams; std clears the signal mask for it.
    let child = children.spawn(Command::new(&command.program).args(&command.args));
    child.map_err(|cause| Error::Path {
        operation: "start QEMU",
        path: command.program.clone().into(),
        cause,
    })
}

/// The codes a shell gives for a program it cannot start.
fn start_failure(error: &Error) -> u8 {
    match error {
        Error::Path {
            operation: "start QEMU",
            cause,
            ..
        } if cause.kind() == io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        Error::Path {
            operation: "start QEMU",
            ..
        } => EXIT_NOT_EXECUTABLE,
        _ => EXIT_RUNNER,
    }
}

/// A container that is restarted finds the socket of its last life. Anything that is not a socket is left alone.
fn remove_stale_socket(path: &Path) -> Result<(), Error> {
    let failed = |cause| Error::Path {
        operation: "remove the stale QMP socket",
        path: path.to_owned(),
        cause,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(failed),
        Ok(_) => Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is something that is no socket",
        ))),
    }
}

/// The signals that ask for the end, and SIGHUP, which asks for nothing: a handler instead of "ignore", because an
/// ignored signal would stay ignored in QEMU.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Stop {
    fn listen() -> io::Result<Stop> {
        Ok(Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The number of the next signal that asks for the end.
    async fn recv(&mut self) -> u8 {
        loop {
            tokio::select! {
                Some(()) = self.terminate.recv() => return 15,
                Some(()) = self.interrupt.recv() => return 2,
                Some(()) = self.hangup.recv() => tracing::info!("SIGHUP ignored"),
                else => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_goes_and_a_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        assert!(remove_stale_socket(&path).is_ok());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(remove_stale_socket(&path).is_ok());
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        let error = remove_stale_socket(&path).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_qemu_that_does_not_start_gives_a_shells_codes() {
        let failed = |kind: io::ErrorKind| {
            start_failure(&Error::Path {
                operation: "start QEMU",
                path: "q".into(),
                cause: kind.into(),
            })
        };
        assert_eq!(failed(io::ErrorKind::NotFound), EXIT_NOT_FOUND);
        assert_eq!(failed(io::ErrorKind::PermissionDenied), EXIT_NOT_EXECUTABLE);
    }
}
