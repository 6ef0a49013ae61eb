//! Undecided binds are decided: the pod is read, and after a while given another version.

use std::time::Duration;

use stelia_kubelet::Uid;
use tracing::{info, warn};

use super::{Placer, count};
use crate::apiserver::ServerFailure;

/// How often undecided binds are searched for.
pub const RESOLVE_PERIOD: Duration = Duration::from_secs(2);
/// Pods read in one turn.
const PODS_PER_TURN: usize = 50;

impl Placer {
    /// Never ends: decides what can be decided, and pauses.
    pub async fn resolve_for_ever(&self) {
        loop {
            tokio::time::sleep(RESOLVE_PERIOD).await;
            let now = self.now();
            self.state().reservations.advance(now);
            if self.ready().is_ok() {
                self.resolve().await;
            }
        }
    }

    pub(super) async fn resolve(&self) {
        let undecided = self.state().reservations.undecided();
        for (uid, name) in undecided.into_iter().take(PODS_PER_TURN) {
            self.read_pod(uid, &name).await;
        }
        let due = self.state().reservations.to_fence(self.now());
        for (uid, name) in due.into_iter().take(PODS_PER_TURN) {
            let Some((namespace, pod)) = name.split_once('/') else {
                continue;
            };
            let why = format!(
                "{} gives up a bind that was not finished, after {:?}",
                self.identity,
                self.now()
            );
            match self.api.fence(namespace, pod, &uid.to_string(), &why).await {
                Ok(()) => {
                    count(&self.counts.fenced);
                    info!("pod {name}: a bind that was not finished is given up");
                }
                Err(failure) => warn!("pod {name}: a bind that was not finished cannot be given up: {failure}"),
            }
            self.read_pod(uid, &name).await;
        }
    }

    /// Reads the pod and passes it to the reservations. Returns whether it was read.
    pub(super) async fn read_pod(&self, uid: Uid, name: &str) -> bool {
        let Some((namespace, pod)) = name.split_once('/') else {
            return false;
        };
        let found = match self.api.pod(namespace, pod).await {
            Ok(found) => Some(found),
            Err(ServerFailure::Missing(_)) => None,
            Err(failure) => {
                warn!("pod {name}: {failure}");
                return false;
            }
        };
        // A pod of that name may be another one by now.
        if found.and_then(|pod| self.observe_pod(&pod)) != Some(uid) {
            let now = self.now();
            self.state().reservations.pod_gone(uid, None, now);
        }
        true
    }
}
