//! What thousands of nodes cost whoever places pods on them: `make bench-placement`.
//!
//! Nodes have 256 CPUs on two NUMA nodes and some 30 VMs each, all different; on half of them kubelet chooses the CPUs, with its
//! Memory Manager, on the others steliad. Twenty kinds of pods are asked about. What is told is CPU time of the one thread that does it, from an
//! extender's JSON to its answer's; there is no socket. It ends with 1 when a bar is missed.
//!
//! | in the environment | |
//! |---|---|
//! | `STELIA_NODES` | other numbers of nodes: `100 1000` |
//! | `STELIA_NODES_PRINT` | set: no bar is held |

mod nodes;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::NodeVerdict;
use stelia_placement_rules::{Cluster, Request};

use nodes::{Dice, KINDS, object, pod};

const NUMBERS: [usize; 3] = [100, 1_000, 10_000];
/// Bars are held with so many.
const MANY: usize = 10_000;
/// All objects, read from JSON.
const SYNC: Duration = Duration::from_secs(10);
/// The first question about a kind of pod, to all nodes.
const FIRST: Duration = Duration::from_secs(1);
/// A question to 500 nodes while objects change, the 99th of 100.
const SOME: Duration = Duration::from_millis(5);
/// A question to all nodes, the same.
const ALL: Duration = Duration::from_millis(25);
/// Pods placed in a second: filtered and prioritized on 500 nodes, reserved, and the node's next object read.
const PODS: f64 = 200.0;
/// Changes of objects in a second.
const UPDATES: f64 = 1_000.0;
/// Resident memory of the whole process, MiB.
const RESIDENT: f64 = 200.0;

/// So many nodes kube-scheduler names in one question: 5 % of 10,000.
const SAMPLE: usize = 500;
const ROUNDS: usize = 1_000;
/// Of questions to all nodes.
const LONG_ROUNDS: usize = 100;
/// Changes in the time between two questions: 1,000 a second, at 200 pods a second; between questions to all nodes 25 ms.
const BETWEEN: usize = 5;
const LONG_BETWEEN: usize = 25;
/// Objects to change nodes to.
const POOL: usize = 400;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Args<'a> {
    pod: Value,
    #[serde(borrow)]
    node_names: Vec<&'a str>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Filtered<'a> {
    node_names: Vec<&'a str>,
    failed_nodes: HashMap<&'a str, &'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Priority<'a> {
    host: &'a str,
    score: u16,
}

struct Figures {
    nodes: usize,
    states: usize,
    sync: Duration,
    first: Duration,
    some: Duration,
    all: Duration,
    pods: f64,
    updates: f64,
    resident: f64,
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let before = now();
    let done = act();
    (done, now().saturating_sub(before))
}

fn resident() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("VmRSS")?
        .parse()?;
    Ok(kib / 1024.0)
}

/// An extender's question and answer, from text to text. What is chosen is the best node.
fn filter<'a>(cluster: &mut Cluster, question: &'a str) -> anyhow::Result<(String, Option<&'a str>)> {
    let args: Args<'a> = serde_json::from_str(question)?;
    let request = cluster.request(Request::of_pod(&args.pod, Default::default())?);
    let mut answer = Filtered::default();
    let mut best: Option<(u16, &str)> = None;
    cluster.verdicts(
        &request,
        args.node_names.iter().copied(),
        |name, verdict| match verdict {
            NodeVerdict::Fits(total) => {
                answer.node_names.push(name);
                if best.is_none_or(|(most, _)| total > most) {
                    best = Some((total, name));
                }
            }
            NodeVerdict::Refused(reason) => {
                answer.failed_nodes.insert(name, reason);
            }
        },
    );
    Ok((serde_json::to_string(&answer)?, best.map(|(_, name)| name)))
}

fn prioritize(cluster: &mut Cluster, question: &str) -> anyhow::Result<String> {
    let args: Args<'_> = serde_json::from_str(question)?;
    let request = cluster.request(Request::of_pod(&args.pod, Default::default())?);
    let mut answer = Vec::new();
    cluster.verdicts(&request, args.node_names.iter().copied(), |host, verdict| {
        if let NodeVerdict::Fits(total) = verdict {
            let score = stelia_placement_rules::score::priority(total);
            answer.push(Priority { host, score });
        }
    });
    Ok(serde_json::to_string(&answer)?)
}

fn question(kind: usize, names: &[String]) -> String {
    json!({"Pod": pod(kind), "Nodes": null, "NodeNames": names}).to_string()
}

fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}

