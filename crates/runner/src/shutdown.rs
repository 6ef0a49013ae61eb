//! From SIGTERM to a QEMU that has ended.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::Error;
use super::qmp::Qmp;

/// From `quit` to SIGKILL.
const QUIT_TIME: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(250);

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The guest was told to power down.
    Powerdown,
    /// There is nobody to tell: the guest never ran, or is gone.
    Nobody,
}

/// End QEMU: power the guest down, after `grace` quit, 3 s later kill. The caller watches QEMU and drops this when it
/// has ended; it never returns otherwise before the kill.
///
/// Without a monitor it is told by SIGTERM, and has `grace` for it.
pub async fn shut_down(socket: Option<&Path>, mut qmp: Option<Qmp>, qemu: BorrowedFd<'_>, grace: Duration) {
    let deadline = Instant::now() + grace;
    let Some(socket) = socket else {
        tracing::info!("no monitor: sending QEMU SIGTERM; it has {} s", grace.as_secs());
        send(qemu, Signal::TERM);
        sleep_until(deadline).await;
        tracing::warn!("QEMU did not end within {} s: killing it", grace.as_secs());
        send(qemu, Signal::KILL);
        return;
    };
    match timeout_at(deadline, ask(socket, &mut qmp)).await {
        Ok(Asked::Powerdown) => {
            tracing::info!("asked the guest to power down; it has {} s", grace.as_secs());
            sleep_until(deadline).await;
            tracing::warn!(
                "the guest did not power down within {} s: telling QEMU to quit",
                grace.as_secs()
            );
        }
        Ok(Asked::Nobody) => tracing::info!("the guest does not run: telling QEMU to quit"),
        Err(_) => tracing::warn!(
            "QMP was not to be had within {} s: telling QEMU to quit",
            grace.as_secs()
        ),
    }
    let deadline = Instant::now() + QUIT_TIME;
    if let Err(error) = quit(socket, qmp, deadline).await {
        // QEMU takes SIGTERM as another way to say quit.
        tracing::warn!("{error}; sending SIGTERM");
        send(qemu, Signal::TERM);
    }
    sleep_until(deadline).await;
    tracing::warn!("QEMU did not quit within {} s: killing it", QUIT_TIME.as_secs());
    send(qemu, Signal::KILL);
}

/// Ask until somebody has heard: the kept connection first, a new one when that is broken.
async fn ask(socket: &Path, kept: &mut Option<Qmp>) -> Asked {
    let mut told = false;
    loop {
        match try_ask(socket, kept).await {
            Ok(asked) => return asked,
            Err(error) => {
                *kept = None;
                if !told {
                    tracing::warn!("{error}; still trying");
                    told = true;
                }
            }
        }
        sleep(RETRY).await;
    }
}

async fn try_ask(socket: &Path, kept: &mut Option<Qmp>) -> Result<Asked, Error> {
    let qmp = match kept {
        Some(qmp) => qmp,
        None => kept.insert(Qmp::connect(socket).await?),
    };
    if qmp.status().await?.is_deaf() {
        return Ok(Asked::Nobody);
    }
    qmp.powerdown().await?;
    Ok(Asked::Powerdown)
}

async fn quit(socket: &Path, kept: Option<Qmp>, deadline: Instant) -> Result<(), Error> {
    let told = async {
        let mut qmp = match kept {
            Some(qmp) => qmp,
            None => Qmp::connect(socket).await?,
        };
        qmp.quit().await
    };
    // Leave SIGTERM some of the time.
    let limit = deadline - QUIT_TIME / 2;
    let failed = |text: &str| Error::Qmp {
        command: "quit",
        socket: socket.to_owned(),
        text: text.to_owned(),
    };
    timeout_at(limit, told)
        .await
        .unwrap_or_else(|_| Err(failed("no answer")))
}

fn send(qemu: BorrowedFd<'_>, signal: Signal) {
    if let Err(error) = pidfd_send_signal(qemu, signal)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!("send signal {} to QEMU: {error}", signal.as_raw());
    }
}
