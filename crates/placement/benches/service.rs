//! The same questions as in `placement`, over a socket: the whole program with an API server in memory beside it, in one process, while
//! objects change. `make bench-placement` runs both. What is told is the time on the wall, so it says something on an idle machine
//! only: the least and the median are told beside what the bars are on. It ends with 1 where an answer is wrong, or a bar is missed.
//!
//! No two nodes are in the same state, and an update gives a node another one, so all that was known of it is asked anew.
//!
//! | in the environment | |
//! |---|---|
//! | `STELIA_NODES` | another number of nodes than 10,000; no bar is held |
//! | `STELIA_NODES_PRINT` | set: no bar is held |

mod nodes;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Client;
use serde_json::{Value, json};
use stelia_placement::apiserver::Api;
use stelia_placement::apiserver::lease::Seat;
use stelia_placement::extender::{Bounds, Paths, Service, serve};
use stelia_placement::placer::{Options, Placer};
use stelia_placement::run::start;
use stelia_placement::testing::uid;
use test_apiserver::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use nodes::{Dice, KINDS, object, pod};

/// Bars are held with so many nodes.
const MANY: usize = 10_000;
/// A question to 500 nodes, the 99th of 100.
const SOME: Duration = Duration::from_millis(5);
/// A question to all nodes, the same.
const ALL: Duration = Duration::from_millis(25);
/// Names in a question: what kube-scheduler offers of 10,000 nodes by itself, and all.
const SAMPLE: usize = 500;
const ROUNDS: usize = 400;
const LONG_ROUNDS: usize = 100;
/// Objects that change in a second.
const UPDATES: usize = 1_000;
/// Nodes that change, one after the other, and those the second time anew.
const CHANGING: usize = 2_000;

/// A node's object; the same number and turn, the same object.
fn node(number: usize, turn: usize) -> anyhow::Result<Value> {
    let mut dice = Dice((number as u64) << 16 | turn as u64);
    let text = object(&format!("node-{number:05}"), &mut dice, number.is_multiple_of(2));
    Ok(serde_json::from_str(&text)?)
}

fn question(kind: usize, names: &[String]) -> String {
    let mut pod = pod(kind);
    pod["metadata"]["uid"] = uid(kind as u128).as_str().into();
    pod["metadata"]["resourceVersion"] = "1".into();
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

/// Prints a row; the 99th of 100.
fn tell(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let at = |percent: usize| {
        times
            .get((times.len() * percent).div_ceil(100).saturating_sub(1))
            .copied()
            .unwrap_or_default()
    };
    println!(
        "| {what} | {:.2?} | {:.2?} | {:.2?} | {:.2?} |",
        at(0),
        at(50),
        at(99),
        at(100)
    );
    at(99)
}

async fn measure(nodes: usize) -> anyhow::Result<()> {
    let server = Server::with_topologies()?;
    let claims = include_str!("../../../packaging/kubernetes/cluster/placement/base/crd.yaml");
    server.define_yaml(claims)?;
    for number in 0..nodes {
        server.put("topology.node.k8s.io", "noderesourcetopologies", node(number, 0)?);
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
    let read = placer.counts().updates.load(std::sync::atomic::Ordering::Relaxed);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut stream = TcpStream::connect(listener.local_addr()?).await?;
    stream.set_nodelay(true)?;
    let service = Service {
        paths: Paths::All,
        tls: None,
        bounds: Bounds::default(),
    };
    tokio::spawn(serve(placer.clone(), listener, service, ended.clone()));

    let apart = (nodes / CHANGING).max(1);
    let both = [1, 2]
        .into_iter()
        .flat_map(|turn| (0..nodes).step_by(apart).map(move |number| node(number, turn)));
    let pool: Vec<Value> = both.collect::<anyhow::Result<_>>()?;
    let changing = server.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let mut objects = pool.iter().cycle();
        loop {
            ticks.tick().await;
            for object in objects.by_ref().take(UPDATES / 100) {
                changing.put("topology.node.k8s.io", "noderesourcetopologies", object.clone());
            }
        }
    });
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number:05}")).collect();
    println!("| a filter call, over a socket | least | median | 99 % | longest |\n|---|---|---|---|---|");
    let mut first = Vec::new();
    for shape in 0..KINDS {
        first.push(ask(&mut stream, &question(shape, &names)).await?);
    }
    tell("of all nodes, the first of its kind", first);
    let mut missed = Vec::new();
    for (what, rounds, count, bar) in [
        ("of 500 nodes", ROUNDS, SAMPLE, SOME),
        ("of all nodes", LONG_ROUNDS, nodes, ALL),
    ] {
        let mut times = Vec::new();
        for round in 0..rounds {
            let from = (round * 37) % (nodes - count.min(nodes) + 1);
            let asked = names.get(from..from + count.min(nodes)).context("names")?;
            times.push(ask(&mut stream, &question(round % KINDS, asked)).await?);
        }
        let found = tell(what, times);
        if found > bar {
            missed.push(format!("a call {what}: {found:.1?}, the bar is {bar:?}"));
        }
    }
    println!(
        "\n{} updates were read meanwhile",
        placer.counts().updates.load(std::sync::atomic::Ordering::Relaxed) - read
    );
    if nodes >= MANY && std::env::var_os("STELIA_NODES_PRINT").is_none() && !missed.is_empty() {
        bail!("{}", missed.join("; "));
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let nodes = std::env::var("STELIA_NODES").ok();
    let nodes = nodes
        .and_then(|nodes| nodes.split_whitespace().last()?.parse().ok())
        .unwrap_or(MANY);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(measure(nodes))
}
