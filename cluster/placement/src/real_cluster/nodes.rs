//! Nodes that are played: each decides as kubelet's planner and steliad's allocator do on its full state, and publishes what it has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::control_plane::create;
use crate::apiserver::{Api, Follower, ServerFailure, Source, follow, parse};
use crate::simulated_cluster::load::pod;
use crate::simulated_cluster::node::Machine;
use crate::simulated_cluster::node_kind::Kind;

/// How often a node publishes a change.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);
/// Requests that are sent at a time.
const PARALLEL_REQUESTS: usize = 8;
const PODS: &str = "/api/v1/namespaces/vms/pods";
const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
/// Pods that are bound.
const BOUND: Source = Source {
    path: "/api/v1/pods",
    fields: "spec.nodeName!=",
};

/// All nodes, and what became of the pods.
pub(super) struct Nodes {
    api: Api,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machines: HashMap<String, Machine>,
    /// The CPUs that each node was told for its pods.
    told: BTreeMap<String, BTreeMap<String, stelia_cpus::CpuSet>>,
    seen: BTreeSet<String>,
    changed: BTreeSet<String>,
    /// Pods that are to be deleted as soon as their containers have ended: path and UID.
    ending: BTreeMap<String, String>,
    outcome: Outcome,
}

/// What became of the pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// When each was seen to be bound.
    pub(super) bound: Vec<Instant>,
    /// Why nodes refused pods.
    pub(super) refused: Vec<String>,
    /// Pods that were told a CPU of another one.
    pub(super) twice: usize,
}

impl Nodes {
    /// Creates this many nodes of these kinds, with their objects.
    pub(super) async fn create(api: &Api, count: usize, kinds: &[Kind]) -> Arc<Self> {
        let mut state = State::default();
        let mut objects = Vec::new();
        for number in 0..count {
            let name = format!("node-{number:04}");
            let machine = Machine::new(name.clone(), kinds[number % kinds.len()]);
            objects.push(("/api/v1/nodes", node(&name)));
            objects.push((TOPOLOGIES, machine.object()));
            state.machines.insert(name, machine);
        }
        create_all(api, objects).await;
        Arc::new(Self {
            api: api.clone(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outcome(&self) -> Outcome {
        self.state().outcome.clone()
    }

    pub(super) fn bound_count(&self) -> usize {
        self.state().outcome.bound.len()
    }

    /// Starts to watch for pods that are bound, and to publish what changes.
    pub(super) fn start(self: &Arc<Self>) {
        let (watcher, publisher) = (self.clone(), self.clone());
        tokio::spawn(async move {
            let (_one, terms) = watch::channel(1);
            let _ = follow(&watcher.api, BOUND, watcher.clone(), terms).await;
        });
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PUBLISH_PERIOD).await;
                publisher.end().await;
                publisher.publish().await;
            }
        });
    }

    /// Plays a node no more; a real publisher takes its object over. Returns the object as it would be published.
    pub(super) fn forget(&self, node: &str) -> Value {
        let mut state = self.state();
        state.changed.remove(node);
        state.machines.remove(node).expect("the node").object()
    }

    /// Deletes the pods whose containers have ended, as kubelet does.
    async fn end(&self) {
        let ending = std::mem::take(&mut self.state().ending);
        for (path, uid) in ending {
            let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
            let body = Some(("application/json", &body));
            match self.api.call(Method::DELETE, &path, body).await {
                Ok(_) | Err(ServerFailure::Missing(_) | ServerFailure::Conflict(_)) => {}
                Err(_) => drop(self.state().ending.insert(path, uid)),
            }
        }
    }

    async fn publish(&self) {
        let changed: Vec<(String, Value)> = {
            let mut state = self.state();
            let changed = std::mem::take(&mut state.changed);
            let object = |name: String| {
                let object = state.machines[&name].object();
                (name, object)
            };
            changed.into_iter().map(object).collect()
        };
        for (name, object) in changed {
            let path = format!("{TOPOLOGIES}/{name}?fieldManager=stelia-publish&force=true");
            let body = Some(("application/apply-patch+yaml", &object));
            if self.api.call(Method::PATCH, &path, body).await.is_err() {
                self.state().changed.insert(name);
            }
        }
    }

