//! A scheduler's loop, as kube-scheduler's: one pod after the other is given a node, and bound beside that. A pod that no node takes waits for an event that
//! may change that, and for its backoff; what it waits for depends on who refused it. What failed is queued again after its backoff.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use stelia_placement_rules::{NodeVerdict, score};
use tokio::time::Instant;

use super::run::{PODS, Scheduling, State, World};
use crate::apiserver::{Follower, ServerFailure, ToBind, parse};

/// CPUs that a node's pods can ask for.
pub(super) const ALLOCATABLE_CPUS: u32 = 28;
/// How long the scheduler waits for a bind.
const BIND_TIMEOUT: Duration = Duration::from_secs(12);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A pod for which no event came in so long is tried all the same.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(300);
const FLUSH_PERIOD: Duration = Duration::from_secs(30);

/// A pod in the queue.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) cpus: u32,
    pub(super) since: Instant,
    pub(super) after: Instant,
    pub(super) pause: Duration,
}

impl Waiting {
    pub(super) fn new(name: String, uid: String, cpus: u32) -> Self {
        let now = Instant::now();
        Self {
            name,
            uid,
            cpus,
            since: now,
            after: now,
            pause: FIRST_PAUSE,
        }
    }

    fn retried(mut self) -> Self {
        self.after = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self
    }
}

/// Why a pod has no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoNode {
    /// The sum of requests: waits for the end of a pod.
    Counting,
    /// The objects, which this scheduler watches: waits for the end of a pod, or a change of an object.
    Zones,
    /// The extender, of which kube-scheduler does not know what it decides by: waits for any event of a pod or a Node. It does not watch the nodes' objects.
    Extender,
    /// The extender did not answer: waits for its backoff alone.
    Failed,
}

/// A pod that waits for an event.
#[derive(Debug)]
pub(super) struct WaitingPod {
    waiting: Waiting,
    by: NoNode,
    since: Instant,
}

impl World {
    /// Queues those that wait for it.
    fn wake(&self, meant: impl Fn(&WaitingPod) -> bool) {
        let mut state = self.state();
        let waiting_pods = std::mem::take(&mut state.waiting_pods);
        let (woken, rest): (Vec<_>, Vec<_>) = waiting_pods.into_iter().partition(meant);
        state.waiting_pods = rest;
        state.queue.extend(woken.into_iter().map(|woken| woken.waiting));
    }

    /// An object was published.
    pub(super) fn object_changed(&self) {
        self.wake(|waiting_pods| waiting_pods.by == NoNode::Zones);
    }

    fn park(&self, waiting: Waiting, by: NoNode) {
        let (name, uid) = (waiting.name.clone(), waiting.uid.clone());
        let waiting = waiting.retried();
        match by {
            NoNode::Failed => self.state().queue.push_back(waiting),
            _ => self.state().waiting_pods.push(WaitingPod {
                waiting,
                by,
                since: Instant::now(),
            }),
        }
        // The scheduler says so in the pod's status; being a change of the pod, that wakes it once more.
        let told = |pod: &Value| pod["status"]["conditions"].to_string().contains("PodScheduled");
        if let Some(mut pod) = self.pod(&name, &uid).filter(|pod| !told(pod)) {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
            let status = pod["status"].as_object_mut().unwrap();
            let conditions = status.entry("conditions").or_insert_with(|| json!([]));
            conditions.as_array_mut().unwrap().push(condition);
            self.server.put(PODS.0, PODS.1, pod);
        }
    }

    /// For ever: pods that no event came for.
    pub(super) async fn flush(self: Arc<Self>) {
        loop {
            tokio::time::sleep(FLUSH_PERIOD).await;
            self.wake(|waiting_pods| waiting_pods.since.elapsed() >= FLUSH_TIMEOUT);
        }
    }
}

/// The scheduler's watch of pods.
pub(super) struct Events {
    pub(super) world: Arc<World>,
}

impl Follower for Events {
    fn changed(&self, object: &RawValue) {
        let pod = parse::pod(object.get()).unwrap();
        if pod.failed.is_some() {
            return self.gone(object);
        }
        let uid = pod.uid.to_string();
        let of_other = pod.node.is_some();
        self.world
            .wake(|waiting_pods| waiting_pods.by == NoNode::Extender && (of_other || waiting_pods.waiting.uid == uid));
    }

    fn gone(&self, object: &RawValue) {
        let pod = parse::pod(object.get()).unwrap();
        if pod.node.is_some() {
            self.world.wake(|_| true);
        }
    }

    fn failed(&self, failure: &ServerFailure) {
        panic!("the scheduler's watch: {failure}");
    }
}

