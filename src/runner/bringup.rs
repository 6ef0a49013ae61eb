//! From a paused QEMU to a guest that runs on CPUs of its own.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use zbus::OwnedObjectPath;

use super::daemon::Daemon;
use super::error::Error;
use super::qmp::Qmp;
use crate::dbus::NOT_PINNED;

const QMP_RETRY: Duration = Duration::from_millis(100);
const ATTACH_RETRY: Duration = Duration::from_secs(5);
/// After this long without QMP it is worth a line.
const QMP_PATIENCE: Duration = Duration::from_secs(10);

/// What is brought up.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    /// QEMU's QMP socket.
    pub qmp: &'a Path,
    /// QEMU itself.
    pub pidfd: BorrowedFd<'a>,
    /// The guest arrives by migration.
    pub incoming: bool,
    /// The instance's object.
    pub instance: &'a OwnedObjectPath,
}

/// Hand the vCPUs over and let the guest run. Never gives up: the guest stays paused until it succeeds, and the caller
/// drops this when QEMU ends or a signal asks for the end. Answers the QMP connection, for the shutdown.
pub async fn bring_up(guest: Guest<'_>, daemon: &mut Daemon) -> Qmp {
    loop {
        let qmp = connected(guest.qmp).await;
        let error = match attach(&qmp, guest, daemon).await {
            Ok(()) => return qmp,
            Err(error) => error,
        };
        tracing::error!(
            "{error}; the guest stays paused, next try in {} s",
            ATTACH_RETRY.as_secs()
        );
        // QEMU serves one client: whoever wants to look meanwhile can.
        drop(qmp);
        // And a fresh connection shows the daemon's objects as they are then.
        daemon.disconnect();
        sleep(ATTACH_RETRY).await;
    }
}

async fn connected(socket: &Path) -> Qmp {
    let started = Instant::now();
    let mut told = false;
    loop {
        match Qmp::connect(socket).await {
            Ok(qmp) => return qmp,
            Err(error) if !told && started.elapsed() > QMP_PATIENCE => {
                tracing::warn!("{error}; still trying");
                told = true;
            }
            Err(_) => {}
        }
        sleep(QMP_RETRY).await;
    }
}

async fn attach(qmp: &Qmp, guest: Guest<'_>, daemon: &mut Daemon) -> Result<(), Error> {
    let vcpus = qmp.vcpus().await?;
    // For the log only: I/O threads stay on the shared CPUs with the rest of QEMU.
    match qmp.iothreads().await {
        Ok(iothreads) => tracing::info!("QEMU has {} vCPUs and {iothreads} I/O threads", vcpus.len()),
        Err(error) => tracing::warn!("{error}"),
    }
    let (placement, state) = daemon.attach(guest.instance, guest.pidfd, &vcpus).await?;
    tracing::info!("{state}: {}", placement_line(&placement));
    if guest.incoming {
        // Continuing a QEMU that waits for its migration would make it take the disks from the source.
        tracing::info!("ready for the migration; whoever drives it continues the guest");
        return Ok(());
    }
    qmp.cont().await?;
    tracing::info!("guest running");
    Ok(())
}

/// `vcpu 0 -> cpu 2 (tid 4711), vcpu 1 -> not pinned (tid 4712)`.
fn placement_line(placement: &[(u32, u32, u32)]) -> String {
    let one = |(vcpu, tid, cpu): &(u32, u32, u32)| match *cpu {
        NOT_PINNED => format!("vcpu {vcpu} -> not pinned (tid {tid})"),
        cpu => format!("vcpu {vcpu} -> cpu {cpu} (tid {tid})"),
    };
    placement.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_one_readable_line() {
        assert_eq!(
            placement_line(&[(0, 4711, 2), (1, 4712, NOT_PINNED)]),
            "vcpu 0 -> cpu 2 (tid 4711), vcpu 1 -> not pinned (tid 4712)"
        );
        assert_eq!(placement_line(&[]), "");
    }
}
