//! The real API server, of Debian's packages (`tests/api/server`), answers what the one in memory answers, and publishers get through its
//! restarts and through the loss of its etcd.
//!
//! `make api-test` runs these, one after the other; `cargo test` leaves them out. They fail where `STELIA_API` names no folder with both programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod real_server;
mod shared;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use real_server::RealServer;
use serde_json::Value;
use shared::counting::Counting;
use shared::process::Process;
use shared::publishers::{self, Running, free_cpus, told};
use shared::{topologies, topology};
use stelia_publish::PublishOptions;
use tokio::time::Instant;

/// The published definition of NodeResourceTopology, without descriptions.
const TOPOLOGIES: &str = include_str!("../../../crates/koordinator/src/report/tests/crd.yaml");
/// How many publishers there are at once.
const MANY: u64 = 1000;
/// A machine that is busy with something else needs its time; nothing is measured by this.
const PATIENCE: Duration = Duration::from_secs(900);

#[tokio::test]
async fn it_answers_as_the_server_in_memory_does() {
    let server = RealServer::start().await;
    let client = server.client();
    server.define(&client, TOPOLOGIES).await;
    shared::writes_are_answered(&client).await;
    shared::a_watch_tells_everything_in_order(&client).await;
    shared::a_watch_from_too_old_a_version_is_told(&client).await;
}

/// The definition that the component installs.
const REBINDS: &str = include_str!("../../../packaging/cluster/kubernetes/components/rebind/crd.yaml");

#[tokio::test]
async fn a_nodes_rebind_resources_are_carried_out() {
    let server = RealServer::start().await;
    let client = server.client();
    server.define(&client, REBINDS).await;
    shared::rebind::rebinds_are_carried_out(&client).await;
}

fn options(name: &str, spread: Duration) -> PublishOptions {
    PublishOptions {
        start_spread: spread,
        ..PublishOptions::new(name)
    }
}

