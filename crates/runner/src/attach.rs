//! `stelia-runner attach`: isolates a VM whose VMM another program started in this container.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use tokio::time::{Instant, sleep};

use super::anchor::open_pidfd;
use super::children::Exit;
use super::cli::AttachOptions;
use super::error::Error;
use super::helpers::Helpers;
use super::run_and_attach::Runner;
use super::supervise::{End, SupervisedVm, supervise};
use super::vmm::{Qemu, Release, ThreadNames, Vmm, find_vm};
use super::{exit_codes, logged};

const PROC: &str = "/proc";
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the exit code in either case.
pub(crate) async fn run(mut options: AttachOptions) -> Result<u8, u8> {
    options.common.read_annotations().map_err(logged(exit_codes::RUNNER))?;
    let runner = Runner::start(&options.common, options.qmp.as_deref(), false);
    let mut runner = runner.map_err(logged(exit_codes::RUNNER))?;
    let found = tokio::select! {
        found = wait_for_vmm(&options) => found,
        number = runner.stop.recv() => {
            tracing::info!("signal {number} before a VM was found: exiting");
            runner.anchor.kill();
            return Err(Exit::Signal(number).code());
        }
    };
    let found = found.map_err(logged(exit_codes::RUNNER));
    let (pid, pidfd) = found.inspect_err(|_| runner.anchor.kill())?;
    let qemu = |qmp: &Path| Qemu::new(qmp, options.common.guest_agent.as_deref());
    match &options.qmp {
        Some(qmp) => attach(&options, runner, (pid, pidfd), qemu(qmp)).await,
        None => attach(&options, runner, (pid, pidfd), ThreadNames::new(Path::new(PROC), pid)).await,
    }
}

/// Waits up to `--register-timeout` for the VMM's process.
async fn wait_for_vmm(options: &AttachOptions) -> Result<(i32, OwnedFd), Error> {
    let deadline = Instant::now() + options.common.register_timeout;
    loop {
        match find(options) {
            Err(error) if Instant::now() < deadline => tracing::debug!("{error}"),
            done => return done,
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn attach(
    options: &AttachOptions,
    mut runner: Runner,
    (pid, pidfd): (i32, OwnedFd),
    vmm: impl Vmm,
) -> Result<u8, u8> {
    let name = vmm.name();
    tracing::info!("{name} is process {pid}");
    let instance = runner.register(&options.common).await?;
    let vm = SupervisedVm {
        pid,
        pidfd: pidfd.as_fd(),
        child: None,
        release: Release::AlreadyRunning,
        instance,
        // When PID 1 ends, the kernel kills the whole container: the guest is shut down before.
        ends_vmm: std::process::id() == 1,
    };
    let mut helpers = Helpers::new(Vec::new(), &runner.children, &runner.status);
    if let End::Vmm(_) = supervise(&mut runner, &options.common, &mut helpers, vmm, vm).await {
        tracing::info!("{name} ended");
    }
    runner.deregister().await;
    Ok(0)
}

fn find(options: &AttachOptions) -> Result<(i32, OwnedFd), Error> {
    let pid = match (options.pid, &options.qmp) {
        (Some(pid), _) => pid,
        (None, Some(qmp)) => listener(qmp)?,
        (None, None) => find_vm(Path::new(PROC))?,
    };
    let number = Pid::from_raw(pid).ok_or_else(|| Error::ThreadNames(format!("{pid} is not a process id")))?;
    Ok((pid, open_pidfd(number)?))
}

/// The process that listens on a socket, by SO_PEERCRED. If QEMU inherited the listening socket, it is the process that made the
/// socket, in which the daemon finds no vCPUs: then --pid is needed.
fn listener(socket: &Path) -> Result<i32, Error> {
    let peer = UnixStream::connect(socket).and_then(|stream| Ok(socket_peercred(&stream)?));
    let peer = peer.map_err(Error::path("find QEMU behind", socket))?;
    Ok(peer.pid.as_raw_nonzero().get())
}
