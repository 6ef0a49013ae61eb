//! Two instances of stelia-placement behind their Service, and what happens to either of them while pods are bound.

use http::Method;
use rustix::process::Signal;
use serde_json::Value;

use super::service::ApiServerProxy;
use super::{INSTANCES, Installed};
use crate::apiserver::lease::TAKEOVER_PAUSE;
use crate::real_cluster::nodes::{create_pods, vm};
use crate::simulated_cluster::node_kind::KINDS;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/stelia-system/leases/stelia-placement";
/// Pods that are created for each fault.
const BATCH: usize = 30;

impl Installed {
    /// The number of the instance that holds the Lease.
    async fn leader(&self) -> Option<usize> {
        let lease: Value = self.plane.api.call(Method::GET, LEASE, None).await.ok()?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        INSTANCES.iter().position(|name| holder.starts_with(name))
    }

    async fn wait_for_other_leader(&self, than: usize) {
        super::wait_until("the other instance leads", async || {
            self.leader().await == Some(1 - than)
        })
        .await;
    }

    /// Creates pods, and waits until some of them are bound.
    async fn begin_batch(&self, number: usize) {
        let pods = (0..BATCH).map(|pod| vm(&format!("vm-{number}-{pod:02}"), "stelia-scheduler", 4));
        create_pods(&self.plane.api, pods.collect()).await;
        self.wait_for_bound(number * BATCH + 3).await;
    }
}

/// A leader that is killed, stopped past its Lease, or alive without a way to the API server; and a scheduler that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_bound_once_whatever_becomes_of_the_leader() {
    let mut cluster = Installed::start(40, &KINDS).await;
    let server = cluster.plane.server.clone();
    let proxies = [ApiServerProxy::to(&server).await, ApiServerProxy::to(&server).await];
    for (instance, proxy) in proxies.iter().enumerate() {
        cluster.run_placement(instance, &proxy.url).await;
    }
    cluster.wait_for_leader().await;
    cluster.run_scheduler().await;

    cluster.begin_batch(0).await;
    let leader = cluster.leader().await.expect("a leader");
    cluster.plane.kill(INSTANCES[leader]);
    cluster.wait_for_other_leader(leader).await;
    cluster.wait_for_bound(BATCH).await;
    println!("  killed: all bound");
    cluster.assert_whole();
    cluster.run_placement(leader, &proxies[leader].url).await;

    cluster.begin_batch(1).await;
    let leader = cluster.leader().await.expect("a leader");
    cluster.plane.signal(INSTANCES[leader], Signal::STOP);
    cluster.wait_for_other_leader(leader).await;
    cluster.wait_for_bound(2 * BATCH).await;
    cluster.plane.signal(INSTANCES[leader], Signal::CONT);
    println!("  stopped: all bound");

    cluster.begin_batch(2).await;
    let leader = cluster.leader().await.expect("a leader");
    proxies[leader].disconnect();
    cluster.wait_for_other_leader(leader).await;
    cluster.wait_for_bound(3 * BATCH).await;
    proxies[leader].connect();
    println!("  cut off: all bound");

    cluster.begin_batch(3).await;
    cluster.plane.kill("kube-scheduler");
    cluster.run_scheduler().await;
    cluster.wait_for_bound(4 * BATCH).await;
    println!("  scheduler killed: all bound");

    // Only a binding of the stopped instance, which was frozen for longer than the other one waited, may have come too late: a node refuses a pod.
    tokio::time::sleep(TAKEOVER_PAUSE).await;
    let outcome = cluster.nodes.outcome();
    println!("  {} refusals", outcome.refused.len());
    assert_eq!((outcome.twice, outcome.bound.len()), (0, 4 * BATCH));
    assert!(outcome.refused.len() <= 1, "{:?}", outcome.refused);
}
