//! What becomes of a pod that is bound, until its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;
use serde_json::value::RawValue;
use stelia_cpus::CpuSet;
use tokio::time::Instant;

use super::node::overlap;
use super::run::{PODS, State, World};
use crate::apiserver::{Follower, ServerFailure, Source, parse};

impl World {
    /// kubelet sees a pod that is bound to its node: from here to the pod's end.
    async fn live(self: Arc<Self>, pod: parse::ParsedPod, document: Value) {
        let (name, uid) = (pod.name.split_once('/').unwrap().1.to_owned(), pod.uid.to_string());
        let node = pod.node.unwrap().to_string();
        let bound_at = Instant::now();
        let (wanted, mut random) = {
            let mut state = self.state();
            let random = state.random.fork();
            (state.lives.get(&uid).cloned(), random)
        };
        if wanted.is_some() {
            let mut state = self.state();
            state.outcome.bound += 1;
            if let Some(cpus) = &pod.cpus {
                let twice = self.announced_twice(&state, &node, &uid, bound_at, cpus);
                state.outcome.claimed_twice += usize::from(twice);
            }
        }
        tokio::time::sleep(random.between(10, 300)).await;
        let admitted = self.state().machines.get_mut(&node).unwrap().admit(&uid, &document);
        let mut outcome = admitted;
        if outcome.is_ok() {
            self.change(&node);
            tokio::time::sleep(random.between(200, 3000)).await;
            self.status(&name, &uid, json!({"phase": "Running"}));
            tokio::time::sleep(random.between(20, 200)).await;
            if let Some(wanted) = &wanted {
                let machines = &mut self.state().machines;
                outcome = machines
                    .get_mut(&node)
                    .unwrap()
                    .register(&uid, wanted.cpus, pod.cpus.clone());
            }
        }
        self.change(&node);
        match outcome {
            Ok(()) => {
                assert!(
                    !overlap(&self.state().machines[&node].given()),
                    "{node} gave a CPU twice"
                );
                let lives = wanted.as_ref().map(|wanted| wanted.lives);
                let lives = lives.unwrap_or_else(|| random.between(20_000, 60_000));
                tokio::time::sleep(lives).await;
                if let Some(mut pod) = self.pod(&name, &uid) {
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                    self.server.put(PODS.0, PODS.1, pod);
                }
                tokio::time::sleep(random.between(100, 800)).await;
            }
            Err(reason) => {
                self.status(&name, &uid, json!({"phase": "Failed", "reason": reason}));
                if wanted.is_some() {
                    let mut state = self.state();
                    state.outcome.refused += 1;
                    let mut late = state.bound_by_frozen.iter().filter(|(_, (on, _))| *on == node);
                    let frozen = late.any(|(late, (_, at))| *late == uid || is_promised_before(bound_at, *at));
                    state.outcome.refused_frozen += usize::from(frozen);
                    *state.outcome.reasons.entry(reason).or_default() += 1;
                }
                tokio::time::sleep(random.between(2000, 4000)).await;
            }
        }
        let held = {
            let mut state = self.state();
            let machine = state.machines.get_mut(&node).unwrap();
            let held = machine.holds(&uid);
            machine.end(&uid);
            state.bound_by_frozen.remove(&uid);
            if let Some(pods) = state.used.get_mut(&node) {
                pods.remove(&uid);
            }
            held
        };
        self.change(&node);
        self.server.remove(PODS.0, PODS.1, "vms", &name);
        if let Some(wanted) = wanted {
            if held {
                self.state().ended += 1
            } else {
                // A controller makes another one.
                self.ask(&wanted)
            }
        }
    }

    /// Whether another pod on the node has one of these CPUs in its annotation too.
    fn announced_twice(&self, state: &State, node: &str, uid: &str, bound_at: Instant, cpus: &CpuSet) -> bool {
        let others = state.used.get(node).into_iter().flat_map(|pods| pods.keys());
        let others = others.filter(|other| *other != uid);
        let given = state.machines[node].given();
        // What a frozen instance bound late is no promise of a leader, who promised others before it knew of it.
        let is_late = state.bound_by_frozen.contains_key(uid);
        let was_unknown = |other: &str| {
            let late = state.bound_by_frozen.get(other);
            late.is_some_and(|(_, at)| is_promised_before(bound_at, *at))
        };
        let others = others.filter(|other| !is_late && !was_unknown(other));
        let mut given = others.filter_map(|other| given.get(other));
        given.any(|theirs| !theirs.is_disjoint(cpus))
    }
}

/// Whether a pod that was bound then may have been promised its CPUs before the leader heard of one that came late.
fn is_promised_before(bound_at: Instant, late: Instant) -> bool {
    bound_at <= late + Duration::from_secs(1)
}

/// Pods that are bound.
pub(super) const BOUND: Source = Source {
    path: "/api/v1/pods",
    fields: "spec.nodeName!=",
};

/// All kubelets' watch.
pub(super) struct Kubelets {
    pub(super) world: Arc<World>,
}

impl Follower for Kubelets {
    fn changed(&self, object: &RawValue) {
        let pod = parse::pod(object.get()).unwrap();
        // The mirror of a static pod is not run; the static pod is.
        if pod.shown_as.is_some() {
            return;
        }
        if self.world.state().known.insert(pod.uid.to_string()) {
            let document = serde_json::from_str(object.get()).unwrap();
            tokio::spawn(self.world.clone().live(pod, document));
        }
    }

    fn failed(&self, failure: &ServerFailure) {
        panic!("kubelet's watch: {failure}");
    }
}