impl State {
    fn uses(&mut self, node: &str, pod: &Waiting) {
        let pods = self.used.entry(node.to_owned()).or_default();
        pods.insert(pod.uid.clone(), pod.cpus);
    }
}

/// For ever: the pod that waits longest and may be tried, else a short rest.
pub(super) async fn schedule(world: Arc<World>) {
    loop {
        let next = {
            let mut state = world.state();
            let now = Instant::now();
            let ready = state.queue.iter().position(|waiting| waiting.after <= now);
            ready.map(|at| state.queue.remove(at).unwrap())
        };
        let Some(waiting) = next else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        world.state().outcome.attempts += 1;
        // As long as a scheduler needs for a pod.
        tokio::time::sleep(Duration::from_millis(3)).await;
        let Some(document) = world.pod(&waiting.name, &waiting.uid) else {
            continue;
        };
        match choose(&world, &waiting, &document) {
            Ok(node) => {
                world.state().uses(&node, &waiting);
                let world = world.clone();
                tokio::spawn(async move { bind(world, waiting, node).await });
            }
            Err(by) => world.park(waiting, by),
        }
    }
}

/// The node with the highest score of those that pass.
fn choose(world: &World, waiting: &Waiting, document: &Value) -> Result<String, NoNode> {
    let used: BTreeMap<String, u32> = {
        let state = world.state();
        let sum = |node: &String| state.used.get(node).map_or(0, |pods| pods.values().sum());
        world.names.iter().map(|node| (node.clone(), sum(node))).collect()
    };
    let fits = |node: &&String| used[*node] + waiting.cpus <= ALLOCATABLE_CPUS;
    let nodes: Vec<&str> = world.names.iter().filter(fits).map(String::as_str).collect();
    if nodes.is_empty() {
        return Err(NoNode::Counting);
    }
    let least = |node: &str| u64::from(100 - 100 * used[node] / ALLOCATABLE_CPUS);
    let scored: Vec<(u64, &str)> = match world.plan.way {
        Scheduling::Counting => nodes.into_iter().map(|node| (least(node), node)).collect(),
        Scheduling::Zones => {
            let state = world.state();
            let room = |node: &&str| state.zones[*node].iter().any(|free| *free >= waiting.cpus as usize);
            nodes.into_iter().filter(room).map(|node| (least(node), node)).collect()
        }
        Scheduling::Placement => {
            let placer = world.ready().ok_or(NoNode::Failed)?;
            let asked = placer.now();
            let request = placer.request(document, None).unwrap().unwrap();
            let mut scored = Vec::new();
            for (node, answer) in nodes.iter().zip(placer.evaluate_nodes(&request, &nodes)) {
                if let NodeVerdict::Fits(total) = answer {
                    scored.push((u64::from(score::priority(total)) * 120 + least(node), *node));
                }
            }
            if scored.is_empty() {
                placer.add_waiting(&parse::pod_of(document).unwrap(), request, asked, &nodes);
            }
            scored
        }
    };
    let refused_by = match world.plan.way {
        Scheduling::Counting | Scheduling::Zones => NoNode::Zones,
        Scheduling::Placement => NoNode::Extender,
    };
    let best = scored.iter().map(|(score, _)| *score).max().ok_or(refused_by)?;
    let best = scored.into_iter().filter(|(score, _)| *score == best);
    let best: Vec<&str> = best.map(|(_, node)| node).collect();
    Ok((*world.state().random.of(&best)).to_owned())
}

async fn bind(world: Arc<World>, waiting: Waiting, node: String) {
    let to = ToBind {
        namespace: "vms".to_owned(),
        name: waiting.name.clone(),
        uid: waiting.uid.clone(),
        node: node.as_str().into(),
    };
    let bound = match world.plan.way {
        Scheduling::Placement => match world.ready() {
            Some(placer) => {
                let asked = tokio::time::timeout(BIND_TIMEOUT, placer.bind(&to)).await;
                asked.is_ok_and(|outcome| outcome.is_ok())
            }
            None => false,
        },
        Scheduling::Zones | Scheduling::Counting => world.api.bind(&to, 0, None).await.is_ok(),
    };
    // Whatever was answered: the scheduler watches pods.
    let pod = world.pod(&waiting.name, &waiting.uid);
    let bound_to = pod.and_then(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned));
    let mut state = world.state();
    if bound_to.as_ref() != Some(&node)
        && let Some(pods) = state.used.get_mut(&node)
    {
        pods.remove(&waiting.uid);
    }
    match bound_to {
        Some(on) => {
            state.uses(&on, &waiting);
            if bound {
                let waited = waiting.since.elapsed();
                state.outcome.waited += waited;
                state.outcome.longest = state.outcome.longest.max(waited);
            }
        }
        None => state.queue.push_back(waiting.retried()),
    }
}
