//! Pauses the guest of a VMM that cannot start paused, as soon as possible, until the vCPUs are attached.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Isolator, VMM_WARNING_DELAY};
use crate::state::{Window, micros};
use crate::vmm::{Hold, Vmm};

/// The interval of attempts. The shorter it is, the shorter the guest runs unpinned. While there is no vCPU thread, an attempt only reads
/// names and queries the VMM seldom. For a VM that is booted later the interval is a thousandth of the time that has passed, at most
/// `MAX_TRY_INTERVAL`.
const MIN_TRY_INTERVAL: Duration = Duration::from_millis(1);
const MAX_TRY_INTERVAL: Duration = Duration::from_millis(100);

/// The state of the guest before its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    NotYet,
    Paused,
    /// It could not be paused.
    Runs,
}

impl<V: Vmm> Isolator<'_, V> {
    /// Returns when the guest does not run, or cannot be paused.
    pub(super) async fn hold(&mut self) {
        let started = Instant::now();
        let mut warned = false;
        while self.held == HoldOutcome::NotYet {
            match self.vmm.hold().await {
                Ok(Hold::Unneeded) => {
                    self.held = HoldOutcome::Paused;
                    return;
                }
                Ok(Hold::Paused(ran)) => {
                    self.held = HoldOutcome::Paused;
                    self.ran = ran;
                    if ran.is_none() {
                        self.status.update(|state| state.paused_start = true);
                    }
                    return;
                }
                Ok(Hold::Runs(text)) => {
                    tracing::error!(
                        "the guest cannot be paused: {text}; it runs on shared CPUs until its vCPUs are attached"
                    );
                    self.held = HoldOutcome::Runs;
                    return;
                }
                // A helper that starts after the VMM may boot the guest.
                Ok(Hold::NotYet(guest)) => self.status.update(|state| state.guest = guest),
                Err(error) if !warned && started.elapsed() > VMM_WARNING_DELAY => {
                    tracing::warn!("{error}; still trying");
                    warned = true;
                }
                Err(error) => tracing::debug!("{error}"),
            }
            // The pauses are too short to make a connection in; the attach makes one.
            let followed = self.is_followed() && self.daemon.is_connected();
            tokio::select! {
                () = sleep((started.elapsed() / 1000).clamp(MIN_TRY_INTERVAL, MAX_TRY_INTERVAL)) => {}
                event = self.daemon.event(), if followed => self.on_event(event).await,
            }
        }
    }

    /// Reports how long a paused guest ran before, once all its threads are known and have stopped.
    pub(super) fn report_paused(&mut self) {
        if let Some(wall) = self.ran.take() {
            let window = self.vmm.window();
            let wall_us = micros(wall);
            self.report_window(Window { wall_us, ..window });
        }
    }

    pub(super) fn report_window(&self, window: Window) {
        let (wall, run) = (window.wall_us, window.run_us);
        let ran = run.map_or_else(|| "an unknown time".into(), |run| format!("{run} µs"));
        let name = self.vmm.name();
        tracing::warn!(
            window_us = wall,
            run_us = run,
            "{name} does not start paused: within at most {wall} µs the vCPUs ran {ran} on shared CPUs, not pinned"
        );
        self.status.update(|state| {
            state.paused_start = false;
            state.window = Some(window);
        });
    }
}
