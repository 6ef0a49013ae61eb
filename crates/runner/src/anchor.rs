//! The anchor: a process that sleeps in the container's own cgroup while all other processes of the container are in the
//! instance's scope. Without it systemd would remove the empty scope of the container.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::children::{Child, Children};
use super::error::Error;

#[derive(Debug)]
pub(crate) struct Anchor {
    /// Passed to RegisterInstance.
    pub(crate) pidfd: OwnedFd,
    pub(crate) child: Child,
}

impl Anchor {
    pub(crate) fn spawn(program: &[OsString], children: &Children) -> Result<Anchor, Error> {
        let Some((file, args)) = program.split_first() else {
            return Err(Error::system("start the anchor")(std::io::ErrorKind::InvalidInput));
        };
        let mut command = Command::new(file);
        // A process group of its own: Ctrl-C on a terminal is for the guest and the runner, not for the anchor.
        // No standard streams: they would keep the container's log pipes open.
        command
            .args(args)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if file == "/proc/self/exe" {
            command.arg0("stelia-runner");
        }
        let child = children.spawn(&mut command);
        let child = child.map_err(Error::path("start the anchor", file.as_ref()))?;
        let pidfd = open_pidfd(child.pid())?;
        Ok(Anchor { pidfd, child })
    }

    pub(crate) fn kill(&self) {
        if let Err(error) = pidfd_send_signal(&self.pidfd, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!("kill the anchor: {error}");
        }
    }
}

/// A pidfd of a child. The child has not been reaped, so no other process can have its number.
pub(crate) fn open_pidfd(pid: Pid) -> Result<OwnedFd, Error> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(Error::system("pidfd_open"))
}

/// `stelia-runner anchor`: sleeps until it is killed. Signals keep their default action, so SIGTERM ends it.
///
/// In a container the kernel ends it together with PID 1. Elsewhere the parent-death signal does; it comes when the
/// *thread* that started the anchor ends, which is the runner's only long-lived one, its main thread.
pub(crate) fn stay(parent: Option<i32>) -> ExitCode {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!("anchor: set the parent-death signal: {error}");
    }
    // The runner may have died before the line above; then the signal never comes, and the parent is another process.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if parent.is_some_and(|parent| parent != now) {
        return ExitCode::SUCCESS;
    }
    // Started through /proc/self/exe its name would be "exe". A failure does not matter.
    let _ = rustix::thread::set_name(c"stelia-anchor");
    loop {
        std::thread::park();
    }
}
