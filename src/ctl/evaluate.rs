//! `evaluate`: what the allocator would answer, on this node or on one that is only described.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;
use zbus::Variant;

use super::cli::{Command, Json};
use super::client::{Client, Failure};
use super::view;
use crate::alloc::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos};
use crate::dbus::client::Dict;
use crate::kubelet::QosClass;
use crate::node_topology::described;
use crate::plan::evaluate::{Request, ScoringStrategy, Told, evaluate, requests};

/// Ask the daemon.
///
/// # Errors
/// The command line or a file is not understood, or the daemon refuses; [`Failure::Partial`] when a pod does not fit.
pub async fn online(client: &Client<'_>, command: &Command, json: Json, legend: bool) -> Result<String, Failure> {
    let asked = asked(command)?;
    let answers = client.evaluate(asked.iter().map(to_dbus).collect()).await?;
    let told = |answer| {
        serde_json::from_value(Value::Object(view::json_of(answer)))
            .map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))
    };
    let told: Vec<Told> = answers.iter().map(told).collect::<Result<_, _>>()?;
    outcome(&told, json, legend)
}

/// Ask the described node.
///
/// # Errors
/// The command line or a file is not understood, or steliad does not choose the CPUs there; [`Failure::Partial`] when a pod
/// does not fit.
pub fn offline(command: &Command, json: Json, legend: bool) -> Result<String, Failure> {
    let Command::Evaluate {
        node: Some(path),
        requests,
        ..
    } = command
    else {
        return Err(Failure::Usage("--node is missing".to_owned()));
    };
    let stdin = Path::new("-");
    if path == stdin && requests.as_deref() == Some(stdin) {
        return Err(Failure::Usage(
            "--node and --requests cannot both be standard input".to_owned(),
        ));
    }
    let asked = asked(command)?;
    let wrong = |cause: &dyn std::fmt::Display| Failure::Other(format!("{}: {cause}", path.display()));
    let facts = described::read(&text(path, described::MAX_BYTES)?).map_err(|cause| wrong(&cause))?;
    let ground = facts.ground().map_err(|cause| wrong(&cause))?;
    let told: Vec<Told> = evaluate(&ground, &asked).iter().map(Told::from).collect();
    outcome(&told, json, legend)
}

/// What the command line asks about.
fn asked(command: &Command) -> Result<Vec<Request>, Failure> {
    match command {
        Command::Evaluate {
            requests: Some(path), ..
        } => requests(&text(path, 1 << 20)?).map_err(|cause| Failure::Other(format!("{}: {cause}", path.display()))),
        Command::Evaluate {
            pod,
            kubernetes_class,
            scoring_strategy,
            ..
        } => Ok(vec![Request {
            kubernetes_class: *kubernetes_class,
            qos: pod.qos,
            cpus: pod.cpus,
            cpu_limit: pod.cpu_limit,
            cpu_bind_policy: pod.cpu_bind_policy,
            cpu_exclusive_policy: pod.cpu_exclusive_policy,
            numa_allocate_strategy: pod.numa_allocate_strategy,
            numa_topology_alignment_policy: pod.numa_topology_alignment_policy,
            scoring_strategy: scoring_strategy.unwrap_or_default(),
        }]),
        _ => Ok(Vec::new()),
    }
}

/// A file's text, of at most a little more than `most` bytes: who reads it tells that it is too long.
fn text(path: &Path, most: usize) -> Result<String, Failure> {
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.take(most as u64 + 1).read_to_string(&mut text).map(|_| text)
    };
    let text = match path == Path::new("-") {
        true => read(&mut io::stdin().lock()),
        false => File::open(path).and_then(|mut file| read(&mut file)),
    };
    text.map_err(|cause| Failure::Other(format!("read {}: {cause}", path.display())))
}

/// As EvaluatePlacement takes it.
fn to_dbus(request: &Request) -> Dict<'static> {
    let numbers = [("cpus", request.cpus), ("cpu-limit", request.cpu_limit)];
    let texts = [
        ("kubernetes-class", request.kubernetes_class.map(QosClass::name)),
        ("qos", request.qos.map(Qos::name)),
        ("cpu-bind-policy", request.cpu_bind_policy.map(CpuBindPolicy::name)),
        (
            "cpu-exclusive-policy",
            request.cpu_exclusive_policy.map(CpuExclusivePolicy::name),
        ),
        (
            "numa-allocate-strategy",
            request.numa_allocate_strategy.map(NumaAllocateStrategy::name),
        ),
        (
            "numa-topology-alignment-policy",
            request
                .numa_topology_alignment_policy
                .map(NumaTopologyAlignmentPolicy::name),
        ),
        (
            "scoring-strategy",
            Some(ScoringStrategy::name(request.scoring_strategy)),
        ),
    ];
    let numbers = numbers
        .into_iter()
        .filter_map(|(name, value)| Some((name, Variant::from(value?))));
    let texts = texts
        .into_iter()
        .filter_map(|(name, value)| Some((name, Variant::from(value?))));
    numbers.chain(texts).collect()
}

fn outcome(told: &[Told], json: Json, legend: bool) -> Result<String, Failure> {
    let printed = match json.is_on() {
        true => view::to_json(json, &told),
        false => table(told, legend),
    };
    match told.iter().filter(|told| !told.fit).count() {
        0 => Ok(printed),
        unfit => Err(Failure::Partial {
            printed,
            reason: match told.len() {
                1 => "it does not fit".to_owned(),
                all => format!("{unfit} of {all} do not fit"),
            },
        }),
    }
}

fn table(told: &[Told], legend: bool) -> String {
    let row = |(at, told): (usize, &Told)| {
        let cells = match &told.place {
            Some(place) => {
                let nodes: Vec<String> = place.numa_nodes.iter().map(u32::to_string).collect();
                [
                    place.qos.clone(),
                    place.runs_on.clone(),
                    nodes.join(","),
                    place.exclusivity.clone(),
                    format!("{} = {} + {}", place.score, place.score_numa, place.score_cpus),
                    String::new(),
                ]
            }
            None => {
                let why = [&told.error, &told.reason].map(|text| text.as_deref().unwrap_or_default());
                let none = || "-".to_owned();
                [none(), none(), none(), none(), none(), why.join(": ")]
            }
        };
        let fit = if told.fit { "yes" } else { "no" };
        let first = [at.to_string(), fit.to_owned()];
        first
            .into_iter()
            .chain(cells.map(|cell| view::printable(&cell)))
            .collect()
    };
    view::table(
        &[
            "POD",
            "FIT",
            "CLASS",
            "RUNS ON",
            "NUMA",
            "EXCLUSIVE",
            "SCORE = A + B",
            "WHY NOT",
        ],
        told.iter().enumerate().map(row).collect(),
        legend,
        None,
    )
}