/// Waits until the object says that so many CPUs are free.
async fn stands(client: &kube::Client, name: &str, free: u64) -> Value {
    let begun = Instant::now();
    loop {
        if let Ok(Some(object)) = topologies(client).get_opt(name).await {
            let mut object = serde_json::to_value(object).unwrap();
            if *free_cpus(&mut object) == free.to_string().as_str() {
                return object;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "{name} never has {free} free CPUs");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_publisher_gets_through_restarts_and_names_a_second_writer() {
    let mut server = RealServer::start().await;
    let client = server.client();
    server.define(&client, TOPOLOGIES).await;
    let counting = Counting::new(client.clone(), ["n"]);
    let like = publishers::node();
    let mut publisher = Running::new(counting.client(), options("n", Duration::ZERO), told(&like, "n", 1));
    let first = stands(&client, "n", 1).await;
    assert_eq!(first["metadata"]["ownerReferences"][0]["name"], "n");
    assert_eq!(first["metadata"]["generation"], 1);

    // What changes nothing in the object writes nothing, whoever asks.
    let mut same = told(&like, "n", 1);
    same.pods.clear();
    publisher.tell(same);
    publisher.tell(told(&like, "n", 2));
    assert_eq!(stands(&client, "n", 2).await["metadata"]["generation"], 2);

    server.stop_server().await;
    publisher.tell(told(&like, "n", 3));
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.start_server();
    server.ready().await;
    assert_eq!(stands(&client, "n", 3).await["metadata"]["generation"], 3);

    server.stop_etcd().await;
    publisher.tell(told(&like, "n", 4));
    tokio::time::sleep(Duration::from_secs(15)).await;
    server.start_etcd();
    server.ready().await;
    assert_eq!(stands(&client, "n", 4).await["metadata"]["generation"], 4);

    let zones = topology("n", "9");
    let forced = PatchParams::apply("intruder").force();
    topologies(&client)
        .patch("n", &forced, &Patch::Apply(zones))
        .await
        .unwrap();
    publisher.tell(told(&like, "n", 5));
    let named = publisher
        .status
        .wait_for(|status| status.problems.values().any(|problem| problem.contains("intruder")));
    tokio::time::timeout(PATIENCE, named)
        .await
        .expect("the second writer is named")
        .unwrap();
    stands(&client, "n", 9).await;
}

/// How many objects there are by free CPUs of their first zone, and by generation.
async fn summary(client: &kube::Client) -> Option<(BTreeMap<String, u64>, BTreeMap<u64, u64>)> {
    let (mut free, mut generations) = (BTreeMap::new(), BTreeMap::new());
    for object in topologies(client).list(&ListParams::default()).await.ok()? {
        let mut object = serde_json::to_value(object).unwrap();
        *free
            .entry(free_cpus(&mut object).as_str().unwrap().to_owned())
            .or_default() += 1;
        *generations
            .entry(object["metadata"]["generation"].as_u64().unwrap())
            .or_default() += 1;
    }
    Some((free, generations))
}

/// Waits until all objects have so many free CPUs; returns them by generation, and how long that took.
async fn all_have(client: &kube::Client, free: u64) -> (BTreeMap<u64, u64>, Duration) {
    let begun = Instant::now();
    loop {
        let found = summary(client).await;
        if let Some((found, generations)) = &found
            && *found == BTreeMap::from([(free.to_string(), MANY)])
        {
            return (generations.clone(), begun.elapsed());
        }
        assert!(begun.elapsed() < PATIENCE, "not all have {free} free CPUs: {found:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_thousand_publishers_get_through_the_loss_of_etcd_and_of_the_server() {
    let mut server = RealServer::start().await;
    let client = server.client();
    server.define(&client, TOPOLOGIES).await;
    let names: Vec<String> = (0..MANY).map(|number| format!("node-{number:04}")).collect();
    let counting = Counting::new(client.clone(), names.iter().map(String::as_str));
    let like = publishers::node();
    let publishers: Vec<Running> = names
        .iter()
        .map(|name| {
            Running::new(
                counting.client(),
                options(name, Duration::from_secs(10)),
                told(&like, name, 1),
            )
        })
        .collect();
    let (generations, took) = all_have(&client, 1).await;
    assert_eq!(generations, BTreeMap::from([(1, MANY)]));
    let started = counting.take();
    println!(
        "{MANY} publishers started: {started}; all objects stand {:.1} s after",
        took.as_secs_f64()
    );
    assert_eq!((started.sent, started.succeeded), (MANY, MANY));

    // A server without etcd accepts requests and does not answer; one that is away refuses connections.
    for (away, free) in [("etcd", 2), ("the server", 3)] {
        match away {
            "etcd" => server.stop_etcd().await,
            _ => server.stop_server().await,
        }
        for (publisher, name) in publishers.iter().zip(&names) {
            publisher.tell(told(&like, name, free));
        }
        let outage = Duration::from_secs(45);
        tokio::time::sleep(outage).await;
        let during = counting.take();
        println!("{away} away for {} s: {during}", outage.as_secs());
        assert_eq!(during.succeeded, 0);
        match away {
            "etcd" => server.start_etcd(),
            _ => server.start_server(),
        }
        server.ready().await;
        let (generations, took) = all_have(&client, free).await;
        // Those whose answer was not there in time come once more and change nothing.
        for publisher in &publishers {
            let mut status = publisher.status.clone();
            let settled = status.wait_for(|status| status.settled);
            tokio::time::timeout(PATIENCE, settled).await.expect("settled").unwrap();
        }
        let after = counting.take();
        println!(
            "{away} back: {after}; all objects stand {:.1} s after",
            took.as_secs_f64()
        );
        assert_eq!(generations, BTreeMap::from([(free, MANY)]), "each was written once");
        assert!(after.succeeded <= MANY);
    }

    tokio::time::sleep(Duration::from_secs(10)).await;
    let quiet = counting.take();
    assert_eq!(quiet.sent, 0, "nothing is asked between changes: {quiet}");
}

/// The program with TLS, as it runs on a node.
#[tokio::test]
async fn the_programs_memory_with_tls() {
    let server = RealServer::start().await;
    let client = server.client();
    server.define(&client, TOPOLOGIES).await;
    let program = std::env::var_os("STELIA_PUBLISH").expect("STELIA_PUBLISH names the program: make api-test sets it");
    let process = Process::start(
        Path::new(&program),
        &server.kubeconfig(),
        &told(&publishers::node(), "n", 1),
    );
    stands(&client, "n", 1).await;
    for free in 2..20 {
        process.tell(&told(&publishers::node(), "n", free));
        stands(&client, "n", free).await;
    }
    process.hold_to(12 << 10, "with TLS, after 20 writes");
}
