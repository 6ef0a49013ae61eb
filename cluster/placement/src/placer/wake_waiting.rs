//! A pod that waits is tried again as soon as a node has room for it: kube-scheduler, which does not watch the nodes' objects, is told by a change of the
//! pod's status. Otherwise it would leave the pod for five minutes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stelia_placement_rules::cluster::NodeVerdict;
use stelia_placement_rules::request::{Request, SharedRequest};
use tracing::{debug, info};

use super::waiting::{Fits, Retry, Turn};
use super::{Placer, count};
use crate::apiserver::ServerFailure;
use crate::apiserver::parse::ParsedPod;
use crate::reservations::{Moment, NodeName};

/// How often the nodes that changed are checked.
const RETRY_PERIOD: Duration = Duration::from_millis(250);
/// kube-scheduler offers all nodes that pass its own filters if they are fewer (its `minFeasibleNodesToFind`).
const MIN_SAMPLE_NODES: usize = 100;
/// Limit of the pods that are notified in one turn; the remaining nodes have the next one.
const MAX_PATCHES_A_TURN: usize = 8;

impl Placer {
    /// Adds a pod that all nodes of a call refused, by answers of this moment. The nodes that kube-scheduler did not offer are checked at once if it
    /// may have offered a sample: one of them may have room.
    pub fn add_waiting(&self, pod: &ParsedPod, request: Request, answered_at: Moment, offered: &[&str]) {
        let mut state = self.state();
        let (name, request) = (pod.name.clone(), state.shared(request));
        let waiting = &mut state.waiting;
        waiting.add_refused(pod.uid, name, request, pod.priority, answered_at);
        if offered.len() >= MIN_SAMPLE_NODES {
            let offered: HashSet<&str> = offered.iter().copied().collect();
            let names = state.reservations.rules().cluster.names();
            let others = names.filter(|name| !offered.contains(name)).map(NodeName::from);
            let others: Vec<NodeName> = others.collect();
            // Later than the answers, by which the pod was refused.
            let after = answered_at + Duration::from_nanos(1);
            state.waiting.nodes_changed(others, after);
        }
    }

    /// Never ends: checks the nodes that changed, and pauses.
    pub async fn retry_for_ever(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(RETRY_PERIOD).await;
            self.retry().await;
        }
    }

    pub(super) async fn retry(self: &Arc<Self>) {
        let turn = self.next_turn();
        let mut fits = vec![Fits::new(); turn.nodes.len()];
        for request in &turn.requests {
            let (placer, nodes, asked) = (self.clone(), turn.nodes.clone(), request.clone());
            let Ok(answers) = self.evaluate(move || placer.have_room(&asked, &nodes)).await else {
                return;
            };
            for (fits, _) in fits.iter_mut().zip(answers).filter(|(_, has_room)| *has_room) {
                fits.insert(request.clone());
            }
        }
        let mut notified = 0;
        for (node, fits) in turn.nodes.iter().zip(fits) {
            if notified == MAX_PATCHES_A_TURN || self.ready().is_err() {
                return;
            }
            let now = self.now();
            let next = {
                let mut state = self.state();
                let state = &mut *state;
                let is_free = |uid| !state.reservations.is_known(uid);
                state.waiting.next_retry(&turn, node, &fits, is_free, now)
            };
            if let Some(retry) = next {
                notified += 1;
                self.notify(&retry, node).await;
            }
        }
    }

    /// Whether each of the nodes has room for the pod.
    fn have_room(&self, request: &SharedRequest, nodes: &[NodeName]) -> Vec<bool> {
        let names: Vec<&str> = nodes.iter().map(|node| &**node).collect();
        let answers = self.evaluate_nodes(request, &names).into_iter();
        answers.map(|answer| matches!(answer, NodeVerdict::Fits(_))).collect()
    }

    /// The nodes and requests of this turn.
    fn next_turn(&self) -> Turn {
        let now = self.now();
        let mut state = self.state();
        state.reservations.advance(now);
        let changed = state.reservations.take_roomier();
        if self.ready().is_err() {
            return Turn::default();
        }
        state.waiting.nodes_changed(changed, now);
        // No leader saw what changed while there was none, so each term begins with all nodes.
        let term = *self.leadership.terms().borrow();
        if self.checked_term.swap(term, Ordering::AcqRel) != term {
            let all: Vec<NodeName> = state.reservations.rules().cluster.names().map(NodeName::from).collect();
            state.waiting.nodes_changed(all, now);
        }
        state.waiting.next_turn(now)
    }

    async fn notify(&self, retry: &Retry, node: &NodeName) {
        let pod = &retry.name;
        let Some((namespace, name)) = pod.split_once('/') else {
            return;
        };
        match self.api.retry(namespace, name, &retry.pod.to_string()).await {
            Ok(()) => {
                count(&self.counts.retried);
                info!("pod {pod}: node {node} has room for it, it is to be tried again");
            }
            // Nothing is known of whether it waits still.
            Err(failure @ (ServerFailure::Busy { .. } | ServerFailure::Unknown(_))) => {
                debug!("pod {pod}: it could not be told to be tried again: {failure}");
                let (after, now) = (failure.retry_after(), self.now());
                self.state().waiting.notify_failed(retry, node, after, now);
            }
            Err(failure) => {
                info!("pod {pod}: it could not be told to be tried again: {failure}");
                self.state().waiting.remove(retry.pod);
            }
        }
    }
}
