//! A pod that waits is tried again as soon as a node has room for it: kube-scheduler, which does not watch the nodes' objects, is told by a change of the
//! pod's status. Otherwise it would leave the pod for five minutes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use stelia_kubelet::Uid;
use stelia_reservations::{Moment, NodeName};
use tracing::{debug, info};

use super::waiting::{Fits, Open, Retry};
use super::{Answer, Placer, count};
use crate::apiserver::Failure;

/// How often the nodes that changed are checked.
const RETRY_PERIOD: Duration = Duration::from_millis(250);
/// Limit of the pods that are notified in one turn; the remaining nodes have the next one.
const MAX_PATCHES_A_TURN: usize = 8;

impl Placer {
    /// A pod for which `filter` found no node, by answers of that moment.
    pub fn waits(&self, pod: Uid, asked: Moment) {
        let mut state = self.state();
        let Some(known) = state.asked.get(pod).cloned() else {
            return;
        };
        if let Some(request) = known.request {
            state.waiting.refused(pod, known.name, request, known.priority, asked);
        }
    }

    /// Looks at what changed, again and again.
    pub async fn retry_for_ever(&self) {
        loop {
            tokio::time::sleep(RETRY_PERIOD).await;
            self.retry().await;
        }
    }

    pub(super) async fn retry(&self) {
        let open = self.changes();
        let mut fits = vec![Fits::new(); open.nodes.len()];
        let names: Vec<&str> = open.nodes.iter().map(|node| &**node).collect();
        for request in &open.requests {
            let mut fits = fits.iter_mut();
            self.answers(&request.0, &names, |_, answer| {
                let (Some(fits), Answer::Fits(_)) = (fits.next(), answer) else {
                    return;
                };
                fits.insert(request.clone());
            });
            tokio::task::yield_now().await;
        }
        let mut told = 0;
        for (node, fits) in open.nodes.iter().zip(fits) {
            if told == MAX_PATCHES_A_TURN || self.ready().is_err() {
                return;
            }
            let now = self.now();
            let next = {
                let mut state = self.state();
                let super::State {
                    waiting, reservations, ..
                } = &mut *state;
                waiting.next(&open, node, &fits, |uid| reservations.standings(uid).is_empty(), now)
            };
            if let Some(retry) = next {
                told += 1;
                self.notify(&retry, node).await;
            }
        }
    }

    /// What is to be asked in this turn.
    fn changes(&self) -> Open {
        let now = self.now();
        let mut state = self.state();
        state.reservations.pass(now);
        let changed = state.reservations.take_roomier();
        if self.ready().is_err() {
            return Open::default();
        }
        state.waiting.changed(changed, now);
        // What changed while nobody led was seen by nobody: once a term everything is.
        let term = *self.leadership.terms().borrow();
        if self.looked_at.swap(term, Ordering::AcqRel) != term {
            let all: Vec<NodeName> = state.reservations.rules().cluster.names().map(NodeName::from).collect();
            state.waiting.changed(all, now);
        }
        state.waiting.open(now)
    }

    async fn notify(&self, retry: &Retry, node: &NodeName) {
        let Some((namespace, name)) = retry.name.split_once('/') else {
            return;
        };
        match self.api.retry(namespace, name, &retry.pod.to_string()).await {
            Ok(()) => {
                count(&self.counts.retried);
                info!(
                    "pod {}: node {node} has room for it, it is to be tried again",
                    retry.name
                );
            }
            // Nothing is known of whether it waits still.
            Err(failure @ (Failure::Busy { .. } | Failure::Unknown(_))) => {
                debug!("pod {}: it could not be told to be tried again: {failure}", retry.name);
                let after = match failure {
                    Failure::Busy { after, .. } => after,
                    _ => None,
                };
                let now = self.now();
                self.state().waiting.failed(retry, node, after, now);
            }
            Err(failure) => {
                info!("pod {}: it could not be told to be tried again: {failure}", retry.name);
                self.state().waiting.is_over(retry.pod);
            }
        }
    }
}
