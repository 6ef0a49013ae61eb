//! How many pods a second are bound, and what that costs.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::control_plane::{Admission, ControlPlane, repository};
use super::nodes::{Nodes, Outcome, create_pods, pods};
use crate::simulated_cluster::node_kind::KINDS;

/// How long the pods may wait for the last one to be bound.
const BIND_TIMEOUT: Duration = Duration::from_secs(300);

/// Who chooses the pods' nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheduling {
    /// kube-scheduler with stelia-placement, by `packaging/cluster/kubernetes/placement/scheduler/vms.yaml`.
    Placement,
    /// kube-scheduler by its defaults.
    Default,
}

/// What was measured.
struct Run {
    outcome: Outcome,
    /// Pods bound in a second, from the first to the last.
    per_second: f64,
    /// CPU time that each program took, in seconds.
    cpu_seconds: Vec<(&'static str, f64)>,
}

/// The scheduler's configuration with the extender at this URL, without TLS.
fn with_placement(url: &str) -> Value {
    let file = repository("packaging/cluster/kubernetes/placement/scheduler/vms.yaml");
    let mut configuration: Value = serde_saphyr::from_str(&fs::read_to_string(file).expect("vms.yaml")).expect("YAML");
    let extender = &mut configuration["extenders"][0];
    extender["urlPrefix"] = url.into();
    extender["enableHTTPS"] = false.into();
    if let Some(extender) = extender.as_object_mut() {
        extender.remove("tlsConfig");
    }
    configuration
}

/// Creates nodes and pods, then starts the scheduler, and waits until all pods are bound.
async fn run(scheduling: Scheduling, nodes: usize, sizes: &[u32]) -> Run {
    let mut plane = ControlPlane::start(Admission::Bare).await;
    let cluster = Nodes::create(&plane.api, nodes, &KINDS).await;
    let (name, configuration) = match scheduling {
        Scheduling::Placement => ("stelia-scheduler", with_placement(&plane.run_placement().await)),
        Scheduling::Default => (
            "default-scheduler",
            json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}),
        ),
    };
    create_pods(&plane.api, pods(name, sizes)).await;
    cluster.start();
    let before = plane.cpu_seconds();
    plane.run_scheduler(configuration);
    let started = Instant::now();
    while cluster.outcome().bound.len() < sizes.len() && started.elapsed() < BIND_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let outcome = cluster.outcome();
    let [first, .., last] = outcome.bound[..] else {
        panic!("{} pods were bound", outcome.bound.len());
    };
    let spent = |(name, seconds): (&'static str, f64)| {
        let before = before.iter().find(|(program, _)| *program == name);
        (name, seconds - before.map_or(0.0, |(_, seconds)| *seconds))
    };
    let run = Run {
        per_second: (outcome.bound.len() - 1) as f64 / (last - first).as_secs_f64(),
        cpu_seconds: plane.cpu_seconds().into_iter().map(spent).collect(),
        outcome,
    };
    println!(
        "  {scheduling:?}: {nodes} nodes, {} of {} pods bound, {:.1}/s; {} refused, {} told a CPU twice; CPU seconds {:.1?}",
        run.outcome.bound.len(),
        sizes.len(),
        run.per_second,
        run.outcome.refused.len(),
        run.outcome.twice,
        run.cpu_seconds,
    );
    run
}

/// As many pods as fit, of sizes that NUMA nodes of 14 CPUs do not all take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_refuses_a_pod_and_no_cpu_is_given_twice() {
    for nodes in [20, 200] {
        let sizes: Vec<u32> = (0..nodes * 3).map(|number| [2, 4, 8, 6][number % 4]).collect();
        let run = run(Scheduling::Placement, nodes, &sizes).await;
        assert_eq!(run.outcome.bound.len(), sizes.len());
        assert_eq!(run.outcome.refused, Vec::<String>::new());
        assert_eq!(run.outcome.twice, 0);
    }
}

/// With default settings, all pods waiting: kube-scheduler's own pace is what its client may send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_costs_a_cluster_of_1000_nodes_no_pace() {
    let sizes = [4; 500];
    let with = run(Scheduling::Placement, 1000, &sizes).await;
    let without = run(Scheduling::Default, 1000, &sizes).await;
    assert_eq!(
        (with.outcome.bound.len(), with.outcome.refused.len(), with.outcome.twice),
        (500, 0, 0)
    );
    assert!(
        with.per_second >= without.per_second,
        "{:.1} pods a second with stelia-placement, {:.1} without",
        with.per_second,
        without.per_second
    );
}
