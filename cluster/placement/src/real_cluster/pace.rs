//! How many pods a second are bound, and what that costs.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::control_plane::{Admission, ControlPlane, repository};
use super::nodes::{Nodes, Outcome, create_pods, pods};
use crate::simulated_cluster::node_kind::KINDS;

/// How long the pods may wait for the last one to be bound.
const BIND_TIMEOUT: Duration = Duration::from_secs(300);
/// How often bound pods are counted.
const COUNT_PERIOD: Duration = Duration::from_millis(20);
/// Requests that kube-scheduler's client may send in a second, and at once: more than any run sends. By default they are 50 and 100, which
/// would hold back only the side on which kube-scheduler itself binds pods.
const CLIENT_QPS: u32 = 5000;
const CLIENT_BURST: u32 = 10_000;
/// Runs of each side that count.
const ROUNDS: usize = 3;

/// Who chooses the pods' nodes. Both are configured by `packaging/cluster/kubernetes/placement/scheduler/vms.yaml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheduling {
    /// kube-scheduler with stelia-placement.
    Placement,
    /// kube-scheduler alone.
    Alone,
}

/// What was measured.
struct Run {
    outcome: Outcome,
    /// Pods bound in a second, from the first to the last.
    per_second: f64,
    /// CPU time that each program took in that time for each pod, in milliseconds.
    cpu_per_pod: Vec<(&'static str, f64)>,
}

/// The scheduler's configuration, with the extender at this URL, without TLS, or with none.
fn configuration(extender: Option<&str>) -> Value {
    let file = repository("packaging/cluster/kubernetes/placement/scheduler/vms.yaml");
    let mut configuration: Value = serde_saphyr::from_str(&fs::read_to_string(file).expect("vms.yaml")).expect("YAML");
    configuration["clientConnection"] = json!({"qps": CLIENT_QPS, "burst": CLIENT_BURST});
    let Some(url) = extender else {
        configuration["extenders"] = json!([]);
        return configuration;
    };
    let extender = &mut configuration["extenders"][0];
    extender["urlPrefix"] = url.into();
    extender["enableHTTPS"] = false.into();
    if let Some(extender) = extender.as_object_mut() {
        extender.remove("tlsConfig");
    }
    configuration
}

/// Waits until this many pods are bound, or the time is over.
async fn wait_for_bound(cluster: &Nodes, count: usize) {
    let started = Instant::now();
    while cluster.bound_count() < count && started.elapsed() < BIND_TIMEOUT {
        tokio::time::sleep(COUNT_PERIOD).await;
    }
}

/// Creates nodes and pods, then starts the scheduler, and waits until all pods are bound.
async fn run(scheduling: Scheduling, nodes: usize, sizes: &[u32]) -> Run {
    let mut plane = ControlPlane::start(Admission::Bare).await;
    let cluster = Nodes::create(&plane.api, nodes, &KINDS).await;
    let extender = match scheduling {
        Scheduling::Placement => Some(plane.run_placement().await),
        Scheduling::Alone => None,
    };
    create_pods(&plane.api, pods("stelia-scheduler", sizes)).await;
    cluster.start();
    plane.run_scheduler(configuration(extender.as_deref()));
    wait_for_bound(&cluster, 1).await;
    let (before, already) = (plane.cpu_seconds(), cluster.bound_count());
    wait_for_bound(&cluster, sizes.len()).await;
    let after = plane.cpu_seconds();
    let outcome = cluster.outcome();
    let [first, .., last] = outcome.bound[..] else {
        panic!("{} pods were bound", outcome.bound.len());
    };
    let bound = outcome.bound.len() - already;
    let cost = |((name, before), (_, after)): (&(&'static str, f64), &(&'static str, f64))| {
        (*name, (after - before) * 1000.0 / bound as f64)
    };
    let run = Run {
        per_second: (outcome.bound.len() - 1) as f64 / (last - first).as_secs_f64(),
        cpu_per_pod: before.iter().zip(&after).map(cost).collect(),
        outcome,
    };
    println!(
        "  {scheduling:?}: {nodes} nodes, {} of {} pods bound, {:.1}/s; {} refused, {} told a CPU twice; CPU ms a pod {:.2?}",
        run.outcome.bound.len(),
        sizes.len(),
        run.per_second,
        run.outcome.refused.len(),
        run.outcome.twice,
        run.cpu_per_pod,
    );
    run
}

/// The run with the median pace.
fn median(mut runs: Vec<Run>) -> Run {
    runs.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
    runs.swap_remove(runs.len() / 2)
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

/// All pods waiting; the sides in turn, after a run of each that does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_costs_a_cluster_of_1000_nodes_no_pace() {
    let sizes = [4; 2000];
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let placement = run(Scheduling::Placement, 1000, &sizes).await;
        let outcome = &placement.outcome;
        assert_eq!(
            (outcome.bound.len(), outcome.refused.len(), outcome.twice),
            (sizes.len(), 0, 0)
        );
        let alone = run(Scheduling::Alone, 1000, &sizes).await;
        assert_eq!(alone.outcome.bound.len(), sizes.len());
        if round > 0 {
            with.push(placement);
            without.push(alone);
        }
    }
    let (with, without) = (median(with), median(without));
    let figures = format!(
        "{:.1} pods a second with stelia-placement, {:.1} without; CPU ms a pod {:.2?}, {:.2?}",
        with.per_second, without.per_second, with.cpu_per_pod, without.cpu_per_pod,
    );
    println!("  medians of {ROUNDS}: {figures}");
    assert!(with.per_second >= without.per_second, "{figures}");
}
