//! Handles signals of the daemon, and the loss and return of its connection, while the guest runs.

use std::time::Duration;

use tokio::time::sleep;

use super::{Isolator, SETTLE_TIME};
use crate::daemon::DaemonEvent;
use crate::state::Isolation;
use crate::vmm::Vmm;

impl<V: Vmm> Isolator<'_, V> {
    /// Follows the instance, once its vCPUs are attached. Before that the attach itself shows whether the daemon still has it.
    pub(super) async fn on_event(&mut self, event: DaemonEvent) {
        match self.attached {
            Some(_) => self.on_daemon_event(event).await,
            None => self.status.update(|state| state.daemon = event != DaemonEvent::Lost),
        }
    }

    async fn on_daemon_event(&mut self, event: DaemonEvent) {
        match event {
            DaemonEvent::Lost => {
                tracing::warn!("the daemon closed the connection; the guest keeps the CPUs it has");
                self.status.update(|state| state.daemon = false);
                return;
            }
            DaemonEvent::Reconnected => tracing::info!("the daemon is back"),
            // One turn of the daemon sends several signals, and it limits a pod's calls.
            DaemonEvent::Signal => sleep(SETTLE_TIME).await,
        }
        let Some(instance) = self.instance.clone() else { return };
        let mut state = self.query_instance(&instance).await;
        if matches!(state, Ok(None)) {
            // Queried twice, so that a transient state is not taken for a deregistration.
            sleep(Duration::from_secs(1)).await;
            state = self.query_instance(&instance).await;
        }
        match state {
            Ok(Some((state, cpus))) => {
                let before = self.status.now();
                let isolation = Isolation::of(&state, before.qos);
                let reasons = self.daemon.degraded(&instance).await.unwrap_or_default().join("; ");
                if before.isolation != isolation || before.reason != reasons {
                    if isolation.is_as_promised() && reasons.is_empty() {
                        tracing::info!("{} again", isolation.promise(before.qos))
                    } else {
                        tracing::warn!("{state}: {reasons}")
                    }
                }
                let has_iothread_cpus = self
                    .attached
                    .as_ref()
                    .is_some_and(|(_, iothreads)| !iothreads.is_empty());
                self.cpus_changed = has_iothread_cpus && isolation.is_as_promised() && cpus != self.cpus;
                self.status.update(|now| {
                    now.daemon = true;
                    now.isolation = isolation;
                    now.reason = reasons;
                });
            }
            Ok(None) => self.give_up(),
            Err(error) => {
                tracing::debug!("{error}");
                self.daemon.disconnect();
            }
        }
    }

    pub(crate) fn give_up(&mut self) {
        let text =
            "the instance was deregistered while the VM runs: it shares its CPUs now, until the container is restarted";
        tracing::error!("{text}");
        self.given_up = true;
        self.status.update(|state| {
            state.isolation = Isolation::Deregistered;
            state.reason = text.into();
        });
    }
}
