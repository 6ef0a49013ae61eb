//! `stelia-runner attach`: a QEMU that something else started in this container.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::{Instant, sleep};

use super::EXIT_RUNNER;
use super::anchor::open_pidfd;
use super::base::Base;
use super::children::Exit;
use super::cli::AttachOptions;
use super::error::Error;
use super::helpers::Helpers;
use super::keeper::{Keeper, Plan};
use super::supervise::{End, Qemu, Watch, watch};
use super::vmm::{Monitor, Named, Release, Vmm, find_vm};

const PROC: &str = "/proc";
const RETRY: Duration = Duration::from_millis(250);

/// Answers the exit code.
pub async fn run(mut options: AttachOptions) -> u8 {
    let asked = options.common.read_annotations();
    let mut base = match asked.and_then(|()| Base::start(&options.common, options.qmp.as_deref(), false)) {
        Ok(base) => base,
        Err(error) => {
            tracing::error!("{error}");
            return EXIT_RUNNER;
        }
    };
    let found = tokio::select! {
        found = awaited(&options) => found,
        number = base.stop.recv() => {
            tracing::info!("signal {number} before QEMU was found: leaving");
            base.anchor.kill();
            return Exit::Signal(number).code();
        }
    };
    let (pid, pidfd) = match found {
        Ok(found) => found,
        Err(error) => {
            tracing::error!("{error}");
            base.anchor.kill();
            return EXIT_RUNNER;
        }
    };
    tracing::info!("QEMU is process {pid}");
    match &options.qmp {
        Some(qmp) => attach(&options, base, pidfd, Monitor::new(qmp)).await,
        None => attach(&options, base, pidfd, Named::new(Path::new(PROC), pid)).await,
    }
}

/// QEMU's process, which may be about to start.
async fn awaited(options: &AttachOptions) -> Result<(i32, OwnedFd), Error> {
    let deadline = Instant::now() + options.common.register_timeout;
    loop {
        match find(options) {
            Err(error) if Instant::now() < deadline => tracing::debug!("{error}"),
            done => return done,
        }
        sleep(RETRY).await;
    }
}

async fn attach(options: &AttachOptions, mut base: Base, pidfd: OwnedFd, vmm: impl Vmm) -> u8 {
    let instance = match base.register(&options.common).await {
        Ok(instance) => instance,
        Err(code) => return code,
    };
    // The descriptor is waited on and handed over.
    let waited = match pidfd.try_clone() {
        Ok(waited) => waited,
        Err(cause) => {
            tracing::error!("duplicate QEMU's pidfd: {cause}");
            return EXIT_RUNNER;
        }
    };
    let plan = Plan {
        qemu: pidfd.as_fd(),
        anchor: base.anchor.pidfd.as_fd(),
        claims: options.common.claims(),
        require: options.common.require_isolation,
        iothread_cpus: options.common.iothread_cpus,
        release: Release::Running,
    };
    let mut helpers = Helpers::new(Vec::new(), &base.children, &base.status);
    let keeper = Keeper::new(vmm, &mut base.daemon, &base.status, plan, instance);
    let of = Watch {
        pidfd: pidfd.as_fd(),
        qmp: options.qmp.as_deref(),
        anchor: base.anchor.child.clone(),
        helpers: &mut helpers,
        status: &base.status,
        grace: options.common.grace,
        // With PID 1 the whole container ends, and QEMU would be killed without a word.
        ends_qemu: std::process::id() == 1,
    };
    if let End::Qemu(_) = watch(keeper, &mut Qemu::Other(waited), of, &mut base.stop).await {
        tracing::info!("QEMU ended");
    }
    base.leave().await;
    0
}

/// QEMU's process.
fn find(options: &AttachOptions) -> Result<(i32, OwnedFd), Error> {
    let pid = match (options.pid, &options.qmp) {
        (Some(pid), _) => pid,
        (None, Some(qmp)) => listener(qmp)?,
        (None, None) => find_vm(Path::new(PROC))?,
    };
    let number = Pid::from_raw(pid).ok_or_else(|| Error::Names(format!("{pid} is no process")))?;
    Ok((pid, open_pidfd(number)?))
}

/// The process that listens on a socket, by the kernel's word. (Where the listening socket was handed to QEMU ready made, that
/// is whoever made it, and the daemon will not find the vCPUs in it: --pid helps.)
fn listener(socket: &Path) -> Result<i32, Error> {
    let failed = |cause| Error::Path {
        operation: "find QEMU behind",
        path: socket.to_owned(),
        cause,
    };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|error| failed(error.into()))?;
    Ok(peer.pid.as_raw_nonzero().get())
}
