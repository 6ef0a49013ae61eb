//! `stelia-runner run`, in order: anchor, registration, helpers, VMM, vCPUs, shutdown, deregistration.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use zbus::OwnedObjectPath;

use super::anchor::open_pidfd;
use super::children::{Child, Children, Exit};
use super::cli::RunOptions;
use super::command::{VmmCommand, complete};
use super::descriptors::{self, Descriptors};
use super::error::Error;
use super::helpers::Helpers;
use super::helpers::spec::{self, HelperSpec};
use super::run_and_attach::Runner;
use super::stale_sockets::remove_stale_socket;
use super::state::Phase;
use super::supervise::{End, SupervisedVm, supervise};
use super::terminal::Terminal;
use super::vmm::{ApiVmm, Dialect, Qemu, VmmKind};
use super::{exit_codes, logged};

/// Runs the command to its end. Returns the exit code in either case.
pub(crate) async fn run(mut options: RunOptions) -> Result<u8, u8> {
    let plan = command(&options).map_err(logged(exit_codes::USAGE))?;
    options.common.read_annotations().map_err(logged(exit_codes::RUNNER))?;
    let helpers = declared_helpers(&options).map_err(logged(exit_codes::RUNNER))?;
    let paused_start = plan.kind == VmmKind::Qemu;
    let runner = Runner::start(&options.common, Some(&plan.control), paused_start);
    let mut runner = runner.map_err(logged(exit_codes::RUNNER))?;
    let instance = runner.register(&options.common).await?;
    let mut helpers = Helpers::new(helpers, &runner.children, &runner.status);
    let code = run_vmm(&options, plan, &mut runner, instance, &mut helpers).await;
    runner.status.update(|state| state.phase = Phase::Stopping);
    tokio::join!(helpers.stop(), runner.deregister());
    code
}

/// The VMM to run, from the command line.
fn command(options: &RunOptions) -> Result<VmmCommand, Error> {
    let (kind, control) = options.vmm()?;
    let command = complete(kind, &options.program, control)?;
    descriptors::check(&options.descriptors, &command.args)?;
    Ok(command)
}

/// The helpers of the file and of the command line.
fn declared_helpers(options: &RunOptions) -> Result<Vec<HelperSpec>, Error> {
    let file = match &options.helpers {
        Some(path) => {
            let failed = Error::path("read helpers from", path);
            let text = std::fs::read_to_string(path).map_err(&failed)?;
            spec::parse_file(&text).map_err(|text| failed(io::Error::new(io::ErrorKind::InvalidData, text)))?
        }
        None => Vec::new(),
    };
    spec::all(file, &options.helper)
}

async fn run_vmm(
    options: &RunOptions,
    plan: VmmCommand,
    runner: &mut Runner,
    instance: Option<OwnedObjectPath>,
    helpers: &mut Helpers,
) -> Result<u8, u8> {
    let name = plan.kind.name();
    let ready = tokio::select! {
        ready = helpers.start_before() => ready,
        number = runner.stop.recv() => {
            tracing::info!("signal {number} before {name} was started: exiting");
            return Err(Exit::Signal(number).code());
        }
    };
    if let Err(error) = ready {
        tracing::error!("{error}: {name} is not started");
        return Err(exit_codes::HELPER);
    }
    let terminal = Terminal::save();
    let child = start(options, &plan, &runner.children).await;
    let child = child.map_err(|error| logged(start_failure(&error))(error))?;
    let pid = child.pid();
    let pidfd = open_pidfd(pid).map_err(logged(exit_codes::RUNNER))?;
    let vm = SupervisedVm {
        pid: pid.as_raw_nonzero().get(),
        pidfd: pidfd.as_fd(),
        child: Some(child),
        release: plan.release,
        instance,
        ends_vmm: true,
    };
    let end = match Dialect::of(plan.kind) {
        None => {
            let vmm = Qemu::new(&plan.control, options.common.guest_agent.as_deref());
            supervise(runner, &options.common, helpers, vmm, vm).await
        }
        Some(dialect) => {
            let vmm = ApiVmm::new(dialect, &plan.control, Path::new("/proc"), vm.pid);
            supervise(runner, &options.common, helpers, vmm, vm).await
        }
    };
    terminal.restore();
    match end {
        End::Vmm(exit) => {
            tracing::info!("{name} ended: {exit}");
            Ok(exit.code())
        }
        End::Helper => Err(exit_codes::HELPER),
        End::Detached => Ok(0),
    }
}

/// Starts the VMM. Its descriptors are opened only now, because helpers may have created the files and sockets. When this returns, only
/// the VMM has them.
async fn start(options: &RunOptions, plan: &VmmCommand, children: &Children) -> Result<Child, Error> {
    remove_stale_socket(&plan.control)?;
    let descriptors = Descriptors::open(&options.descriptors).await?;
    let program = &plan.program;
    let args = descriptors.numbered(&plan.args)?;
    descriptors.inherited(|| {
        // In the foreground, with the container's own standard streams; std clears the signal mask for it.
        let child = children.spawn(Command::new(program).args(&args));
        child.map_err(|cause| Error::Start {
            vmm: plan.kind.name(),
            program: program.into(),
            cause,
        })
    })
}

/// The exit codes of a shell for a program that it cannot start.
fn start_failure(error: &Error) -> u8 {
    match error {
        Error::Start { cause, .. } if cause.kind() == io::ErrorKind::NotFound => exit_codes::NOT_FOUND,
        Error::Start { .. } => exit_codes::NOT_EXECUTABLE,
        _ => exit_codes::RUNNER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmm_that_does_not_start_gives_a_shells_codes() {
        let failed = |kind: io::ErrorKind| {
            start_failure(&Error::Start {
                vmm: "QEMU",
                program: "q".into(),
                cause: kind.into(),
            })
        };
        assert_eq!(failed(io::ErrorKind::NotFound), exit_codes::NOT_FOUND);
        assert_eq!(failed(io::ErrorKind::PermissionDenied), exit_codes::NOT_EXECUTABLE);
    }
}
