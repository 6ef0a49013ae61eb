//! Everything together, from a plan to its outcome.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use test_apiserver::Server;
use tokio::sync::watch;
use tokio::time::Instant;

use super::instance::{self, Instance, LastWrite};
use super::kubelet::{BOUND, Kubelets};
use super::load::{self, PlannedPod};
use super::node::Machine;
use super::node_kind::KINDS;
use super::random::Random;
use super::scheduler::{Events, Waiting, WaitingPod, schedule};
use crate::apiserver::{Api, ToBind, follow, parse};
use crate::placer::Placer;

/// How pods get their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheduling {
    /// A scheduler that asks this program.
    Placement,
    /// By what the objects say is free in a NUMA node.
    Zones,
    /// By the sum of requests.
    Counting,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) pods: usize,
    pub(super) nodes: usize,
    pub(super) seed: u64,
    pub(super) way: Scheduling,
    /// Instances are killed between any two steps.
    pub(super) kills: bool,
    /// Instances are frozen with a binding under way, which arrives when the next one leads; they may lead again.
    pub(super) freezes: bool,
    /// Watches are late and out of order.
    pub(super) late: bool,
    /// Publishers die, for a minute or so.
    pub(super) dying: bool,
    /// Another scheduler binds pods with whole CPUs by counting.
    pub(super) foreign: bool,
    /// An author lets pods pass for others, and rewrites annotations of pods that are bound.
    pub(super) hostile: bool,
    /// A full node, and a pod that waits while hardly anything happens: [`load::quiet`].
    pub(super) quiet: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            pods: 100,
            nodes: 12,
            seed: 1,
            way: Scheduling::Placement,
            kills: false,
            freezes: false,
            late: false,
            dying: false,
            foreign: false,
            hostile: false,
            quiet: false,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) plan: Plan,
    /// Pods that were bound, those that their nodes refused included.
    pub(super) bound: usize,
    pub(super) refused: usize,
    /// How many of those the program attributed to another scheduler.
    pub(super) refused_foreign: usize,
    /// How many of pods that a frozen instance bound late, or that were bound beside such a pod before its leader could know of it.
    pub(super) refused_frozen: usize,
    /// By reason.
    pub(super) reasons: BTreeMap<String, usize>,
    pub(super) foreign: usize,
    pub(super) attempts: usize,
    pub(super) kills: usize,
    /// Bindings of frozen instances that came late, and bound a pod.
    pub(super) frozen: usize,
    /// By instances that lead.
    pub(super) claimed_twice: usize,
    pub(super) leaked: usize,
    pub(super) waited: Duration,
    pub(super) longest: Duration,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) queue: VecDeque<Waiting>,
    /// Pods that wait for an event.
    pub(super) waiting_pods: Vec<WaitingPod>,
    /// What each node's pods ask for, as a scheduler counts.
    pub(super) used: BTreeMap<String, BTreeMap<String, u32>>,
    /// What each node's object says is free, by NUMA node.
    pub(super) zones: BTreeMap<String, Vec<usize>>,
    pub(super) outcome: Outcome,
    pub(super) machines: BTreeMap<String, Machine>,
    changed: BTreeMap<String, watch::Sender<u64>>,
    dead_until: BTreeMap<String, Instant>,
    instances: Vec<Instance>,
    /// Pods that kubelet knows of.
    pub(super) known: BTreeSet<String>,
    /// Pods that a frozen instance bound late and that have not ended, by UID, each with its node and the moment.
    pub(super) bound_by_frozen: BTreeMap<String, (String, Instant)>,
    pub(super) lives: BTreeMap<String, PlannedPod>,
    pub(super) ended: usize,
    /// All pods have lived: nobody binds any more.
    pub(super) over: bool,
    pub(super) made: u64,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) names: Vec<String>,
    pub(super) server: Server,
    pub(super) api: Api,
    state: Mutex<State>,
}

pub(super) const PODS: (&str, &str) = ("", "pods");
const OBJECTS: (&str, &str) = ("topology.node.k8s.io", "noderesourcetopologies");
/// Limit of the simulated time.
const MAX_SIMULATED_TIME: Duration = Duration::from_secs(6 * 3600);

