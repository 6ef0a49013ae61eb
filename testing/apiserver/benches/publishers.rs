//! What 10,000 publishers ask of an API server, held to bars: at their start, while nothing changes, while VMs come and go, and after an
//! outage of an hour. All in one process, against the server in memory, by a clock that is moved on. And how much memory one publisher's
//! program takes, by the real clock.
//!
//! `make bench-publishers` runs it; `STELIA_NODES=n` are other numbers of nodes, `STELIA_PRINT=1` holds no bars.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/shared/mod.rs"]
mod shared;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kube::Client;
use serde_json::json;
use shared::process::Process;
use shared::publishers::{self, Running, free_cpus, told};
use stelia_api::publication::Publication;
use stelia_publish::PublishOptions;
use test_apiserver::{LoggedRequest, Server};
use tokio::time::{Instant, sleep, sleep_until};

const GROUP: &str = "topology.node.k8s.io";
const OBJECTS: &str = "noderesourcetopologies";
const HOUR: Duration = Duration::from_secs(3600);
/// VMs that start on a node in a day; as many end. A node of 32 VMs whose VMs live for a day.
const STARTS_A_DAY: u64 = 32;
/// What a VM's start is to the daemon's file: CPUs are taken, the VM is attached, it is isolated.
const STEPS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(150), Duration::from_millis(900)];

/// Bars: what one node may cost, so that they hold for any number of nodes.
struct Bars {
    /// Requests a second and node in the busiest second of a start: all of them within a minute are 0.033.
    start: f64,
    /// The same while nothing changes.
    idle: f64,
    /// While VMs start and end.
    vms: f64,
    /// In the busiest second of and after an outage.
    outage: f64,
}

const BARS: Bars = Bars {
    start: 0.045,
    idle: 0.01,
    vms: 0.01,
    outage: 0.02,
};
/// KiB.
const MEMORY: u64 = 12 << 10;

fn main() {
    let nodes = std::env::var("STELIA_NODES").map_or(10_000, |text| text.parse().expect("STELIA_NODES is a number"));
    let held = std::env::var_os("STELIA_PRINT").is_none();
    let mut table = Table {
        nodes,
        missed: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(simulate(&mut table));
    if let Some(program) = std::env::var_os("STELIA_PUBLISH") {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(memory(Path::new(&program)));
    } else {
        println!("the program's memory is measured with STELIA_PUBLISH=program");
    }
    assert!(table.missed.is_empty() || !held, "{}", table.missed.join("\n"));
}

struct Table {
    nodes: u64,
    missed: Vec<String>,
}

/// What was asked in a while.
struct Load {
    requests: u64,
    unanswered: u64,
    objects: u64,
    /// In the busiest second.
    peak: u64,
    received: u64,
    sent: u64,
    /// Requests for an object that were answered, by node.
    by_node: BTreeMap<String, u64>,
}

impl Load {
    fn of(asked: &[LoggedRequest]) -> Self {
        let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
        let mut load = Self {
            requests: asked.len() as u64,
            unanswered: 0,
            objects: 0,
            peak: 0,
            received: 0,
            sent: 0,
            by_node: BTreeMap::new(),
        };
        for one in asked {
            *seconds.entry(one.at.as_secs()).or_default() += 1;
            load.unanswered += u64::from(one.code == 0);
            load.received += one.bytes.0 as u64;
            load.sent += one.bytes.1 as u64;
            if one.resource == OBJECTS && one.code != 0 {
                load.objects += 1;
                *load.by_node.entry(one.name.clone()).or_default() += 1;
            }
        }
        load.peak = seconds.values().copied().max().unwrap_or_default();
        load
    }
}

impl Table {
    fn row(&mut self, what: &str, time: Duration, load: &Load, bar: f64) {
        // Of few nodes more may meet in a second by chance.
        let bar = bar * self.nodes as f64 + 10.0;
        let seconds = time.as_secs_f64();
        println!(
            "{what:<42} {:>9} requests ({:>6} unanswered, {:>6} for objects) {:>7.1}/s, at most {:>5}/s (bar {:>5.0}), {:>7.1} MB in, {:>7.1} MB out",
            load.requests,
            load.unanswered,
            load.objects,
            load.requests as f64 / seconds,
            load.peak,
            bar,
            load.received as f64 / 1e6,
            load.sent as f64 / 1e6,
        );
        self.hold(what, "requests in the busiest second", load.peak as f64, bar);
    }

    fn hold(&mut self, what: &str, figure: &str, is: f64, bar: f64) {
        if is > bar {
            self.missed.push(format!("{what}: {figure}: {is}, above {bar}"));
        }
    }
}

async fn simulate(table: &mut Table) {
    let server = Server::default();
    let names: Vec<String> = (0..table.nodes).map(|number| format!("worker-{number:05}")).collect();
    for name in &names {
        server.put(
            "",
            "nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}),
        );
    }
    let client = Client::new(server.clone(), "default");
    let like = publishers::node();
    let wall = std::time::Instant::now();
    server.asked();

    let running: Vec<Running> = names
        .iter()
        .map(|name| Running::new(client.clone(), PublishOptions::new(name), told(&like, name, 0)))
        .collect();
    sleep(Duration::from_secs(120)).await;
    let load = Load::of(&server.asked());
    table.row("all start at once, 2 min", Duration::from_secs(120), &load, BARS.start);
    assert_eq!(load.by_node.len() as u64, table.nodes);
    converged(&server, &names, |_| 0);

    sleep(2 * HOUR).await;
    let load = Load::of(&server.asked());
    table.row("nothing changes, 2 h", 2 * HOUR, &load, BARS.idle);
    let looks = load.requests as f64 / table.nodes as f64 / 4.0;
    let written = changes(&server);
    println!(
        "{:<42} {looks:>9.2} requests a node in half an hour, {written} objects changed",
        ""
    );
    table.hold("nothing changes", "objects changed", written as f64, 0.0);
    table.hold("nothing changes", "requests a node in half an hour", looks, 2.3);

    let told_of = Telling {
        like: &like,
        names: &names,
        running: &running,
    };
    let changed = told_of.an_hour_of_vms(1).await;
    let load = Load::of(&server.asked());
    table.row("VMs start and end, 1 h", HOUR, &load, BARS.vms);
    let (written, day) = (changes(&server), 24.0 / 1e6);
    println!(
        "{:<42} {changed:>9} changes, {written} writes that changed an object; in a day {:.0} MB in, {:.0} MB out",
        "",
        load.received as f64 * day,
        load.sent as f64 * day
    );
    table.hold("VMs start and end", "writes", written as f64, changed as f64);

    server.down(HOUR);
    told_of.an_hour_of_vms(2).await;
    let load = Load::of(&server.asked());
    table.row("the API server away, 1 h", HOUR, &load, BARS.outage);
    // The longest pause is five minutes.
    sleep(Duration::from_secs(360)).await;
    let load = Load::of(&server.asked());
    table.row("and back, 6 min", Duration::from_secs(360), &load, BARS.outage);
    let most = load.by_node.values().copied().max().unwrap_or_default();
    println!(
        "{:<42} {:>9} nodes wrote, at most {most} requests for one object",
        "",
        load.by_node.len()
    );
    table.hold("after an outage", "requests for one object", most as f64, 1.0);
    converged(&server, &names, |number| told_of.free(number, 2));
    println!("{:<42} {:>9.0} s of real time", "", wall.elapsed().as_secs_f64());
}

/// How often all objects were changed since they were made.
fn changes(server: &Server) -> u64 {
    let objects = server.objects(GROUP, OBJECTS);
    let generations = objects
        .iter()
        .filter_map(|object| object["metadata"]["generation"].as_u64());
    generations.map(|generation| generation - 1).sum()
}

fn converged(server: &Server, names: &[String], free: impl Fn(u64) -> u64) {
    for (number, name) in names.iter().enumerate() {
        let mut object = server
            .object(GROUP, OBJECTS, "", name)
            .expect("every node has its object");
        assert_eq!(*free_cpus(&mut object), free(number as u64).to_string().as_str());
    }
}

struct Telling<'a> {
    like: &'a Publication,
    names: &'a [String],
    running: &'a [Running],
}

