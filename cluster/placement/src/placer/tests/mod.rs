//! Binds against an API server in memory: what fails, whose answers are lost, and a leader that stops and wakes up.

mod bind;
mod hostile_authors;
mod leader;
mod wake_waiting;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use test_apiserver::{Answer as Fault, Server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::apiserver::ToBind;
use crate::simulated_cluster::instance;
use crate::simulated_cluster::load::{pod, uid};
use crate::simulated_cluster::node::Machine;
use crate::simulated_cluster::node_kind::Kind;

const OBJECTS: &str = "topology.node.k8s.io";
const STATUS: &str = "scheduling.koordinator.sh/resource-status";

/// An API server with a node of each kind.
struct Cluster {
    server: Server,
    machines: Vec<Machine>,
}

/// An instance whose requests wait for as long as it is stopped.
struct Instance {
    placer: Arc<Placer>,
    stopped: watch::Sender<bool>,
    dead: CancellationToken,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.dead.cancel();
    }
}

impl Cluster {
    fn new() -> Self {
        let server = Server::default();
        instance::release_lease(&server);
        let machines = [("steliad", Kind::Steliad), ("kubelet", Kind::Single)];
        let cluster = Self {
            server,
            machines: machines.map(|(name, kind)| Machine::new(name.to_owned(), kind)).into(),
        };
        cluster.publish(0);
        cluster.publish(1);
        cluster
    }

    /// A pod that is pending.
    fn make(&self, name: &str, number: u64, cpus: u32) -> ToBind {
        self.make_on("steliad", name, number, cpus)
    }

    /// The same, for this node.
    fn make_on(&self, node: &str, name: &str, number: u64, cpus: u32) -> ToBind {
        self.create_pod(node, name, number, pod(name, &uid(number, 0), cpus, true))
    }

    /// Creates the pod as it is.
    fn create_pod(&self, node: &str, name: &str, number: u64, document: Value) -> ToBind {
        self.server.put("", "pods", document);
        ToBind {
            namespace: "vms".to_owned(),
            name: name.to_owned(),
            uid: uid(number, 0),
            node: node.into(),
        }
    }

    fn pod(&self, name: &str) -> Value {
        self.server.object("", "pods", "vms", name).unwrap()
    }

    /// The author changes a pod.
    fn change_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut document = self.pod(name);
        change(&mut document);
        self.server.put("", "pods", document);
    }

    fn publish(&self, machine: usize) {
        let object = self.machines[machine].object();
        self.server.put(OBJECTS, "noderesourcetopologies", object);
    }

    fn told(&self, name: &str) -> String {
        let annotations = &self.pod(name)["metadata"]["annotations"];
        let told = annotations[STATUS].as_str();
        told.unwrap_or_default().to_owned()
    }

    fn start(&self, number: u64) -> Instance {
        self.start_with(number, PlacerOptions::default())
    }

    fn start_with(&self, number: u64, options: PlacerOptions) -> Instance {
        let (stopped, stop) = watch::channel(false);
        let (server, dead) = (self.server.clone(), CancellationToken::new());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (server, mut stop) = (server.clone(), stop.clone());
            // What was sent arrives, whether somebody still waits for the answer or not.
            let sent = tokio::spawn(async move {
                let _ = stop.wait_for(|stopped| !stopped).await;
                server.answer(request).await
            });
            async move { sent.await.unwrap() }
        });
        let placer = Placer::new(Api::new(Client::new(service, "default")), options);
        instance::run(&placer, instance::lease_claim(number), &dead, None);
        Instance { placer, stopped, dead }
    }

    async fn ready(&self, number: u64) -> Instance {
        let instance = self.start(number);
        instance.becomes_ready().await;
        instance
    }

    fn node_of(&self, name: &str) -> Option<String> {
        self.pod(name)["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    fn fail(&self, verb: &str, resource: &str, times: u32, answer: Fault) {
        let fault = test_apiserver::Fault::of(verb, resource, times, answer);
        self.server.fail(fault);
    }
}

impl Instance {
    async fn becomes_ready(&self) {
        let mut waited = 0;
        while let Err(cause) = self.placer.ready() {
            assert!(waited < 600, "{cause}");
            waited += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn reservation_counts(&self) -> [usize; 3] {
        let counts = self.placer.reservation_counts();
        [counts.binding, counts.unseen, counts.leaving]
    }

    /// Binds in a task of its own.
    fn bind(&self, to: &ToBind) -> tokio::task::JoinHandle<Result<(), BindError>> {
        let (placer, to) = (self.placer.clone(), to.clone());
        tokio::spawn(async move { placer.bind(&to).await })
    }

    fn held(&self, node: &str) -> Vec<String> {
        let state = self.placer.state();
        let held = state.reservations.held(node);
        let cpus = held.into_iter().map(|(_, one)| one.cpus);
        cpus.map(|cpus| cpus.map_or("-".to_owned(), |cpus| cpus.to_string()))
            .collect()
    }

    /// The counts, and what is held on the node `steliad`.
    fn state(&self) -> ([usize; 3], Vec<String>) {
        (self.reservation_counts(), self.held("steliad"))
    }

    async fn refuses(&self, to: &ToBind) -> BindError {
        self.placer.bind(to).await.unwrap_err()
    }

    /// It ends, and gives its Lease back.
    async fn ends(&self, number: u64) {
        self.dead.cancel();
        let seat = instance::lease_claim(number);
        seat.release(self.placer.api(), self.placer.leadership()).await.unwrap();
    }
}

const NOTHING: ([usize; 3], Vec<String>) = ([0; 3], Vec::new());

async fn ready() -> (Cluster, Instance) {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    (cluster, instance)
}

async fn with_vm(cpus: u32) -> (Cluster, Instance, ToBind) {
    let (cluster, instance) = ready().await;
    let to = cluster.make("vm", 1, cpus);
    (cluster, instance, to)
}

async fn a_second() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}