/// Runs a plan.
pub(super) fn run(plan: Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { World::new(plan).run().await })
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let server = Server::default();
        let mut random = Random::new(plan.seed);
        let machine = |number: usize| {
            let name = format!("node-{number:03}");
            (name.clone(), Machine::new(name, KINDS[number % KINDS.len()]))
        };
        let machines: BTreeMap<String, Machine> = (0..plan.nodes).map(machine).collect();
        let names: Vec<String> = machines.keys().cloned().collect();
        let zones = machines.iter().map(|(name, machine)| (name.clone(), machine.free()));
        let state = State {
            random: random.fork(),
            zones: zones.collect(),
            outcome: Outcome {
                plan,
                ..Outcome::default()
            },
            changed: names.iter().map(|name| (name.clone(), watch::Sender::new(0))).collect(),
            machines,
            ..State::default()
        };
        Arc::new(Self {
            plan,
            names,
            api: Api::new(Client::new(server.clone(), "default")),
            server,
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The pod, if it is there still.
    pub(super) fn pod(&self, name: &str, uid: &str) -> Option<Value> {
        let pod = self.server.object(PODS.0, PODS.1, "vms", name)?;
        (pod["metadata"]["uid"] == uid).then_some(pod)
    }

    /// The instance that the Service leads to.
    pub(super) fn ready(&self) -> Option<Arc<Placer>> {
        let state = self.state();
        let mut alive = state.instances.iter().filter(|one| one.runs());
        let ready = alive.find(|one| one.placer.ready().is_ok())?;
        Some(ready.placer.clone())
    }

    async fn run(self: Arc<Self>) -> Outcome {
        let begun = Instant::now();
        for name in &self.names {
            self.publish(name);
            tokio::spawn(self.clone().publisher(name.clone()));
        }
        if self.plan.way == Scheduling::Placement {
            tokio::spawn(self.clone().keep_instances());
        }
        let (_kept, never) = watch::channel(0);
        let kubelets = Arc::new(Kubelets { world: self.clone() });
        let api = self.api.clone();
        tokio::spawn(async move { follow(&api, BOUND, kubelets, never).await });
        let (_open, never) = watch::channel(0);
        let (api, events) = (self.api.clone(), Arc::new(Events { world: self.clone() }));
        tokio::spawn(async move { follow(&api, parse::PODS, events, never).await });
        tokio::spawn(schedule(self.clone()));
        tokio::spawn(self.clone().flush());
        if self.plan.foreign {
            tokio::spawn(self.clone().another_scheduler());
        }
        if self.plan.hostile {
            tokio::spawn(self.clone().hostile_author());
        }
        let mut random = self.state().random.fork();
        let load = if self.plan.quiet {
            load::quiet()
        } else {
            load::load(&mut random, self.plan.pods, self.plan.nodes)
        };
        for wanted in load {
            tokio::time::sleep(wanted.after).await;
            self.ask(&wanted);
        }
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(begun.elapsed() < MAX_SIMULATED_TIME, "{:?}", self.state().outcome);
            if self.state().ended >= self.plan.pods {
                break;
            }
        }
        self.state().over = true;
        self.at_the_end().await
    }

    /// All pods are gone, and so is what was held for them.
    async fn at_the_end(&self) -> Outcome {
        let held = || {
            let counts = self.ready()?.reservation_counts();
            Some(counts.binding + counts.unseen + counts.leaving)
        };
        let mut left = (self.plan.way != Scheduling::Placement).then_some(0);
        for _ in 0..300 {
            if left == Some(0) {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            left = held();
        }
        let mut state = self.state();
        let instances = std::mem::take(&mut state.instances);
        let mut outcome = state.outcome.clone();
        drop(state);
        for one in &instances {
            let counts = one.placer.counts();
            outcome.refused_foreign += usize::try_from(counts.refused_foreign.load(Ordering::Relaxed)).unwrap();
        }
        outcome.leaked = left.expect("no instance became ready");
        outcome
    }

    /// A pod is created, as by a controller.
    pub(super) fn ask(&self, wanted: &PlannedPod) {
        let mut state = self.state();
        state.made += 1;
        let uid = load::uid(state.made, 0);
        let name = format!("vm-{}-{}", wanted.number, state.made);
        state.lives.insert(uid.clone(), wanted.clone());
        let pod = load::pod(&name, &uid, wanted.cpus, true);
        self.server.put(PODS.0, PODS.1, pod);
        state.queue.push_back(Waiting::new(name, uid, wanted.cpus));
    }

    /// A frozen instance's binding has arrived.
    fn bound_by_frozen(&self, path: &str) {
        let name = path.trim_end_matches("/binding").rsplit('/').next().unwrap();
        let pod = self.server.object(PODS.0, PODS.1, "vms", name).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (uid, node) = (text(&pod["metadata"]["uid"]), text(&pod["spec"]["nodeName"]));
        let mut state = self.state();
        state.outcome.frozen += 1;
        state.bound_by_frozen.insert(uid, (node, Instant::now()));
    }

    /// Two instances, one after the other killed.
    async fn keep_instances(self: Arc<Self>) {
        let mut number = 0;
        loop {
            {
                let mut state = self.state();
                state.instances.retain(|one| !one.dead.is_cancelled());
                while state.instances.len() < 2 {
                    number += 1;
                    // In a large cluster as many writes more, so that it is as long in time.
                    let most = 40 * (self.names.len() as u64).div_ceil(12);
                    let lives = (self.plan.kills || self.plan.freezes).then(|| {
                        let writes = 1 + state.random.below(most) as i64;
                        let last = if !state.random.chance(50) {
                            LastWrite::Before
                        } else if self.plan.freezes {
                            LastWrite::Frozen(state.random.between(36_000, 60_000))
                        } else {
                            LastWrite::After
                        };
                        (writes, last)
                    });
                    let late = self.plan.late.then(|| state.random.fork());
                    state.outcome.kills += usize::from(number > 2);
                    let world = self.clone();
                    let arrived = move |path: &str| world.bound_by_frozen(path);
                    state
                        .instances
                        .push(instance::start(&self.server, number, lives, late, arrived));
                }
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn another_scheduler(self: Arc<Self>) {
        let mut random = self.state().random.fork();
        loop {
            // On each node as often, however many there are.
            let nodes = self.names.len() as u64;
            tokio::time::sleep(random.between(12_000 / nodes, 72_000 / nodes)).await;
            let (node, cpus) = (random.of(&self.names).clone(), 2 + 2 * random.below(3) as u32);
            let (name, uid) = {
                let mut state = self.state();
                if state.over {
                    return;
                }
                let used: u32 = state.used.get(&node).map_or(0, |pods| pods.values().sum());
                if used + cpus > super::scheduler::ALLOCATABLE_CPUS {
                    continue;
                }
                state.made += 1;
                let uid = load::uid(state.made, 1);
                state.used.entry(node.clone()).or_default().insert(uid.clone(), cpus);
                state.outcome.foreign += 1;
                (format!("other-{}", state.made), uid)
            };
            self.server.put(PODS.0, PODS.1, load::pod(&name, &uid, cpus, false));
            let to = ToBind {
                namespace: "vms".to_owned(),
                name,
                uid,
                node: node.into(),
            };
            let _ = self.api.bind(&to, 0, None).await;
        }
    }

    fn publish(&self, name: &str) {
        let mut state = self.state();
        let machine = &state.machines[name];
        let (object, free) = (machine.object(), machine.free());
        state.zones.insert(name.to_owned(), free);
        self.server.put(OBJECTS.0, OBJECTS.1, object);
        drop(state);
        self.object_changed();
    }

    /// Debounced, at most every 2 s; a write that fails is made later.
    async fn publisher(self: Arc<Self>, name: String) {
        let (mut changed, mut random) = {
            let mut state = self.state();
            (state.changed[&name].subscribe(), state.random.fork())
        };
        loop {
            changed.changed().await.unwrap();
            tokio::time::sleep(random.between(200, 2000)).await;
            if random.chance(5) {
                tokio::time::sleep(random.between(1000, 5000)).await;
            }
            if self.plan.dying && random.chance(2) {
                let until = Instant::now() + random.between(35_000, 90_000);
                self.state().dead_until.insert(name.clone(), until);
                tokio::time::sleep_until(until).await;
            }
            changed.mark_unchanged();
            self.publish(&name);
        }
    }

    /// Sets the pod's status, if it is there still.
    pub(super) fn status(&self, name: &str, uid: &str, status: Value) {
        if let Some(mut pod) = self.pod(name, uid) {
            pod["status"] = status;
            self.server.put(PODS.0, PODS.1, pod);
        }
    }

    pub(super) fn change(&self, node: &str) {
        self.state().changed[node].send_modify(|changes| *changes += 1);
    }
}
