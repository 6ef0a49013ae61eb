//! Preemption: kube-scheduler has chosen victims by counting, and asks on which nodes their end would make room for the pod.

use std::collections::HashMap;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::{Evaluation, NodeVerdict};
use stelia_placement_rules::evaluate::Refusal;
use stelia_placement_rules::request::Request;

use super::{Placer, answer};
use crate::reservations::Moment;

/// Nodes that are copied under one lock: other calls wait for the lock, and the copies need memory.
const NODES_PER_BATCH: usize = 256;

/// A node that is evaluated without its victims, and whether it is silent.
type Candidate = (bool, Result<Evaluation, Refusal>);

impl Placer {
    /// What each of these nodes would do with the pod once its victims have left, in their order.
    pub fn evaluate_nodes_without(&self, request: &Request, nodes: &[(&str, Vec<Uid>)]) -> Vec<NodeVerdict> {
        let (now, has_vm) = (self.now(), request.vm.is_some());
        let batches = nodes.chunks(NODES_PER_BATCH);
        let candidates = batches.flat_map(|some| self.without_victims(request, some, now));
        let verdicts = candidates.map(|(is_silent, without_victims)| {
            let verdict = NodeVerdict::of(&without_victims.and_then(|node| node.evaluate()));
            answer(is_silent, verdict, has_vm)
        });
        verdicts.collect()
    }

    /// Whether the node admits the pod, or will when it publishes that pods have ended. The pod is tried again when the node's object changes.
    pub fn fits_without_departed(&self, request: &Request, node: &str) -> bool {
        let now = self.now();
        let mut state = self.state();
        let request = state.current_request(request, now);
        let reservations = &state.reservations;
        if reservations.available(node, now).is_err() {
            return false;
        }
        let departed = reservations.departed(node, now);
        let without = reservations.rules().cluster.without(node, &request, &departed);
        drop(state);
        without.and_then(|node| node.evaluate()).is_ok()
    }

    fn without_victims(&self, request: &Request, nodes: &[(&str, Vec<Uid>)], now: Moment) -> Vec<Candidate> {
        let mut state = self.state();
        let request = state.current_request(request, now);
        let reservations = &state.reservations;
        let candidates = nodes.iter().map(|(name, victims)| {
            let asked = |uid: &Uid| (*uid, reservations.bind_request(*uid).map(|asked| asked.request));
            let gone: HashMap<_, _> = victims.iter().map(asked).collect();
            let without_victims = reservations.rules().cluster.without(name, &request, &gone);
            (reservations.is_silent(name, now), without_victims)
        });
        candidates.collect()
    }
}
