//! The pods of stelia-placement replaced, by a drain and by a rollout: one of them can take over at any time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::service::condition;
use super::{Installed, SYSTEM_PODS};
use crate::apiserver::Api;
use crate::simulated_cluster::node_kind::Kind;

/// How often pods are looked at.
const PERIOD: Duration = Duration::from_millis(200);

/// kubelet's part for pods of `stelia-system`: each is bound to a node of its own choice, and ready at the second look.
async fn run_system_pods(api: Api, nodes: usize) {
    let mut seen = BTreeSet::new();
    let mut next = 0;
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok(pods) = api.call(Method::GET, SYSTEM_PODS, None).await else {
            continue;
        };
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            if pod["metadata"]["labels"]["app.kubernetes.io/name"] != "stelia-placement" {
                continue;
            }
            if pod["spec"]["nodeName"].is_null() {
                next += 1;
                let target = json!({"apiVersion": "v1", "kind": "Node", "name": format!("node-{:04}", next % nodes)});
                let binding =
                    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
                let path = format!("{SYSTEM_PODS}/{name}/binding");
                let _ = api
                    .call(Method::POST, &path, Some(("application/json", &binding)))
                    .await;
            } else if condition(pod, "Ready") != Some("True") && !seen.insert(name.to_owned()) {
                let status =
                    json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
                let path = format!("{SYSTEM_PODS}/{name}/status");
                let body = Some(("application/strategic-merge-patch+json", &status));
                let _ = api.call(Method::PATCH, &path, body).await;
            }
        }
    }
}

impl Installed {
    async fn ready_pods(&self) -> Vec<Value> {
        let mut pods = self.pods_of("stelia-placement").await;
        pods.retain(|pod| condition(pod, "Ready") == Some("True") && pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    async fn wait_for_two(&self) {
        super::wait_until("two pods are ready", async || self.ready_pods().await.len() == 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_pods_stays_ready_through_a_drain_and_a_rollout() {
    let cluster = Arc::new(Installed::start(4, &[Kind::Single]).await);
    tokio::spawn(run_system_pods(cluster.plane.api.clone(), 4));
    cluster.wait_for_two().await;
    let watch = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            let mut least = 2;
            loop {
                least = least.min(cluster.ready_pods().await.len());
                assert!(least > 0, "no pod is ready");
                tokio::time::sleep(PERIOD / 2).await;
            }
        }
    });

    let ready = cluster.ready_pods().await;
    let node = ready[0]["spec"]["nodeName"].as_str().expect("a node").to_owned();
    let drain = [
        "drain",
        &node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=60s",
    ];
    let drained = tokio::task::spawn_blocking({
        let cluster = cluster.clone();
        let drain = drain.map(str::to_owned);
        move || cluster.kubectl(&drain.each_ref().map(String::as_str))
    });
    println!("  {}", drained.await.expect("the drain").replace('\n', "\n  "));
    cluster.wait_for_two().await;

    let before: BTreeSet<String> = names(&cluster.ready_pods().await);
    cluster.kubectl(&[
        "-n",
        "stelia-system",
        "set",
        "image",
        "deployment/stelia-placement",
        "stelia-placement=registry.example.com/stelia-placement:next",
    ]);
    super::wait_until("both pods are others", async || {
        let now = names(&cluster.ready_pods().await);
        now.len() == 2 && now.is_disjoint(&before)
    })
    .await;
    assert!(!watch.is_finished(), "no pod was ready for a while");
    watch.abort();
    println!("  rollout: {before:?} replaced one after the other");
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().expect("a name").to_owned();
    pods.iter().map(name).collect()
}
