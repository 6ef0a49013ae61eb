//! The same questions as in `placement`, over a socket: the whole program, while objects change. The API server in memory has a thread of its
//! own, as has whoever asks; the program has the rest of the machine, so that two CPUs are needed. `make bench-placement` runs both. What
//! is told is the time on the wall, so it says something on an idle machine only: the least and the median are told beside what the bars
//! are on. It ends with 1 where an answer is wrong, or a bar is missed.
//!
//! No two nodes are in the same state, and an update gives a node another one, so all that was known of it is asked anew.
//!
//! | in the environment | |
//! |---|---|
//! | `STELIA_NODES` | another number of nodes than 10,000; no bar is held |
//! | `STELIA_NODES_PRINT` | set: no bar is held |

mod nodes;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Client;
use serde_json::{Value, json};
use stelia_placement::apiserver::Api;
use stelia_placement::apiserver::lease::LeaseClaim;
use stelia_placement::extender::{Bounds, Paths, Service, serve};
use stelia_placement::placer::{Placer, PlacerOptions};
use stelia_placement::run::start;
use stelia_placement_rules::testing::uid;
use test_apiserver::Server;
use tokio::net::TcpListener;
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
fn ask(stream: &mut TcpStream, question: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    stream.write_all(question.as_bytes())?;
    let (mut read, mut buffer) = (Vec::with_capacity(1 << 20), vec![0; 1 << 16]);
    loop {
        let count = stream.read(&mut buffer)?;
        read.extend_from_slice(&buffer[..count]);
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

/// The API server, in a thread of its own for as long as the process lives; its address. Objects change once it is told so.
fn apiserver(nodes: usize, changes: Arc<AtomicBool>) -> anyhow::Result<SocketAddr> {
    let server = Server::default();
    for number in 0..nodes {
        server.put("topology.node.k8s.io", "noderesourcetopologies", node(number, 0)?);
    }
    let apart = (nodes / CHANGING).max(1);
    let both = [1, 2]
        .into_iter()
        .flat_map(|turn| (0..nodes).step_by(apart).map(move |number| node(number, turn)));
    let pool: Vec<Value> = both.collect::<anyhow::Result<_>>()?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async move {
            let changing = server.clone();
            tokio::spawn(async move {
                let mut ticks = tokio::time::interval(Duration::from_millis(10));
                let mut objects = pool.iter().cycle();
                loop {
                    ticks.tick().await;
                    if changes.load(Ordering::Relaxed) {
                        for object in objects.by_ref().take(UPDATES / 100) {
                            changing.put("topology.node.k8s.io", "noderesourcetopologies", object.clone());
                        }
                    }
                }
            });
            test_apiserver::serve(server, TcpListener::from_std(listener)?).await
        })
    });
    Ok(address)
}

/// The program, as it starts itself, and where it listens.
async fn program(apiserver: SocketAddr, ended: &CancellationToken) -> anyhow::Result<(Arc<Placer>, SocketAddr)> {
    let mut config = kube::Config::new(format!("http://{apiserver}").parse()?);
    config.root_cert = Some(Vec::new());
    let api = Api::new(Client::try_from(config)?);
    let placer = Placer::new(api, PlacerOptions::default());
    let lease_claim = LeaseClaim {
        namespace: "default".to_owned(),
        name: "one".to_owned(),
        identity: "one".to_owned(),
    };
    drop(start(&placer, &lease_claim, ended));
    while placer.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = Service {
        paths: Paths::All,
        tls: None,
        bounds: Bounds::default(),
    };
    tokio::spawn(serve(placer.clone(), listener, service, ended.clone()));
    Ok((placer, address))
}

fn measure(nodes: usize) -> anyhow::Result<()> {
    let changes = Arc::new(AtomicBool::new(false));
    let apiserver = apiserver(nodes, Arc::clone(&changes))?;
    // As the program's own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (begun, ended) = (Instant::now(), CancellationToken::new());
    let (placer, address) = runtime.block_on(program(apiserver, &ended))?;
    println!(
        "{nodes} nodes: read in {:.2?}, the API server's own time and the Lease included\n",
        begun.elapsed()
    );
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let read = placer.counts().updates.load(Ordering::Relaxed);
    changes.store(true, Ordering::Relaxed);
    let since = Instant::now();
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number:05}")).collect();
    println!("| a filter call, over a socket | least | median | 99 % | longest |\n|---|---|---|---|---|");
    let mut first = Vec::new();
    for shape in 0..KINDS {
        first.push(ask(&mut stream, &question(shape, &names))?);
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
            times.push(ask(&mut stream, &question(round % KINDS, asked))?);
        }
        let found = tell(what, times);
        if found > bar {
            missed.push(format!("a call {what}: {found:.1?}, the bar is {bar:?}"));
        }
    }
    let read = placer.counts().updates.load(Ordering::Relaxed) - read;
    println!(
        "\n{read} updates were read meanwhile, {:.0} in a second",
        read as f64 / since.elapsed().as_secs_f64()
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
    measure(nodes)
}
