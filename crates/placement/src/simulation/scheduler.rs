//! A scheduler's loop, as kube-scheduler's: one pod after the other is given a node, and bound beside that; what fails is queued again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::world::{Way, World};
use crate::apiserver::Binding;
use crate::placer::{Answer, ToBind};
use crate::score;

/// CPUs that a node's pods can ask for.
pub(super) const ALLOCATABLE: u32 = 28;
/// How long the scheduler waits for a bind.
const PATIENCE: Duration = Duration::from_secs(12);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(10);

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

    fn again(mut self) -> Self {
        self.after = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        self
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
            Some(node) => {
                world
                    .state()
                    .used
                    .entry(node.clone())
                    .or_default()
                    .insert(waiting.uid.clone(), waiting.cpus);
                let world = world.clone();
                tokio::spawn(async move { bind(world, waiting, node).await });
            }
            None => world.state().queue.push_back(waiting.again()),
        }
    }
}

/// The node with the highest score of those that pass.
fn choose(world: &World, waiting: &Waiting, document: &Value) -> Option<String> {
    let used: BTreeMap<String, u32> = {
        let state = world.state();
        let sum = |node: &String| state.used.get(node).map_or(0, |pods| pods.values().sum());
        world.names.iter().map(|node| (node.clone(), sum(node))).collect()
    };
    let fits = |node: &&String| used[*node] + waiting.cpus <= ALLOCATABLE;
    let nodes: Vec<&str> = world.names.iter().filter(fits).map(String::as_str).collect();
    let least = |node: &str| u64::from(100 - 100 * used[node] / ALLOCATABLE);
    let scored: Vec<(u64, &str)> = match world.plan.way {
        Way::Counting => nodes.into_iter().map(|node| (least(node), node)).collect(),
        Way::Zones => {
            let state = world.state();
            let room = |node: &&str| state.zones[*node].iter().any(|free| *free >= waiting.cpus as usize);
            nodes.into_iter().filter(room).map(|node| (least(node), node)).collect()
        }
        Way::Placement => {
            let placer = world.ready()?;
            let request = placer.asked_for(&document.to_string()).unwrap()?;
            let mut scored = Vec::new();
            placer.answers(&request, &nodes, |node, answer| {
                if let Answer::Fits(total) = answer {
                    scored.push((u64::from(score::priority(total)) * 120 + least(node), node));
                }
            });
            scored
        }
    };
    let best = scored.iter().map(|(score, _)| *score).max()?;
    let best: Vec<&str> = scored
        .into_iter()
        .filter(|(score, _)| *score == best)
        .map(|(_, node)| node)
        .collect();
    Some((*world.state().random.of(&best)).to_owned())
}

async fn bind(world: Arc<World>, waiting: Waiting, node: String) {
    let bound = match world.plan.way {
        Way::Placement => {
            let to = ToBind {
                namespace: "vms".to_owned(),
                name: waiting.name.clone(),
                uid: waiting.uid.clone(),
                node: node.as_str().into(),
            };
            match world.ready() {
                Some(placer) => {
                    let asked = tokio::time::timeout(PATIENCE, placer.bind(&to)).await;
                    asked.is_ok_and(|outcome| outcome.is_ok())
                }
                None => false,
            }
        }
        Way::Zones | Way::Counting => {
            let binding = Binding {
                namespace: "vms",
                name: &waiting.name,
                uid: &waiting.uid,
                version: 0,
                node: &node,
                chosen: None,
            };
            world.api.bind(&binding).await.is_ok()
        }
    };
    // Whatever was answered: the scheduler watches pods.
    let bound_to = world
        .pod(&waiting.name, &waiting.uid)
        .and_then(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned));
    let mut state = world.state();
    if bound_to.as_ref() != Some(&node)
        && let Some(pods) = state.used.get_mut(&node)
    {
        pods.remove(&waiting.uid);
    }
    match bound_to {
        Some(on) => {
            state
                .used
                .entry(on)
                .or_default()
                .insert(waiting.uid.clone(), waiting.cpus);
            if bound {
                state.outcome.waited += waiting.since.elapsed();
            }
        }
        None => state.queue.push_back(waiting.again()),
    }
}
