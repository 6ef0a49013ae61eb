//! Changes the guest's memory when the VM's memory limit changes.

use std::time::Instant;

use zbus::OwnedObjectPath;

use super::Isolator;
use crate::memory::{GuestMemory, MEMORY_TIMEOUT, MemoryStep};
use crate::resize::{Resize, ResizeOutcome};
use crate::vmm::{Memory, Vmm};

impl<V: Vmm> Isolator<'_, V> {
    /// Notes the daemon's limit. It is not raised before the scope's limit is, beyond which the kernel ends the VM.
    pub(super) async fn query_memory_limit(&mut self, instance: &OwnedObjectPath) {
        if !self.options.common.resize_memory {
            return;
        }
        match self.daemon.memory_limit(instance).await {
            Ok(limit) => {
                self.memory_limit = limit;
                self.note_memory_limit();
            }
            // A new connection may not have the instance's object yet: then the next signal tells.
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Notes the lesser of the daemon's limit and of the file's, which is lower while kubelet waits for the VM to use less.
    pub(super) fn note_memory_limit(&mut self) {
        let announced = self.options.common.announced_memory_limit();
        let limits = [self.memory_limit, self.memory_limit.and(announced)];
        self.memory.limit_is(limits.into_iter().flatten().min());
    }

    /// Whether the VMM has to be asked every now and then, or the file to be read. QEMU reports a late answer by an event.
    pub(super) fn is_memory_watched(&self) -> bool {
        let has_file = self.options.common.resize_memory && self.options.common.memory_limit.is_some();
        has_file || self.memory.is_due() || self.memory.is_pending()
    }

    /// Follows the limit and the guest's answers. What fails is tried again at the next turn.
    pub(super) async fn follow_memory(&mut self) {
        self.resize_memory().await;
        if !self.memory.is_unanswered() {
            return;
        }
        match self.vmm.memory().await {
            Ok(Memory::Is(memory)) => self.note_memory(memory.now),
            Ok(Memory::Fixed(text)) => tracing::debug!("{text}"),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    fn note_memory(&mut self, now: u64) {
        let Some(ended) = self.memory.memory_is(now, Instant::now()) else {
            return;
        };
        let (from, to) = (mib(ended.from), mib(ended.to));
        match ended.outcome {
            ResizeOutcome::Done => tracing::info!("the guest has {to} of memory now, {from} before"),
            _ => tracing::warn!(
                "the guest has {} of memory and not the {to} that were requested: it may still follow",
                mib(now)
            ),
        }
        self.status.update(|state| state.memory_resize = Some(ended));
    }

    /// Requests the memory that the limit allows, if it has changed.
    async fn resize_memory(&mut self) {
        // A guest that does not run answers nothing, and one that migrates must not change.
        if !self.memory.is_due() || self.status.now().guest != "running" {
            return;
        }
        let memory = match self.vmm.memory().await {
            Ok(Memory::Is(memory)) => memory,
            Ok(Memory::Fixed(text)) => {
                self.cannot_resize(&text);
                return;
            }
            Err(error) => {
                tracing::debug!("{error}");
                return;
            }
        };
        match self.memory.step(&memory) {
            MemoryStep::Nothing => {}
            MemoryStep::Impossible { wanted } => {
                tracing::warn!(
                    "the memory limit changed: {} of memory stay instead of {}: {}",
                    mib(memory.requested),
                    mib(wanted),
                    bounds(&memory)
                );
                self.ended_at_once(&memory, wanted);
            }
            MemoryStep::Request { to, wanted } => self.request_memory(&memory, to, wanted).await,
        }
    }

    async fn request_memory(&mut self, memory: &GuestMemory, to: u64, wanted: u64) {
        let resize = match self.vmm.resize_memory(to).await {
            Ok(None) => {
                let part = if wanted.abs_diff(to) < memory.step.max(1) {
                    String::new()
                } else {
                    format!(" instead of {}: {}", mib(wanted), bounds(memory))
                };
                tracing::info!(
                    "the memory limit changed: {} of memory are to become {}{part}",
                    mib(memory.now),
                    mib(to)
                );
                self.memory.requested(memory, to, Instant::now() + MEMORY_TIMEOUT)
            }
            Ok(Some(text)) => {
                tracing::warn!(
                    "the memory limit changed, and {} of memory stay: {text}",
                    mib(memory.now)
                );
                self.memory.refused(memory, to)
            }
            Err(error) => {
                tracing::debug!("{error}");
                return;
            }
        };
        self.status.update(|state| state.memory_resize = Some(resize));
    }

    /// The VMM has nothing that changes the guest's memory: that is said at the start, and is the outcome of every change.
    fn cannot_resize(&mut self, text: &str) {
        if self.memory.fixed() {
            tracing::warn!("the memory limit changed, and the guest's memory stays as it is: {text}");
            let outcome = ResizeOutcome::Impossible;
            self.status.update(|state| {
                state.memory_resize = Some(Resize {
                    from: 0,
                    to: 0,
                    outcome,
                })
            });
        } else {
            tracing::warn!("--resize-memory=yes has no effect: {text}");
        }
    }

    fn ended_at_once(&mut self, memory: &GuestMemory, wanted: u64) {
        let resize = self.memory.refused(memory, wanted);
        self.status.update(|state| state.memory_resize = Some(resize));
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn bounds(memory: &GuestMemory) -> String {
    format!("the VMM can give it {} to {}", mib(memory.least), mib(memory.most))
}