    fn bound(&self, document: &Value, pod: &parse::ParsedPod) {
        let uid = pod.uid.to_string();
        let Some(node) = pod.node.as_ref().map(ToString::to_string) else {
            return;
        };
        let mut guard = self.state();
        let state = &mut *guard;
        if pod.ending {
            let (namespace, name) = pod.name.split_once('/').expect("a namespace and a name");
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            state.ending.insert(path, uid.clone());
        }
        // Pods of other namespaces have no CPUs of their own.
        if !pod.name.starts_with("vms/") || !state.seen.insert(uid.clone()) {
            return;
        }
        state.outcome.bound.push(Instant::now());
        if let Some(cpus) = &pod.cpus {
            let told = state.told.entry(node.clone()).or_default();
            state.outcome.twice += usize::from(told.values().any(|other| !other.is_disjoint(cpus)));
            told.insert(uid.clone(), cpus.clone());
        }
        let Some(machine) = state.machines.get_mut(&node) else {
            return;
        };
        let cpus = document["spec"]["containers"][0]["resources"]["limits"]["cpu"].as_str();
        let cpus = cpus.and_then(|cpus| cpus.parse().ok()).unwrap_or_default();
        let admitted = machine.admit(&uid, document);
        match admitted.and_then(|()| machine.register(&uid, cpus, pod.cpus.clone())) {
            Ok(()) => drop(state.changed.insert(node)),
            Err(reason) => state.outcome.refused.push(format!("{} on {node}: {reason}", pod.name)),
        }
    }
}

impl Follower for Nodes {
    fn changed(&self, object: &RawValue) {
        let document: Value = serde_json::from_str(object.get()).expect("JSON");
        if let Some(pod) = parse::pod(object.get()) {
            self.bound(&document, &pod);
        }
    }

    fn gone(&self, object: &RawValue) {
        let Some(pod) = parse::pod(object.get()) else { return };
        let Some(node) = pod.node.map(|node| node.to_string()) else {
            return;
        };
        let (mut state, uid) = (self.state(), pod.uid.to_string());
        if let Some(told) = state.told.get_mut(&node) {
            told.remove(&uid);
        }
        if let Some(machine) = state.machines.get_mut(&node) {
            machine.end(&uid);
        }
        if state.machines.contains_key(&node) {
            state.changed.insert(node);
        }
    }

    fn failed(&self, failure: &ServerFailure) {
        println!("  the nodes' watch: {failure}");
    }
}

/// A Node with 28 CPUs for pods, as kubelet would write it.
fn node(name: &str) -> Value {
    let resources = |cpu: &str| json!({"cpu": cpu, "memory": "1024Gi", "pods": "110", "stelia.io/vm": "28"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": resources("32"),
            "allocatable": resources("28"),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    })
}

/// Pods of this scheduler, each with this many CPUs.
pub(super) fn pods(scheduler: &str, sizes: &[u32]) -> Vec<Value> {
    let named = |(number, cpus): (usize, &u32)| vm(&format!("vm-{number:05}"), scheduler, *cpus);
    sizes.iter().enumerate().map(named).collect()
}

/// A VM's pod.
pub(super) fn vm(name: &str, scheduler: &str, cpus: u32) -> Value {
    let mut pod = pod(name, "", cpus, true);
    pod["spec"]["schedulerName"] = scheduler.into();
    pod["spec"]["automountServiceAccountToken"] = false.into();
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("uid");
    }
    pod
}

pub(super) async fn create_pods(api: &Api, pods: Vec<Value>) {
    create_all(api, pods.into_iter().map(|pod| (PODS, pod)).collect()).await;
}

async fn create_all(api: &Api, objects: Vec<(&'static str, Value)>) {
    let mut tasks = JoinSet::new();
    for (list, object) in objects {
        if tasks.len() >= PARALLEL_REQUESTS {
            tasks.join_next().await.expect("a task").expect("a request");
        }
        let api = api.clone();
        tasks.spawn(async move { create(&api, list, &object).await });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("a request");
    }
}
