//! Pods that no node has room for, and what happens when room appears.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::Installed;
use super::service::{condition, metric};
use crate::real_cluster::nodes::{create_pods, pods, vm};
use crate::simulated_cluster::node_kind::Kind;

const PODS: &str = "/api/v1/namespaces/vms/pods";
/// Kinds on which no VM gets more CPUs than a NUMA node has.
const ONE_NUMA_NODE: [Kind; 3] = [Kind::Single, Kind::Whole, Kind::Steliad];

fn with_priority(mut pod: Value, class: &str) -> Value {
    pod["spec"]["priorityClassName"] = class.into();
    pod
}

impl Installed {
    async fn create_priorities(&self) {
        for (name, value) in [("low", 100), ("high", 1000)] {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            });
            self.plane
                .create("/apis/scheduling.k8s.io/v1/priorityclasses", &class)
                .await;
        }
    }

    async fn pod(&self, name: &str) -> Option<Value> {
        self.plane
            .api
            .call(Method::GET, &format!("{PODS}/{name}"), None)
            .await
            .ok()
    }

    async fn is_bound(&self, name: &str) -> bool {
        let pod = self.pod(name).await;
        pod.is_some_and(|pod| pod["spec"]["nodeName"].is_string())
    }

    async fn is_unschedulable(&self, name: &str) -> bool {
        let pod = self.pod(name).await;
        pod.is_some_and(|pod| condition(&pod, "PodScheduled") == Some("False"))
    }
}

/// kube-scheduler does not watch the nodes' objects: without stelia-placement's condition the pod would wait for 300 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_waits_is_bound_when_another_one_has_ended() {
    let mut cluster = Installed::start(3, &ONE_NUMA_NODE).await;
    cluster.run_scheduling().await;
    create_pods(&cluster.plane.api, pods("stelia-scheduler", &[14; 6])).await;
    cluster.wait_for_bound(6).await;
    create_pods(&cluster.plane.api, vec![vm("waits", "stelia-scheduler", 14)]).await;
    super::wait_until("it waits", async || cluster.is_unschedulable("waits").await).await;
    cluster.kubectl(&["-n", "vms", "delete", "pod", "vm-00003", "--wait=false"]);
    let ended = Instant::now();
    super::wait_until("it is bound", async || cluster.is_bound("waits").await).await;
    println!(
        "  bound {:.1} s after the deletion of another",
        ended.elapsed().as_secs_f64()
    );
    cluster.assert_whole();
}

/// A refusal for which no victim helps must not have the scheduler look for victims, whose message would wake the pod again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_fits_nowhere_is_not_tried_again_and_again() {
    let mut cluster = Installed::start(20, &ONE_NUMA_NODE).await;
    cluster.create_priorities().await;
    cluster.run_scheduling().await;
    let low = pods("stelia-scheduler", &[2; 15]).into_iter();
    create_pods(&cluster.plane.api, low.map(|pod| with_priority(pod, "low")).collect()).await;
    cluster.wait_for_bound(15).await;
    let high = with_priority(vm("fits-nowhere", "stelia-scheduler", 16), "high");
    create_pods(&cluster.plane.api, vec![high]).await;
    super::wait_until("it waits", async || cluster.is_unschedulable("fits-nowhere").await).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let pod = cluster.pod("fits-nowhere").await.expect("the pod");
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    println!("  its conditions: {conditions:?}");
    // Each attempt that changes the message is a version of the pod.
    let events = cluster
        .plane
        .api
        .call(Method::GET, "/api/v1/namespaces/vms/events", None)
        .await;
    let events = events.expect("events");
    let attempts: u64 = events["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter(|event| event["involvedObject"]["name"] == "fits-nowhere")
        .map(|event| 1 + event["series"]["count"].as_u64().unwrap_or_default())
        .sum();
    println!("  attempts in 10 s: {attempts}");
    assert!((1..=5).contains(&attempts), "{attempts} attempts");
    assert!(cluster.nodes.outcome().bound.len() == 15, "a pod was preempted");
    cluster.assert_whole();
}

/// Where a victim helps, one is evicted, and the pod is bound to its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_of_higher_priority_takes_the_place_of_one_other() {
    let mut cluster = Installed::start(2, &ONE_NUMA_NODE).await;
    cluster.create_priorities().await;
    cluster.run_scheduling().await;
    let low = pods("stelia-scheduler", &[14; 4]).into_iter();
    create_pods(&cluster.plane.api, low.map(|pod| with_priority(pod, "low")).collect()).await;
    cluster.wait_for_bound(4).await;
    let high = with_priority(vm("preempts", "stelia-scheduler", 14), "high");
    create_pods(&cluster.plane.api, vec![high]).await;
    let created = Instant::now();
    super::wait_until("it is bound", async || cluster.is_bound("preempts").await).await;
    println!("  bound {:.1} s after its creation", created.elapsed().as_secs_f64());
    let left = super::service::count(&cluster.plane.api, PODS).await;
    assert_eq!(left, 4, "one victim");
    cluster.assert_whole();
    let refused = metric(&cluster.service.probes()[0], "stelia_placement_refused_total").await;
    assert_eq!(refused, 0);
}
