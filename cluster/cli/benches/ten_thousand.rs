//! `nodes`, `why` and `plan` for 10,000 nodes of 256 CPUs, from what kubectl would print: how long, and how much memory. A copy of the
//! dump is written where an argument that is a path says.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fmt::Write;
use std::time::Instant;

use stelia_cluster::cluster::{Chosen, Cluster};
use stelia_cluster::nodes::Nodes;
use stelia_cluster::objects::Objects;
use stelia_cluster::plan::Plan;
use stelia_cluster::pod_request::PodRequest;
use stelia_cluster::why::WhyAnswer;
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::large;
use stelia_koordinator::report::{ApiVersion, Facts};

const NODES: usize = 10_000;

/// A node that differs from the others in which of its 32 VMs are there.
fn facts(number: usize) -> Facts {
    let mut facts = large();
    facts.name = format!("worker-{number:05}");
    let mut bits = (number as u32).wrapping_mul(0x9e37_79b1) | 1;
    facts.allocations.retain(|_| {
        bits = bits.rotate_left(7).wrapping_mul(0x85eb_ca6b);
        !bits.is_multiple_of(4)
    });
    facts.exclusive = facts.allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    facts.shared = facts.topology.online().difference(&facts.exclusive);
    let exclusive = facts.exclusive.clone();
    match &mut facts.allocator {
        Some(allocator) if number.is_multiple_of(2) => allocator.held.pcpu_level = exclusive,
        _ => facts.allocator = None,
    }
    facts
}

fn dump() -> String {
    let mut text = String::from("{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[");
    for number in 0..NODES {
        let object = object(&facts(number), Profile::Stelia, ApiVersion::V1Alpha2, Method::default());
        let comma = if number == 0 { "" } else { "," };
        write!(text, "{comma}{}", serde_json::to_string(&object).expect("JSON")).expect("memory");
    }
    text + "]}"
}

fn status(name: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or("not known").trim().to_owned()
}

fn main() {
    let text = dump();
    if let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with("--")) {
        std::fs::write(path, &text).expect("a file");
    }
    println!(
        "{NODES} nodes, {} MB of objects; before reading: {} resident",
        text.len() >> 20,
        status("VmRSS:")
    );
    let start = Instant::now();
    let mut objects = Objects::new(false);
    objects.read("dump", &text);
    assert_eq!((objects.reports.len(), objects.problems.stored().len()), (NODES, 0));
    println!("read: {:.2?}, {} resident", start.elapsed(), status("VmRSS:"));
    let cluster = Cluster::of(objects, &Chosen::default()).expect("a cluster");
    let start = Instant::now();
    let nodes = Nodes::of(&cluster, 0);
    println!("nodes: {:.2?}, {} at most", start.elapsed(), status("VmHWM:"));
    assert!(nodes.nodes.iter().all(|row| row.largest_vm_cpus.is_some()));
    let pod_request = |cpus: u32| {
        let words = [format!("cpus={cpus},memory=1Gi")];
        PodRequest::in_words(&words, &AllocationRequest::default()).expect("a pod")
    };
    let start = Instant::now();
    let why = WhyAnswer::of(&pod_request(120), &cluster);
    println!(
        "why: {:.2?}, {} of {} nodes have room",
        start.elapsed(),
        why.room,
        why.asked
    );
    let start = Instant::now();
    let plan = Plan::of(&pod_request(8), &cluster, true);
    println!(
        "plan --until-full: {:.2?}, {} fit; {} at most",
        start.elapsed(),
        plan.fits,
        status("VmHWM:")
    );
    assert!(plan.fits > 0);
    let most = status("VmHWM:");
    let kilobytes: u64 = most.trim_end_matches(" kB").parse().expect("a number of kB");
    assert!(kilobytes < 400_000, "{most}");
}
