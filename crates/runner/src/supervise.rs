//! Everything between QEMU's start and its end, whoever started it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::{sleep, timeout};

use super::children::{Child, Exit};
use super::helpers::Helpers;
use super::keeper::Keeper;
use super::shutdown::shut_down;
use super::signals::Stop;
use super::state::Phase;
use super::status::Status;
use super::vmm::Vmm;

/// A helper that QEMU takes along (virtiofsd does not outlive its guest) may be seen to end first.
const TOGETHER: Duration = Duration::from_millis(500);
/// How often a process that is no child is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// QEMU, whose end is waited for.
#[derive(Debug)]
pub enum Qemu {
    /// The runner's own child.
    Child(Child),
    /// Somebody else's, by its pidfd.
    Other(OwnedFd),
}

impl Qemu {
    /// Wait for its end. How another's child ended is not known.
    pub async fn wait(&mut self) -> Exit {
        match self {
            Qemu::Child(child) => child.wait().await,
            Qemu::Other(pidfd) => {
                while !ended(pidfd) {
                    sleep(LOOK).await;
                }
                Exit::Code(0)
            }
        }
    }
}

/// A pidfd is readable when its process has ended.
fn ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) {
        Ok(ready) => ready > 0,
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => {
            tracing::error!("wait for QEMU's end: {error}");
            true
        }
    }
}

/// What is watched beside QEMU, and how it is ended.
#[derive(Debug)]
pub struct Watch<'a> {
    /// QEMU, for signals.
    pub pidfd: BorrowedFd<'a>,
    /// Its monitor; none: it is ended by signals.
    pub qmp: Option<&'a Path>,
    /// The anchor.
    pub anchor: Child,
    /// The helpers.
    pub helpers: &'a mut Helpers,
    /// The runner's state.
    pub status: &'a Status,
    /// How long the guest may take to power down.
    pub grace: Duration,
    /// A signal ends QEMU too; else the watch alone.
    pub ends_qemu: bool,
}

/// How the watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// QEMU ended.
    Qemu(Exit),
    /// A helper's end was the reason; then QEMU ended.
    Helper,
    /// QEMU was left running.
    Left,
}

/// Keep the VM until it ends.
pub async fn watch<V: Vmm>(mut keeper: Keeper<'_, V>, qemu: &mut Qemu, of: Watch<'_>, stop: &mut Stop) -> End {
    let mut anchor = of.anchor;
    let mut anchor_watched = true;
    let mut broken = false;
    let mut after_started = false;
    {
        let mut keeping = pin!(keeper.keep());
        loop {
            tokio::select! {
                exit = qemu.wait() => return End::Qemu(exit),
                number = stop.recv() => {
                    if !of.ends_qemu {
                        tracing::info!("signal {number}: leaving QEMU to whoever started it");
                        return End::Left;
                    }
                    tracing::info!("signal {number}: shutting the guest down");
                    break;
                }
                () = &mut keeping => {}
                () = of.status.wait_for(|state| state.guest != "absent"), if !after_started => {
                    of.helpers.start_after();
                    after_started = true;
                }
                error = of.helpers.fatal() => {
                    if let Ok(exit) = timeout(TOGETHER, qemu.wait()).await {
                        return End::Qemu(exit);
                    }
                    tracing::error!("{error}: shutting the guest down");
                    broken = true;
                    break;
                }
                exit = anchor.wait(), if anchor_watched => {
                    anchor_died(exit);
                    anchor_watched = false;
                }
            }
        }
        // Whatever was still being brought up is dropped here, so nothing continues the guest behind the shutdown.
    }
    of.status.update(|state| state.phase = Phase::Stopping);
    let mut shutting_down = pin!(shut_down(of.qmp, keeper.vmm.take_qmp(), of.pidfd, of.grace));
    let mut killed = false;
    loop {
        tokio::select! {
            exit = qemu.wait() => return if broken { End::Helper } else { End::Qemu(exit) },
            () = &mut shutting_down, if !killed => killed = true,
            number = stop.recv() => tracing::info!("signal {number}: already shutting down"),
            error = of.helpers.fatal() => tracing::info!("{error}: already shutting down"),
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
