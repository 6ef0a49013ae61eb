//! Plugs and unplugs vCPUs when the number of the container's CPUs changes.

use std::time::{Duration, Instant};

use stelia_cpus::CpuSet;
use stelia_kernel::clock::monotonic_us;
use tokio::time::{sleep, timeout};
use zbus::OwnedObjectPath;

use super::Isolator;
use crate::error::Error;
use crate::resize::{RESIZE_TIMEOUT, Resize, ResizeOutcome};
use crate::vmm::{ResizeStart, Threads, Vmm};

/// The guest is paused until its new vCPUs are pinned, but not for longer than this: then they are attached while it runs.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long the runner waits until it asks a daemon again that was gone or busy while the guest is paused: one that restarts is back soon.
const PAUSED_RETRY_DELAY: Duration = Duration::from_millis(300);
/// How long the VMM may take to let it run, until that is tried again.
const RESUME_TIMEOUT: Duration = Duration::from_secs(5);

impl<V: Vmm> Isolator<'_, V> {
    /// State and CPUs of the instance, as [`crate::daemon::Daemon::state`]. Notes how many CPUs there are, or will be.
    pub(super) async fn query_instance(
        &mut self,
        instance: &OwnedObjectPath,
    ) -> Result<Option<(String, String)>, Error> {
        self.query_memory_limit(instance).await;
        if !self.options.common.resize {
            return self.daemon.state(instance).await;
        }
        // A new connection may not have the instance's object yet: then the next signal tells.
        let pending = self.daemon.pending_resize(instance).await;
        let found = self.daemon.state(instance).await?;
        if let (Some((_, cpus)), Ok(pending)) = (&found, pending)
            && let Ok(cpus) = cpus.parse::<CpuSet>()
        {
            if pending != self.pending
                && let Some(pending) = pending
            {
                tracing::info!(
                    "the VM is to lose {} CPUs",
                    cpus.len().saturating_sub(pending.remaining)
                );
            }
            self.pending = pending;
            let remaining = pending.map_or(cpus.len(), |pending| pending.remaining);
            self.resizer.set_cpus(cpus.len(), remaining);
        }
        Ok(found)
    }

    /// The VM has these threads, which are attached.
    pub(super) async fn note_vcpus(&mut self, threads: &Threads) {
        let ended = self.resizer.set_vcpus(threads.vcpus.len(), Instant::now());
        let Some(resize) = ended else { return };
        let Resize { from, to, outcome } = resize;
        match outcome {
            ResizeOutcome::Done => tracing::info!("the VM has {to} vCPUs now, {from} before"),
            _ if to < from => tracing::warn!(
                "the guest gave up {} of the {} vCPUs that it was asked for in time",
                from - threads.vcpus.len().min(from),
                from - to
            ),
            _ => tracing::warn!("{} did not start the threads of {to} vCPUs in time", self.vmm.name()),
        }
        self.status.update(|state| state.resize = Some(resize));
        if to < from {
            self.vmm.shrunk().await;
        }
    }

    /// The change that is due and that the guest is able to make in its run state: to give up vCPUs it has to run, and one that was shut down or
    /// migrates is not changed.
    fn due(&self) -> Option<(usize, usize)> {
        let (from, to) = self.resizer.step()?;
        let is_able = match self.status.now().guest.as_str() {
            // No monitor: that it is impossible is said.
            "running" | "unknown" => true,
            "paused" => to > from,
            _ => false,
        };
        is_able.then_some((from, to))
    }

    pub(super) fn is_resize_due(&self) -> bool {
        self.due().is_some()
    }

    /// Requests the change that is due, if there is one. Returns whether the threads have changed.
    pub(super) async fn resize(&mut self) -> Result<bool, Error> {
        if self.resizer.step().is_none() {
            return Ok(false);
        }
        self.run_state().await;
        // A VMM takes no change of its vCPUs then, and a guest that is paused would stay so at the destination.
        if self.vmm.is_migrating().await? {
            return Ok(false);
        }
        let Some((from, to)) = self.due() else {
            return Ok(false);
        };
        let deadline = self.resize_deadline(from, to);
        let begun = if to > from {
            self.grow(from, to).await
        } else {
            self.vmm.resize(from, to, deadline).await
        };
        let resize = match begun {
            Ok(ResizeStart::Begun(count)) => {
                let to = if to > from {
                    from + count
                } else {
                    from.saturating_sub(count)
                };
                tracing::info!("the VM is to have {to} vCPUs instead of {from}");
                self.resizer.requested(to, deadline)
            }
            Ok(ResizeStart::Impossible(text)) => {
                tracing::warn!("the VM keeps its {from} vCPUs, although its number of CPUs changed: {text}");
                if to > from {
                    self.resume().await
                } else {
                    self.vmm.shrunk().await
                }
                self.resizer.impossible()
            }
            Err(error) => {
                // It may have been carried out in part.
                self.resizer.requested(to, deadline);
                return Err(error);
            }
        };
        self.status.update(|state| state.resize = Some(resize));
        Ok(to > from && resize.outcome == ResizeOutcome::Requested)
    }

    /// Asks the guest again for vCPUs that it has not given up.
    pub(super) async fn request_again(&mut self) {
        if self.status.now().guest == "running"
            && let Some(count) = self.resizer.not_given_up()
            && let Err(error) = self.vmm.request_again(count).await
        {
            tracing::debug!("{error}");
        }
    }

    /// Plugs vCPUs while the guest is paused: they would run before they are pinned.
    async fn grow(&mut self, from: usize, to: usize) -> Result<ResizeStart, Error> {
        if let Some(text) = self.vmm.why_not_grow().await? {
            return Ok(ResizeStart::Impossible(text));
        }
        if self.status.now().guest == "running" {
            self.options.pause_mark.set();
            // Before the request, whose answer may be lost.
            self.paused = Some(Instant::now());
            self.vmm.pause().await?;
        }
        let deadline = self.resize_deadline(from, to);
        self.vmm.resize(from, to, deadline).await
    }

    /// When a request counts as refused: at the daemon's deadline if CPUs are about to go.
    fn resize_deadline(&self, from: usize, to: usize) -> Instant {
        let left = self.pending.filter(|_| to < from);
        let left = left.map(|pending| pending.time_left(monotonic_us()));
        Instant::now() + left.unwrap_or(RESIZE_TIMEOUT)
    }

    /// Attaches the threads. A guest that is paused for that is paused no longer than `MAX_PAUSE`, however long the daemon takes.
    pub(super) async fn isolate_soon(&mut self, threads: &Threads) -> Result<(), Error> {
        while let Some(since) = self.paused {
            let left = MAX_PAUSE.saturating_sub(since.elapsed());
            match timeout(left, self.isolate(threads)).await {
                Ok(Err(error)) if error.is_transient() && left > PAUSED_RETRY_DELAY => {
                    tracing::debug!("{error}; the guest stays paused");
                    sleep(PAUSED_RETRY_DELAY).await;
                }
                Ok(isolated) => return isolated,
                Err(_) => {
                    self.resume_late().await;
                    break;
                }
            }
        }
        self.isolate(threads).await
    }

    /// Lets a guest run that was paused for its new vCPUs. One that another program paused meanwhile runs too: the VMM does not tell.
    pub(crate) async fn resume(&mut self) {
        let Some(since) = self.paused else { return };
        match timeout(RESUME_TIMEOUT, self.vmm.resume()).await {
            Ok(Ok(was_paused)) => {
                if was_paused {
                    tracing::info!("the guest was paused for {} ms", since.elapsed().as_millis())
                } else {
                    tracing::info!("the guest is not paused any more, by another program")
                }
                self.paused = None;
                self.options.pause_mark.clear();
                self.run_state().await;
            }
            Ok(Err(error)) => tracing::error!("{error}; the guest is still paused"),
            Err(_) => {
                self.vmm.disconnect();
                tracing::error!("{} does not answer; the guest is still paused", self.vmm.name());
            }
        }
    }

    /// Lets it run although its new vCPUs are not pinned yet.
    pub(super) async fn resume_if_late(&mut self) {
        if self.paused.is_some_and(|since| since.elapsed() > MAX_PAUSE) {
            self.resume_late().await;
        }
    }

    async fn resume_late(&mut self) {
        tracing::warn!("the new vCPUs are not pinned yet: they are attached while the guest runs");
        self.resume().await;
    }
}
