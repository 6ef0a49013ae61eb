//! Placing pods with the rights that the manifests give, over TLS.

use http::Method;

use super::Installed;
use super::service::metric;
use crate::real_cluster::nodes::{create_pods, pods};
use crate::simulated_cluster::node_kind::KINDS;
use std::time::Duration;

/// The level and the schema of each program's requests, as kube-apiserver counts them.
const FLOWS: [(&str, &str); 4] = [
    ("stelia-placement", "workload-high"),
    ("stelia-placement-leader-election", "leader-election"),
    ("stelia-scheduler", "workload-high"),
    ("stelia-scheduler-leader-election", "leader-election"),
];

/// Every manifest is applied without a warning, the pods that it describes are admitted, and the programs need no other right than those that it gives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_placed_with_the_rights_of_the_manifests_alone() {
    let mut cluster = Installed::start(8, &KINDS).await;
    for (name, wanted) in [("stelia-publish", 8), ("stelia-placement", 2), ("stelia-scheduler", 2)] {
        super::wait_until(name, async || cluster.pods_of(name).await.len() == wanted).await;
    }
    cluster.run_scheduling().await;
    create_pods(&cluster.plane.api, pods("stelia-scheduler", &[4; 24])).await;
    cluster.wait_for_bound(24).await;
    cluster.assert_whole();
    let api = cluster.plane.api.clone();
    let probes = cluster.service.probes()[0].clone();
    super::wait_until("no pod holds CPUs beside the objects", async || {
        metric(&probes, "stelia_placement_claims{state=\"unseen\"}").await == 0
    })
    .await;

    for program in [super::INSTANCES[0], "kube-scheduler"] {
        let log = cluster.plane.log(program);
        let denied: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
        assert_eq!(denied, Vec::<&str>::new(), "{program}");
    }
    let metrics = api.text(Duration::from_secs(30), Method::GET, "/metrics", None).await;
    let metrics = String::from_utf8_lossy(&metrics.expect("metrics")).into_owned();
    for (schema, level) in FLOWS {
        let line = format!(
            "apiserver_flowcontrol_dispatched_requests_total{{flow_schema=\"{schema}\",priority_level=\"{level}\"}}"
        );
        let requests = metrics.lines().find_map(|text| text.strip_prefix(&line));
        println!("  requests of {schema} at {level}: {}", requests.unwrap_or(" none"));
        assert!(requests.is_some(), "no request has {schema} and {level}");
    }
}
