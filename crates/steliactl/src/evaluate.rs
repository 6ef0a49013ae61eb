//! `evaluate`: what the allocator would answer, on this node or on a described one.

use std::path::Path;

use serde_json::Value;
use stelia_allocator::evaluate::{Answer, Request, SchedulerOptions, evaluate, requests};
use stelia_api::client::OwnedDict;
use stelia_api::dict::{borrowed, to_dict};
use stelia_node_report::described;

use super::cli::{Command, Json};
use super::client::{Client, Failure};
use super::input::text;
use super::view;

/// Asks the daemon.
///
/// # Errors
/// The command line or a file is not understood, or the daemon refuses; [`Failure::Partial`] when a pod does not fit.
pub(crate) async fn online(client: &Client, command: &Command, json: Json, legend: bool) -> Result<String, Failure> {
    let asked = asked(command)?;
    let asked = asked.iter().map(to_dict).collect::<Result<Vec<OwnedDict>, _>>();
    let asked = asked.map_err(|cause| Failure::Other(cause.to_string()))?;
    let answers = client.evaluate(asked.iter().map(borrowed).collect()).await?;
    let read = |answer| {
        serde_json::from_value(Value::Object(view::json_of(answer)))
            .map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))
    };
    let answers: Vec<Answer> = answers.iter().map(read).collect::<Result<_, _>>()?;
    outcome(&answers, json, legend)
}

/// Runs the allocator on the described node.
///
/// # Errors
/// The command line or a file is not understood, or steliad does not choose the CPUs there; [`Failure::Partial`] when a pod
/// does not fit.
pub(crate) fn offline(command: &Command, json: Json, legend: bool) -> Result<String, Failure> {
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
    let node = facts.allocator_node().map_err(|cause| wrong(&cause))?;
    let answers: Vec<Answer> = evaluate(&node, &asked).into_iter().map(Answer::from).collect();
    outcome(&answers, json, legend)
}

/// The requests of the command line.
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
            allocation: pod.clone(),
            options: SchedulerOptions {
                kubernetes_class: *kubernetes_class,
                scoring_strategy: scoring_strategy.unwrap_or_default(),
            },
        }]),
        _ => Ok(Vec::new()),
    }
}

fn outcome(answers: &[Answer], json: Json, legend: bool) -> Result<String, Failure> {
    let printed = match json.is_on() {
        true => view::to_json(json, &answers),
        false => table(answers, legend),
    };
    match answers.iter().filter(|answer| !answer.fit).count() {
        0 => Ok(printed),
        unfit => Err(Failure::Partial {
            printed,
            reason: match answers.len() {
                1 => "it does not fit".to_owned(),
                all => format!("{unfit} of {all} do not fit"),
            },
        }),
    }
}

