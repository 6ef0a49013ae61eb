//! From the VMM's start to its end, for `run` and `attach`: isolation, helpers, signals, shutdown.

use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::time::Duration;

use stelia_kernel::proc;
use tokio::time::timeout;
use zbus::OwnedObjectPath;

use super::children::{Child, Exit};
use super::cli::CommonOptions;
use super::helpers::Helpers;
use super::isolator::{Isolator, VmOptions};
use super::pause_mark::PauseMark;
use super::run_and_attach::Runner;
use super::shutdown::shut_down;
use super::state::Phase;
use super::vmm::{Release, Vmm};

/// A helper that ends with the VMM (virtiofsd) may be seen to end this much before it.
const JOINT_END_WINDOW: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct SupervisedVm<'a> {
    pub(crate) pid: i32,
    pub(crate) pidfd: BorrowedFd<'a>,
    /// `None` if the runner did not start the VMM.
    pub(crate) child: Option<Child>,
    pub(crate) release: Release,
    /// `None` if the container is not registered yet.
    pub(crate) instance: Option<OwnedObjectPath>,
    /// Whether a signal to the runner ends the VMM.
    pub(crate) ends_vmm: bool,
}

/// The pause after the VMM's end could not be waited for.
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// Waits for the VMM's end. The exit code of a process that is not a child is not known: 0.
async fn ended(child: &mut Option<Child>, pidfd: BorrowedFd<'_>) -> Exit {
    match child {
        Some(child) => child.wait().await,
        None => loop {
            let end = async { proc::ended(pidfd.try_clone_to_owned()?)?.await };
            match end.await {
                Ok(_) => return Exit::Code(0),
                // Not the VMM's end: descriptors or memory have run out.
                Err(error) => tracing::error!("wait for the VMM's end: {error}"),
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Vmm(Exit),
    /// The VMM was shut down because a fatal helper had ended.
    Helper,
    /// The VMM still runs.
    Detached,
}

/// Keeps the VM isolated until it ends.
pub(crate) async fn supervise<V: Vmm>(
    runner: &mut Runner,
    options: &CommonOptions,
    helpers: &mut Helpers,
    vmm: V,
    vm: SupervisedVm<'_>,
) -> End {
    let Runner {
        stop,
        anchor,
        daemon,
        status,
        directory,
        ..
    } = runner;
    let name = vmm.name();
    let (mut child, pidfd) = (vm.child, vm.pidfd);
    let vm_options = VmOptions {
        process: pidfd,
        anchor: anchor.pidfd.as_fd(),
        common: options,
        release: vm.release,
        pause_mark: PauseMark::new(directory.as_deref(), vm.pid),
    };
    let mut isolator = Isolator::new(vmm, daemon, status, vm_options, vm.instance);
    let mut anchor = anchor.child.clone();
    let mut anchor_watched = true;
    let mut helper_failed = false;
    let mut after_started = false;
    let mut is_left = false;
    {
        let mut isolating = pin!(isolator.run());
        loop {
            tokio::select! {
                exit = ended(&mut child, pidfd) => return End::Vmm(exit),
                number = stop.recv() => {
                    if !vm.ends_vmm {
                        tracing::info!("signal {number}: leaving {name} to whoever started it");
                        is_left = true;
                        break;
                    }
                    tracing::info!("signal {number}: shutting the guest down");
                    break;
                }
                () = &mut isolating => {}
                () = status.wait_for(|state| state.guest != "absent"), if !after_started => {
                    helpers.start_after();
                    after_started = true;
                }
                error = helpers.fatal() => {
                    if let Ok(exit) = timeout(JOINT_END_WINDOW, ended(&mut child, pidfd)).await {
                        return End::Vmm(exit);
                    }
                    tracing::error!("{error}: shutting the guest down");
                    helper_failed = true;
                    break;
                }
                exit = anchor.wait(), if anchor_watched => {
                    anchor_died(exit);
                    anchor_watched = false;
                }
            }
        }
        // `isolating` is dropped here, so that it does not continue the guest during the shutdown.
    }
    if is_left {
        // Nobody else would let it run.
        isolator.resume().await;
        return End::Detached;
    }
    status.update(|state| state.phase = Phase::Stopping);
    let mut shutting_down = pin!(async {
        // A paused guest does not notice its power button.
        isolator.resume().await;
        shut_down(&mut isolator.vmm, pidfd, options.grace).await;
    });
    let mut killed = false;
    loop {
        tokio::select! {
            exit = ended(&mut child, pidfd) => return if helper_failed { End::Helper } else { End::Vmm(exit) },
            () = &mut shutting_down, if !killed => killed = true,
            number = stop.recv() => tracing::info!("signal {number}: already shutting down"),
            error = helpers.fatal() => tracing::info!("{error}: already shutting down"),
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
