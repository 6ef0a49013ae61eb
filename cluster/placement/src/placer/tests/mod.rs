//! Binds against an API server in memory: what fails, whose answers are lost, and a leader that stops and wakes up.

mod bind;
mod hostile_authors;
mod leader;
mod wake_waiting;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use test_apiserver::{Answer as Fault, Server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::apiserver::ToBind;
use crate::apiserver::lease::LeaseClaim;
use crate::simulated_cluster::instance;
use crate::simulated_cluster::load::{pod, uid};
use crate::simulated_cluster::node::Machine;
use crate::simulated_cluster::node_kind::Kind;

const OBJECTS: &str = "topology.node.k8s.io";

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
        for machine in &cluster.machines {
            cluster.server.put(OBJECTS, "noderesourcetopologies", machine.object());
        }
        cluster
    }

    /// A pod that is pending.
    fn make(&self, name: &str, number: u64, cpus: u32) -> ToBind {
        self.server.put("", "pods", pod(name, &uid(number, 0), cpus, true));
        ToBind {
            namespace: "vms".to_owned(),
            name: name.to_owned(),
            uid: uid(number, 0),
            node: "steliad".into(),
        }
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
        let identity = format!("instance-{number}");
        let placer = Placer::new(Api::new(Client::new(service, "default")), options);
        let seat = LeaseClaim {
            namespace: "stelia-system".to_owned(),
            name: "stelia-placement".to_owned(),
            identity,
        };
        instance::run(&placer, seat, &dead, None);
        Instance { placer, stopped, dead }
    }

    async fn ready(&self, number: u64) -> Instance {
        let instance = self.start(number);
        instance.becomes_ready().await;
        instance
    }

    fn node_of(&self, name: &str) -> Option<String> {
        let pod = self.server.object("", "pods", "vms", name).unwrap();
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    fn fail(&self, verb: &str, resource: &str, times: u32, answer: Fault) {
        self.server
            .fail(test_apiserver::Fault::of(verb, resource, times, answer));
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
        held.iter()
            .map(|held| held.cpus.map_or("-".to_owned(), ToString::to_string))
            .collect()
    }
}

fn annotation(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"]
        .as_str()
        .unwrap_or_default()
}