fn run(nodes: usize) -> anyhow::Result<Figures> {
    let mut dice = Dice(nodes as u64);
    let names: Vec<String> = (0..nodes)
        .map(|number| format!("worker-{number:05}.example.com"))
        .collect();
    let mut cluster = Cluster::default();
    let mut sync = Duration::ZERO;
    for (number, name) in names.iter().enumerate() {
        let text = object(name, &mut dice, number % 2 == 0);
        let (put, took) = timed(|| cluster.put(name, text.as_bytes()));
        put?;
        sync += took;
    }
    let pool: Vec<String> = (0..POOL)
        .map(|number| object("changed", &mut dice, number % 2 == 0))
        .collect();
    let (mut updated, mut updating) = (0u32, Duration::ZERO);
    let mut change = |cluster: &mut Cluster, dice: &mut Dice, count: usize| -> anyhow::Result<()> {
        for _ in 0..count {
            let node = dice.below(nodes);
            // Of the same kind.
            let text = &pool[dice.below(POOL / 2) * 2 + node % 2];
            let (put, took) = timed(|| cluster.put(&names[node], text.as_bytes()));
            put?;
            updated += 1;
            updating += took;
        }
        Ok(())
    };

    let states = cluster.variety().0;
    let mut first = Duration::ZERO;
    let mut wholes = Vec::new();
    for kind in 0..KINDS {
        let whole = question(kind, &names);
        let (answer, took) = timed(|| filter(&mut cluster, &whole));
        answer?;
        first = first.max(took);
        wholes.push(whole);
    }
    let mut all = Vec::new();
    for round in 0..LONG_ROUNDS {
        change(&mut cluster, &mut dice, LONG_BETWEEN.min(nodes / 10))?;
        let (answer, took) = timed(|| filter(&mut cluster, &wholes[round % KINDS]));
        answer?;
        all.push(took);
    }
    let (mut some, mut placed, mut placing) = (Vec::new(), 0u32, Duration::ZERO);
    for round in 0..ROUNDS {
        change(&mut cluster, &mut dice, BETWEEN)?;
        let from = dice.below(nodes);
        let named: Vec<String> = names
            .iter()
            .cycle()
            .skip(from)
            .take(SAMPLE.min(nodes))
            .cloned()
            .collect();
        let asked = question(round % KINDS, &named);
        let (answer, filtering) = timed(|| filter(&mut cluster, &asked));
        let (_, best) = answer?;
        some.push(filtering);
        let Some(best) = best else { continue };
        let uid = Uid(round as u128 + 1);
        let node = names
            .binary_search_by(|name| name.as_str().cmp(best))
            .unwrap_or_default();
        let text = &pool[dice.below(POOL / 2) * 2 + node % 2];
        let (done, took) = timed(|| -> anyhow::Result<()> {
            prioritize(&mut cluster, &asked)?;
            let request = cluster.request(Request::of_pod(&pod(round % KINDS), Default::default())?);
            cluster.reserve(best, uid, &request).context("reserve")?;
            cluster.put(best, text.as_bytes())?;
            cluster.release(best, uid);
            Ok(())
        });
        done?;
        placed += 1;
        placing += filtering + took;
    }
    Ok(Figures {
        nodes,
        states,
        sync,
        first,
        some: p99(some),
        all: p99(all),
        pods: f64::from(placed) / placing.as_secs_f64(),
        updates: f64::from(updated) / updating.as_secs_f64(),
        resident: resident()?,
    })
}

fn missed(figures: &Figures) -> Vec<String> {
    let mut missed = Vec::new();
    let times = [
        ("sync", figures.sync, SYNC),
        ("the first question", figures.first, FIRST),
        ("500 names", figures.some, SOME),
        ("all names", figures.all, ALL),
    ];
    for (what, found, bar) in times {
        if found > bar {
            missed.push(format!("{what}: {found:.1?}, the bar is {bar:?}"));
        }
    }
    for (what, found, bar) in [
        ("pods a second", figures.pods, PODS),
        ("updates a second", figures.updates, UPDATES),
    ] {
        if found < bar {
            missed.push(format!("{what}: {found:.0}, the bar is {bar}"));
        }
    }
    if figures.resident > RESIDENT {
        missed.push(format!("resident: {:.0} MiB, the bar is {RESIDENT}", figures.resident));
    }
    missed
}

fn main() -> anyhow::Result<()> {
    let numbers = match std::env::var("STELIA_NODES") {
        Ok(text) => text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<usize>, _>>()?,
        Err(_) => NUMBERS.to_vec(),
    };
    println!(
        "{:>6} {:>7} {:>9} {:>9} {:>10} {:>10} {:>8} {:>9} {:>8}",
        "nodes", "states", "sync", "first", "500 names", "all names", "pods/s", "updates/s", "MiB"
    );
    let mut wrong = Vec::new();
    for nodes in numbers {
        let figures = run(nodes)?;
        println!(
            "{:>6} {:>7} {:>9.1?} {:>9.1?} {:>10.1?} {:>10.1?} {:>8.0} {:>9.0} {:>8.1}",
            figures.nodes,
            figures.states,
            figures.sync,
            figures.first,
            figures.some,
            figures.all,
            figures.pods,
            figures.updates,
            figures.resident
        );
        if nodes >= MANY {
            wrong.extend(missed(&figures));
        }
    }
    if std::env::var_os("STELIA_NODES_PRINT").is_none() && !wrong.is_empty() {
        anyhow::bail!("{}", wrong.join("; "));
    }
    Ok(())
}