fn table(answers: &[Answer], legend: bool) -> String {
    let row = |(at, answer): (usize, &Answer)| {
        let cells = match &answer.place {
            Some(place) => {
                let nodes: Vec<String> = place.numa_nodes.iter().map(u32::to_string).collect();
                [
                    place.qos.name().to_owned(),
                    place.runs_on.to_string(),
                    nodes.join(","),
                    place.exclusivity.name().to_owned(),
                    format!("{} = {} + {}", place.score.sum, place.score.numa, place.score.cpus),
                    String::new(),
                ]
            }
            None => {
                let why = [&answer.error, &answer.reason].map(|text| text.as_deref().unwrap_or_default());
                let none = || "-".to_owned();
                [none(), none(), none(), none(), none(), why.join(": ")]
            }
        };
        let fit = if answer.fit { "yes" } else { "no" };
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
        answers.iter().enumerate().map(row).collect(),
        legend,
        None,
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;
    use stelia_allocator::{AllocatorPolicies, CpuSource, HeldCpus};
    use stelia_cpus::CpuSet;
    use stelia_node_report::testing::facts;
    use stelia_node_report::{Allocator, ApiVersion, Facts, report};

    use super::*;
    use crate::cli::Cli;

    /// What `words` print for a described node of eight CPUs of which 1 and 6-7 are free: `NODE` is replaced by the
    /// file's path.
    fn asked_of(allocator: bool, requests: &str, words: &[&str]) -> Result<String, Failure> {
        let reserved: CpuSet = "0".parse().unwrap();
        let policies = AllocatorPolicies {
            source: CpuSource::Steliad,
            reserved: reserved.clone(),
            ..AllocatorPolicies::default()
        };
        let allocator = allocator.then(|| Allocator {
            policies,
            held: HeldCpus::default(),
            lsr: CpuSet::new(),
        });
        let facts = Facts { allocator, ..facts() };
        let file = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file
        };
        let node = file(&serde_json::to_string(&report(&facts, ApiVersion::V1Alpha1)).unwrap());
        let list = file(requests);
        let word = |word: &&str| match *word {
            "NODE" => node.path().display().to_string(),
            "LIST" => list.path().display().to_string(),
            word => word.to_owned(),
        };
        let line = ["steliactl", "evaluate"]
            .map(str::to_owned)
            .into_iter()
            .chain(words.iter().map(word));
        let cli = Cli::try_parse_from(line).map_err(|cause| Failure::Usage(cause.to_string()))?;
        offline(&cli.command, cli.json, !cli.no_legend)
    }

    #[test]
    fn a_pod_that_fits_is_told_its_cpus_and_its_score() {
        let words = [
            "--node",
            "NODE",
            "--cpus",
            "2",
            "--numa-topology-alignment-policy",
            "SingleNUMANode",
        ];
        let text = asked_of(true, "", &words).unwrap();
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            ["0", "yes", "LSE", "6-7", "1", "not-asked", "150", "=", "100", "+", "50"],
            "{text}"
        );
        let least = [&words[..], &["--scoring-strategy", "LeastAllocated", "--json=short"]].concat();
        let told: Value = serde_json::from_str(&asked_of(true, "", &least).unwrap()).unwrap();
        assert_eq!((&told[0]["score"], &told[0]["aligned"]), (&50.into(), &true.into()));
    }

    #[test]
    fn pods_that_do_not_fit_are_told_why_and_fail_the_command() {
        let list = r#"[{"cpus": 1}, {"cpus": 4}, {"qos": "LSE", "kubernetes-class": "Burstable", "cpus": 1}]"#;
        let Err(Failure::Partial { printed, reason }) = asked_of(true, list, &["--node", "NODE", "--requests", "LIST"])
        else {
            panic!("all fit")
        };
        assert_eq!(reason, "2 of 3 do not fit");
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines[1].contains("yes"), "{printed}");
        assert!(
            lines[2].contains("NotAllocated: 4 CPUs are wanted, 3 are available"),
            "{printed}"
        );
        assert!(
            lines[3].contains("NotGuaranteed: a Burstable pod cannot be of class LSE"),
            "{printed}"
        );
    }

    #[test]
    fn what_cannot_be_asked_is_named() {
        for (allocator, list, words, says) in [
            (
                false,
                "",
                &["--node", "NODE", "--cpus", "1"][..],
                "kubelet chooses the CPUs on this node",
            ),
            (
                true,
                "[1]",
                &["--node", "NODE", "--requests", "LIST"],
                "it is not a JSON list of requests",
            ),
            (
                true,
                "",
                &["--node", "LIST", "--cpus", "1"],
                "not a NodeResourceTopology",
            ),
            (
                true,
                "",
                &["--node", "/nonexistent", "--cpus", "1"],
                "read /nonexistent: ",
            ),
            (
                true,
                "",
                &["--node", "-", "--requests", "-"],
                "cannot both be standard input",
            ),
            (
                true,
                "",
                &["--node", "NODE", "--requests", "LIST", "--cpus", "1"],
                "cannot be used with",
            ),
            (true, "", &["--node", "NODE", "--qos", "lse"], "possible values"),
        ] {
            let told = asked_of(allocator, list, words).unwrap_err().to_string();
            assert!(told.contains(says), "{words:?}: {told}");
        }
    }
}
