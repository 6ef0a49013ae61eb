//! `stelia-runner attach`: isolates a VM whose VMM another program started in this container.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use tokio::time::{Instant, sleep};

use super::EXIT_RUNNER;
use super::anchor::open_pidfd;
use super::children::Exit;
use super::cli::AttachOptions;
use super::error::Error;
use super::helpers::Helpers;
use super::runner::Runner;
use super::supervise::{End, Vm, supervise};
use super::vmm::{Monitor, Release, ThreadNames, Vmm, find_vm};

const PROC: &str = "/proc";
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) async fn run(mut options: AttachOptions) -> u8 {
    let annotations = options.common.read_annotations();
    let mut runner = match annotations.and_then(|()| Runner::start(&options.common, options.qmp.as_deref(), false)) {
        Ok(runner) => runner,
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    let found = tokio::select! {
        found = wait_for_vmm(&options) => found,
        number = runner.stop.recv() => {
            tracing::info!("signal {number} before a VM was found: exiting");
            runner.anchor.kill();
            return Exit::Signal(number).code();
        }
    };
    let (pid, pidfd) = match found {
        Ok(found) => found,
        Err(error) => {
            tracing::error!("{error}");
            runner.anchor.kill();
            return EXIT_RUNNER;
        }
    };
    match &options.qmp {
        Some(qmp) => attach(&options, runner, (pid, pidfd), Monitor::new(qmp)).await,
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

async fn attach(options: &AttachOptions, mut runner: Runner, (pid, pidfd): (i32, OwnedFd), vmm: impl Vmm) -> u8 {
    let name = vmm.name();
    tracing::info!("{name} is process {pid}");
    let instance = match runner.register(&options.common).await {
        Ok(instance) => instance,
        Err(code) => return code,
    };
    let vm = Vm {
        vmm,
        pidfd: pidfd.as_fd(),
        child: None,
        release: Release::AlreadyRunning,
        instance,
        // When PID 1 ends, the kernel kills the whole container: the guest is shut down before.
        ends_vmm: std::process::id() == 1,
    };
    let mut helpers = Helpers::new(Vec::new(), &runner.children, &runner.status);
    if let End::Vmm(_) = supervise(&mut runner, &options.common, &mut helpers, vm).await {
        tracing::info!("{name} ended");
    }
    runner.deregister().await;
    0
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
    let peer = peer.map_err(|cause| Error::Path {
        operation: "find QEMU behind",
        path: socket.to_owned(),
        cause,
    })?;
    Ok(peer.pid.as_raw_nonzero().get())
}
