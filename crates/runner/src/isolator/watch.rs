//! Waits for what may change the threads of a VM, its CPUs or its memory.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{FIRST_VMM_RETRY_DELAY, Isolator, SETTLE_TIME};
use crate::vmm::{Change, Threads, Vmm};

/// How often the VMM is queried if no event reports a change: for a VM with a free vCPU slot, and for a guest that does
/// not run.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

impl<V: Vmm> Isolator<'_, V> {
    /// Returns when the threads may have changed, or have to be attached again.
    pub(super) async fn watch(&mut self, threads: &Threads) {
        loop {
            // Some run states end without an event (`finish-migrate` on the source).
            let settled = matches!(self.status.now().guest.as_str(), "running" | "unknown");
            let is_reported = self.vmm.reports_every_change() || (settled && !threads.may_grow);
            let deadline = self.resizer.deadline().map(Instant::from_std);
            let waits = self.paused.is_some() || self.resizer.step().is_some();
            let is_quiet = is_reported && deadline.is_none() && !waits && !self.is_memory_watched();
            let interval = if is_quiet { Duration::MAX } else { POLL_INTERVAL };
            let may_change = threads.may_grow || deadline.is_some();
            let followed = self.is_followed();
            tokio::select! {
                change = self.vmm.change() => match change {
                    Ok(Change::Threads) => {
                        sleep(SETTLE_TIME).await;
                        return;
                    }
                    Ok(Change::RunState) => {
                        self.run_state().await;
                        if self.is_resize_due() {
                            return;
                        }
                    }
                    Ok(Change::Memory) => self.follow_memory().await,
                    Err(error) => {
                        tracing::warn!("{error}; connecting again");
                        self.vmm.disconnect();
                        sleep(FIRST_VMM_RETRY_DELAY).await;
                        return;
                    }
                },
                () = sleep(interval) => {
                    if may_change && !self.vmm.threads().await.is_ok_and(|now| now.vcpus == threads.vcpus) {
                        return;
                    }
                    self.run_state().await;
                    if self.paused.is_some() || self.is_resize_due() {
                        return;
                    }
                    self.request_again().await;
                    self.note_memory_limit();
                    self.follow_memory().await;
                }
                event = self.daemon.event(), if followed => {
                    self.on_event(event).await;
                    self.follow_memory().await;
                    if self.cpus_changed || self.is_resize_due() {
                        return;
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => return,
            }
        }
    }
}
