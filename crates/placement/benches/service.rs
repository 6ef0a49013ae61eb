//! The same questions as in `placement`, over a socket: the whole program with an API server in memory beside it, in one process, while
//! objects change. `make bench-placement` runs both. What is told is the time on the wall, so it says something on an idle machine
//! only; the bars on processor time are those of `placement`. It ends with 1 where an answer is wrong.
//!
//! `STELIA_NODES` in the environment: another number of nodes than 10,000.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Client;
use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_node_report::{Facts, PodAllocation, testing};
use stelia_placement::apiserver::Api;
use stelia_placement::apiserver::lease::Seat;
use stelia_placement::extender::{Bounds, Paths, Service, serve};
use stelia_placement::placer::{Options, Placer};
use stelia_placement::run::start;
use stelia_placement::testing::{published, uid};
use test_apiserver::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const SHAPES: u32 = 20;
/// Names in a question: what kube-scheduler offers of 10,000 nodes by itself, and all.
const SAMPLE: usize = 500;
const ROUNDS: usize = 400;
const LONG_ROUNDS: usize = 100;
/// Objects that change in a second.
const UPDATES: u64 = 1_000;

/// A node of 256 CPUs with some 30 VMs; there are 36 states.
fn facts(number: usize, turn: usize) -> Facts {
    let mut facts = testing::large();
    facts.name = format!("node-{number:05}");
    let kept = facts.allocations.len() - (number + turn) % 12;
    let mut allocations: Vec<PodAllocation> = facts.allocations.drain(..).skip(number % 3).take(kept).collect();
    for (place, one) in allocations.iter_mut().enumerate() {
        one.pod = uid((number as u128) << 32 | (turn as u128) << 16 | place as u128);
    }
    facts.exclusive = allocations.iter().fold(CpuSet::new(), |all, one| all.union(&one.cpus));
    facts.shared = facts.topology.online().difference(&facts.exclusive);
    facts.allocations = allocations;
    facts.pods = None;
    facts
}

fn object(number: usize, turn: usize) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&published(&facts(number, turn)))?)
}

fn question(shape: u32, names: &[String]) -> String {
    let limits = json!({"cpu": (2 + shape).to_string(), "memory": "8Gi", "stelia.io/vm": "1"});
    let pod = json!({
        "metadata": {"namespace": "vms", "name": format!("vm-{shape}"), "uid": uid(u128::from(shape)).as_str(), "resourceVersion": "1"},
        "spec": {"containers": [{"name": "vm", "resources": {"limits": limits, "requests": limits}}]},
    });
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string();
    format!(
        "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks, and reads the answer whole.
async fn ask(stream: &mut TcpStream, question: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    stream.write_all(question.as_bytes()).await?;
    let mut read = Vec::with_capacity(1 << 20);
    loop {
        let count = stream.read_buf(&mut read).await?;
        let head = read.windows(4).position(|end| end == b"\r\n\r\n");
        if let Some(at) = head {
            let text = String::from_utf8_lossy(&read[..at]).to_ascii_lowercase();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
            let length: usize = length.context("a length")?.parse()?;
            if read.len() >= at + 4 + length {
                let took = begun.elapsed();
                let answer: Value = serde_json::from_slice(&read[at + 4..])?;
                if answer["Error"] != "" {
                    bail!("{}", answer["Error"]);
                }
                return Ok(took);
            }
        }
        if count == 0 {
            bail!("the answer ends early");
        }
    }
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| {
        times
            .get((times.len() * percent).div_ceil(100).saturating_sub(1))
            .copied()
            .unwrap_or_default()
    };
    println!("| {what} | {:.2?} | {:.2?} | {:.2?} |", at(50), at(99), at(100));
}

fn topologies() -> Value {
    json!({
        "metadata": {"name": "noderesourcetopologies.topology.node.k8s.io"},
        "spec": {
            "group": "topology.node.k8s.io",
            "scope": "Cluster",
            "names": {"kind": "NodeResourceTopology", "listKind": "NodeResourceTopologyList", "plural": "noderesourcetopologies", "singular": "noderesourcetopology"},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}

async fn measure(nodes: usize) -> anyhow::Result<()> {
    let server = Server::new()?;
    server.define(&topologies())?;
    let claims = include_str!("../../../packaging/kubernetes/cluster/placement/base/crd.yaml");
    server.define(&serde_saphyr::from_str(claims)?)?;
    for number in 0..nodes {
        server.put("topology.node.k8s.io", "noderesourcetopologies", object(number, 0)?);
    }
    let placer = Placer::new(
        Api::new(Client::new(server.clone(), "default")),
        "one".to_owned(),
        1,
        Options::default(),
    );
    let seat = Seat {
        namespace: "default".to_owned(),
        name: "one".to_owned(),
        identity: "one".to_owned(),
    };
    let (begun, ended) = (Instant::now(), CancellationToken::new());
    let _tasks = start(&placer, &seat, &ended);
    while placer.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!(
        "{nodes} nodes: read in {:.2?}, the API server's own time and the Lease included\n",
        begun.elapsed()
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    stream.set_nodelay(true)?;
    let service = Service {
        paths: Paths::All,
        tls: None,
        bounds: Bounds::default(),
    };
    tokio::spawn(serve(placer.clone(), listener, service, ended.clone()));

    let both = [1, 2]
        .into_iter()
        .flat_map(|turn| (0..400.min(nodes)).map(move |number| object(number, turn)));
    let pool: Vec<Value> = both.collect::<anyhow::Result<_>>()?;
    let changing = server.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let mut objects = pool.iter().cycle();
        loop {
            ticks.tick().await;
            for object in objects.by_ref().take((UPDATES / 100) as usize) {
                changing.put("topology.node.k8s.io", "noderesourcetopologies", object.clone());
            }
        }
    });
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number:05}")).collect();
    println!("| a filter call, over a socket | median | 99 % | longest |\n|---|---|---|---|");
    let mut first = Vec::new();
    for shape in 0..SHAPES {
        first.push(ask(&mut stream, &question(shape, &names)).await?);
    }
    tell("of all nodes, the first of its kind", first);
    for (what, rounds, count) in [("of 500 nodes", ROUNDS, SAMPLE), ("of all nodes", LONG_ROUNDS, nodes)] {
        let mut times = Vec::new();
        for round in 0..rounds {
            let from = (round * 37) % (nodes - count.min(nodes) + 1);
            let asked = names.get(from..from + count.min(nodes)).context("names")?;
            times.push(ask(&mut stream, &question(round as u32 % SHAPES, asked)).await?);
        }
        tell(what, times);
    }
    println!(
        "\n{} updates were read meanwhile",
        placer.counts().updates.load(std::sync::atomic::Ordering::Relaxed)
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let nodes = std::env::var("STELIA_NODES").ok();
    let nodes = nodes
        .and_then(|nodes| nodes.split_whitespace().last()?.parse().ok())
        .unwrap_or(10_000);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(measure(nodes))
}