impl Telling<'_> {
    /// Starts and ends of VMs in an hour, evenly spread over nodes and time; returns how many changes of objects that were.
    async fn an_hour_of_vms(&self, round: u64) -> u64 {
        let begun = Instant::now();
        let nodes = self.names.len() as u64;
        let all = nodes * STARTS_A_DAY * 2 / 24;
        let every = HOUR.div_f64(all as f64);
        let (mut due, mut changed) = (Vec::new(), 0);
        for number in 0..all {
            // A step of a large odd number visits all nodes.
            let node = number * 7919 % nodes;
            let starts = (number / nodes.max(1)).is_multiple_of(2);
            let at = every * u32::try_from(number).expect("fewer VMs than that");
            // An end is one step; of a start the first one takes the CPUs, the others change pods and no object.
            let steps = if starts { &STEPS[..] } else { &STEPS[..1] };
            due.extend(
                steps
                    .iter()
                    .enumerate()
                    .map(|(step, later)| (at + *later, node, number, step)),
            );
            changed += 1;
        }
        due.sort_unstable();
        for (at, node, number, step) in due {
            sleep_until(begun + at).await;
            let mut publication = told(
                self.like,
                &self.names[node as usize],
                self.value(node, number, all, round),
            );
            publication.pods[0].message = format!("step {step}");
            self.running[node as usize].tell(publication);
        }
        sleep_until(begun + HOUR).await;
        changed
    }

    /// The last change of a node in a round has the value that [`Telling::free`] names.
    fn value(&self, node: u64, number: u64, all: u64, round: u64) -> u64 {
        let nodes = self.names.len() as u64;
        let is_last = number + nodes >= all && number * 7919 % nodes == node;
        if is_last {
            self.free(node, round)
        } else {
            1_000_000 * round + 100 + number
        }
    }

    fn free(&self, node: u64, round: u64) -> u64 {
        1_000_000 * round + node % 97
    }
}

async fn memory(program: &Path) {
    let server = Server::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(test_apiserver::serve(server.clone(), listener));
    server.put(
        "",
        "nodes",
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}}),
    );
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {}}],
    });
    let like = publishers::node();
    let process = Process::start(program, &kubeconfig.to_string(), &told(&like, "worker-1", 0));
    for free in 0..20 {
        process.tell(&told(&like, "worker-1", free));
        loop {
            let object = server.object(GROUP, OBJECTS, "", "worker-1");
            if object.is_some_and(|mut object| *free_cpus(&mut object) == free.to_string().as_str()) {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    process.hold_to(MEMORY, "of a node of 256 CPUs and 32 VMs, without TLS, after 20 writes");
}
