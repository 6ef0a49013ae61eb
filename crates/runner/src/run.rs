//! `stelia-runner run`, in order: anchor, registration, helpers, QEMU, vCPUs, shutdown, deregistration.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;

use zbus::OwnedObjectPath;

use super::anchor::open_pidfd;
use super::children::{Child, Children, Exit};
use super::cli::RunOptions;
use super::command::{QemuCommand, qemu_command};
use super::error::Error;
use super::helpers::Helpers;
use super::helpers::spec::{self, HelperSpec};
use super::runner::Runner;
use super::socket::remove_stale_socket;
use super::state::Phase;
use super::supervise::{End, Vm, supervise};
use super::terminal::Terminal;
use super::vmm::Monitor;
use super::{EXIT_HELPER, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_RUNNER};

/// Runs the command to its end; returns the exit code.
pub(crate) async fn run(mut options: RunOptions) -> u8 {
    let annotations = options.common.read_annotations();
    let started = annotations.and_then(|()| {
        let helpers = declared_helpers(&options)?;
        Ok((helpers, Runner::start(&options.common, Some(&options.qmp), true)?))
    });
    let (helpers, mut runner) = match started {
        Ok(started) => started,
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    let instance = match runner.register(&options.common).await {
        Ok(instance) => instance,
        Err(code) => return code,
    };
    let mut helpers = Helpers::new(helpers, &runner.children, &runner.status);
    let code = run_qemu(&options, &mut runner, instance, &mut helpers).await;
    runner.status.update(|state| state.phase = Phase::Stopping);
    tokio::join!(helpers.stop(), runner.deregister());
    code
}

/// The helpers of the file and of the command line.
fn declared_helpers(options: &RunOptions) -> Result<Vec<HelperSpec>, Error> {
    let file = match &options.helpers {
        Some(path) => {
            let failed = |cause| Error::Path {
                operation: "read helpers from",
                path: path.clone(),
                cause,
            };
            let text = std::fs::read_to_string(path).map_err(failed)?;
            spec::parse_file(&text).map_err(|text| failed(io::Error::new(io::ErrorKind::InvalidData, text)))?
        }
        None => Vec::new(),
    };
    spec::all(file, &options.helper)
}

async fn run_qemu(
    options: &RunOptions,
    runner: &mut Runner,
    instance: Option<OwnedObjectPath>,
    helpers: &mut Helpers,
) -> u8 {
    let Some(command) = qemu_command(&options.qemu, &options.qmp) else {
        tracing::error!("no QEMU is given");
        return EXIT_RUNNER;
    };
    let ready = tokio::select! {
        ready = helpers.start_before() => ready,
        number = runner.stop.recv() => {
            tracing::info!("signal {number} before QEMU was started: exiting");
            return Exit::Signal(number).code();
        }
    };
    if let Err(error) = ready {
        tracing::error!("{error}: QEMU is not started");
        return EXIT_HELPER;
    }
    let terminal = Terminal::save();
    let started = remove_stale_socket(&options.qmp).and_then(|()| start_qemu(&command, &runner.children));
    let qemu = match started {
        Ok(qemu) => qemu,
        Err(error) => {
            tracing::error!("{error}");
            return start_failure(&error);
        }
    };
    let pidfd = match open_pidfd(qemu.pid()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    let vm = Vm {
        vmm: Monitor::new(&options.qmp),
        pidfd: pidfd.as_fd(),
        child: Some(qemu),
        qmp: Some(&options.qmp),
        release: command.release,
        instance,
        ends_qemu: true,
    };
    let end = supervise(runner, &options.common, helpers, vm).await;
    terminal.restore();
    match end {
        End::Qemu(exit) => {
            tracing::info!("QEMU ended: {exit}");
            exit.code()
        }
        End::Helper => EXIT_HELPER,
        End::Detached => 0,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
