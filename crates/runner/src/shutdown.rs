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
enum Powerdown {
    Requested,
    /// The guest never ran, has migrated away, or has ended.
    NotRunning,
}

/// Ends QEMU: powers the guest down, sends `quit` after `grace`, and SIGKILL 3 s later. Without a monitor it sends SIGTERM, and
/// SIGKILL after `grace`. It returns after SIGKILL only: the caller drops it when QEMU ends.
pub(crate) async fn shut_down(socket: Option<&Path>, mut qmp: Option<Qmp>, qemu: BorrowedFd<'_>, grace: Duration) {
    let deadline = Instant::now() + grace;
    let Some(socket) = socket else {
        tracing::info!("no monitor: sending QEMU SIGTERM; it has {} s", grace.as_secs());
        send(qemu, Signal::TERM);
        sleep_until(deadline).await;
        tracing::warn!("QEMU did not end within {} s: killing it", grace.as_secs());
        send(qemu, Signal::KILL);
        return;
    };
    match timeout_at(deadline, request_powerdown(socket, &mut qmp)).await {
        Ok(Powerdown::Requested) => {
            tracing::info!("asked the guest to power down; it has {} s", grace.as_secs());
            sleep_until(deadline).await;
            tracing::warn!(
                "the guest did not power down within {} s: telling QEMU to quit",
                grace.as_secs()
            );
        }
        Ok(Powerdown::NotRunning) => tracing::info!("the guest does not run: telling QEMU to quit"),
        Err(_) => tracing::warn!("QMP did not answer within {} s: telling QEMU to quit", grace.as_secs()),
    }
    let deadline = Instant::now() + QUIT_TIME;
    if let Err(error) = quit(socket, qmp, deadline).await {
        // QEMU handles SIGTERM as it does `quit`.
        tracing::warn!("{error}; sending SIGTERM");
        send(qemu, Signal::TERM);
    }
    sleep_until(deadline).await;
    tracing::warn!("QEMU did not quit within {} s: killing it", QUIT_TIME.as_secs());
    send(qemu, Signal::KILL);
}

/// Tries until QEMU answers: on the open connection first, on a new one when that is broken.
async fn request_powerdown(socket: &Path, kept: &mut Option<Qmp>) -> Powerdown {
    let mut warned = false;
    loop {
        match try_request(socket, kept).await {
            Ok(powerdown) => return powerdown,
            Err(error) => {
                *kept = None;
                if !warned {
                    tracing::warn!("{error}; still trying");
                    warned = true;
                }
            }
        }
        sleep(RETRY).await;
    }
}

async fn try_request(socket: &Path, kept: &mut Option<Qmp>) -> Result<Powerdown, Error> {
    let qmp = match kept {
        Some(qmp) => qmp,
        None => kept.insert(Qmp::connect(socket).await?),
    };
    if qmp.status().await?.is_deaf() {
        return Ok(Powerdown::NotRunning);
    }
    qmp.powerdown().await?;
    Ok(Powerdown::Requested)
}

async fn quit(socket: &Path, kept: Option<Qmp>, deadline: Instant) -> Result<(), Error> {
    let quit = async {
        let mut qmp = match kept {
            Some(qmp) => qmp,
            None => Qmp::connect(socket).await?,
        };
        qmp.quit().await
    };
    // The rest of the time is needed for SIGTERM.
    let limit = deadline - QUIT_TIME / 2;
    let failed = |text: &str| Error::Qmp {
        command: "quit",
        socket: socket.to_owned(),
        text: text.to_owned(),
    };
    timeout_at(limit, quit)
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
