//! The shutdown, from SIGTERM to the VMM's end.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::Error;
use super::vmm::{PowerDown, Quit, Vmm};

/// The time from the quit command to SIGKILL.
const QUIT_TIME: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Ends the VMM: powers the guest down, tells the VMM to quit after `grace`, and sends SIGKILL 3 s later. Without a control
/// channel it sends SIGTERM, and SIGKILL after `grace`. It returns after SIGKILL only: the caller drops it when the VMM ends.
pub(crate) async fn shut_down<V: Vmm>(vmm: &mut V, process: BorrowedFd<'_>, grace: Duration) {
    let name = vmm.name();
    let deadline = Instant::now() + grace;
    match timeout_at(deadline, request_powerdown(vmm)).await {
        Ok(PowerDown::BySignal) => {
            tracing::info!("no monitor: sending {name} SIGTERM; it has {} s", grace.as_secs());
            send(name, process, Signal::TERM);
            sleep_until(deadline).await;
            tracing::warn!("{name} did not end within {} s: killing it", grace.as_secs());
            send(name, process, Signal::KILL);
            return;
        }
        Ok(PowerDown::Requested) => {
            tracing::info!("asked the guest to power down; it has {} s", grace.as_secs());
            sleep_until(deadline).await;
            tracing::warn!(
                "the guest did not power down within {} s: telling {name} to quit",
                grace.as_secs()
            );
        }
        Ok(PowerDown::NotRunning) => tracing::info!("the guest does not run: telling {name} to quit"),
        Ok(PowerDown::Refused(text)) => {
            tracing::warn!("the guest cannot be asked to power down: {text}: telling {name} to quit");
        }
        Err(_) => {
            tracing::warn!("{name} did not answer within {} s: telling it to quit", grace.as_secs());
        }
    }
    let deadline = Instant::now() + QUIT_TIME;
    match quit(vmm, deadline).await {
        Ok(Quit::Requested) => {}
        Ok(Quit::BySignal) => {
            tracing::info!("sending {name} SIGTERM");
            send(name, process, Signal::TERM);
        }
        Err(text) => {
            // QEMU and Cloud Hypervisor handle SIGTERM as they do the command.
            tracing::warn!("{text}; sending SIGTERM");
            send(name, process, Signal::TERM);
        }
    }
    sleep_until(deadline).await;
    tracing::warn!("{name} did not quit within {} s: killing it", QUIT_TIME.as_secs());
    send(name, process, Signal::KILL);
}

/// Tries until the VMM answers: first on the open connection, then on a new one.
async fn request_powerdown<V: Vmm>(vmm: &mut V) -> PowerDown {
    let mut warned = false;
    loop {
        match vmm.power_down().await {
            Ok(done) => return done,
            Err(error) => {
                vmm.disconnect();
                if !warned {
                    tracing::warn!("{error}; still trying");
                    warned = true;
                }
            }
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn quit<V: Vmm>(vmm: &mut V, deadline: Instant) -> Result<Quit, String> {
    let name = vmm.name();
    // The other half is for SIGTERM.
    match timeout_at(deadline - QUIT_TIME / 2, vmm.quit()).await {
        Ok(done) => done.map_err(|error: Error| error.to_string()),
        Err(_) => Err(format!("{name} did not answer the command to quit")),
    }
}

fn send(name: &str, process: BorrowedFd<'_>, signal: Signal) {
    if let Err(error) = pidfd_send_signal(process, signal)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!("send signal {} to {name}: {error}", signal.as_raw());
    }
}
