//! What the allocator would answer, on this node or on a described one.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::Value;
use stelia_api::client::OwnedDict;
use stelia_api::dict::{borrowed, to_dict};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::allocator::command_line::names;
use stelia_koordinator::allocator::evaluate::{
    EvaluateAnswer, EvaluateRequest, Fit, SchedulerOptions, ScoringStrategy, evaluate, requests,
};
use stelia_koordinator::report::described;
use stelia_kubelet::QosClass;

use crate::shared::daemon::{Client, Failure};
use crate::shared::files::text;
use crate::shared::output::{self, Render, TextStyle, column};

#[derive(Debug, Args)]
pub(crate) struct AllocatorOptions {
    /// Kubernetes' QoS class of the pod, which limits the classes of steliad it may have. Without it, nothing is limited
    #[arg(long, value_name = "CLASS", value_parser = names(QosClass::ALL.map(QosClass::name), QosClass::parse))]
    kubernetes_class: Option<QosClass>,
    /// What the score favours. Default: MostAllocated
    #[arg(long, value_name = "STRATEGY",
          value_parser = names(ScoringStrategy::ALL.map(ScoringStrategy::name), ScoringStrategy::parse))]
    scoring_strategy: Option<ScoringStrategy>,
    /// Evaluate every pod of a JSON list, whose members have the names of the options. - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["AllocationRequest", "kubernetes_class", "scoring_strategy"])]
    requests: Option<PathBuf>,
    /// The pod. At the end: its heading holds for all options that follow.
    #[command(flatten)]
    pod: AllocationRequest,
}

/// The answer to each request.
#[derive(Debug)]
pub(crate) struct Evaluated(Vec<EvaluateAnswer>);

/// The answers' own names are those of the options; in this program's JSON they have underscores.
impl Serialize for Evaluated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn named(value: Value) -> Value {
            match value {
                Value::Object(members) => {
                    let members = members.into_iter();
                    members
                        .map(|(name, value)| (name.replace('-', "_"), named(value)))
                        .collect()
                }
                Value::Array(items) => items.into_iter().map(named).collect(),
                other => other,
            }
        }
        let answers = serde_json::to_value(&self.0).map_err(serde::ser::Error::custom)?;
        named(answers).serialize(serializer)
    }
}

/// Asks the daemon.
///
/// # Errors
/// The command line or a file is not understood, or the daemon refuses.
pub(crate) async fn online(client: &Client, asked: &AllocatorOptions) -> Result<Evaluated, Failure> {
    let asked = asked.requests()?;
    let asked = asked.iter().map(to_dict).collect::<Result<Vec<OwnedDict>, _>>();
    let asked = asked.map_err(|cause| Failure::Other(cause.to_string()))?;
    let answers = client.evaluate(asked.iter().map(borrowed).collect()).await;
    let answers = answers.map_err(|failure| match failure {
        Failure::Other(text) if text.contains("kubelet chooses the CPUs") => {
            Failure::Other(format!("{text}; steliactl plan says what kubelet would do"))
        }
        other => other,
    })?;
    let read = |answer| {
        serde_json::from_value(Value::Object(output::json_of(answer)))
            .map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))
    };
    Ok(Evaluated(answers.iter().map(read).collect::<Result<_, _>>()?))
}

/// Runs the allocator on the node that `path` describes.
///
/// # Errors
/// The command line or a file is not understood, or steliad does not choose the CPUs there.
pub(crate) fn offline(asked: &AllocatorOptions, path: &Path) -> Result<Evaluated, Failure> {
    let stdin = Path::new("-");
    if path == stdin && asked.requests.as_deref() == Some(stdin) {
        return Err(Failure::Usage(
            "--node and --requests cannot both be standard input".to_owned(),
        ));
    }
    let asked = asked.requests()?;
    let facts = described::read(&text(path, described::MAX_BYTES)?).map_err(|cause| Failure::about(path, &cause))?;
    let node = facts.allocator_node().map_err(|cause| Failure::about(path, &cause))?;
    Ok(Evaluated(
        evaluate(&node, &asked).into_iter().map(EvaluateAnswer::from).collect(),
    ))
}

impl AllocatorOptions {
    fn requests(&self) -> Result<Vec<EvaluateRequest>, Failure> {
        match &self.requests {
            Some(path) => requests(&text(path, 1 << 20)?).map_err(|cause| Failure::about(path, &cause)),
            None => Ok(vec![EvaluateRequest {
                allocation: self.pod.clone(),
                options: SchedulerOptions {
                    kubernetes_class: self.kubernetes_class,
                    scoring_strategy: self.scoring_strategy.unwrap_or_default(),
                },
            }]),
        }
    }
}

type Row<'a> = (usize, &'a EvaluateAnswer);

impl Render for Evaluated {
    fn text(&self, style: TextStyle) -> String {
        fn placed((_, answer): &Row<'_>, text: fn(&Fit) -> String) -> String {
            answer.place.as_ref().map(text).unwrap_or_default()
        }
        let columns = [
            column("POD", |(at, _): &Row<'_>| at.to_string()),
            column("FIT", |(_, answer)| if answer.fit { "yes" } else { "no" }.to_owned()),
            column("CLASS", |row| placed(row, |place| place.qos.name().to_owned())),
            column("RUNS ON", |row| placed(row, |place| place.runs_on.to_string())),
            column("NUMA", |row| {
                placed(row, |place| {
                    let nodes: Vec<String> = place.numa_nodes.iter().map(u32::to_string).collect();
                    nodes.join(",")
                })
            }),
            column("EXCLUSIVE", |row| {
                placed(row, |place| place.exclusivity.name().to_owned())
            }),
            column("SCORE = A + B", |row| {
                placed(row, |place| {
                    format!("{} = {} + {}", place.score.sum, place.score.numa, place.score.cpus)
                })
            }),
            column("WHY NOT", |(_, answer): &Row<'_>| match &answer.place {
                Some(_) => String::new(),
                None => [&answer.error, &answer.reason]
                    .map(|text| text.as_deref().unwrap_or_default())
                    .join(": "),
            })
            .or_nothing(),
        ];
        let rows: Vec<Row<'_>> = self.0.iter().enumerate().collect();
        output::table(&columns, &rows, style)
    }

    fn failure(&self) -> Option<String> {
        let unfit = self.0.iter().filter(|answer| !answer.fit).count();
        match (unfit, self.0.len()) {
            (0, _) => None,
            (_, 1) => Some("it does not fit".to_owned()),
            (unfit, all) => Some(format!("{unfit} of {all} do not fit")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;
    use stelia_cpus::CpuSet;
    use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, HeldCpus};
    use stelia_koordinator::report::testing::facts;
    use stelia_koordinator::report::{Allocator, ApiVersion, Facts, report};

    use super::*;
    use crate::cli::{Cli, Command};

    /// What `words` print for a described node of eight CPUs of which 1 and 6-7 are free: `NODE` is replaced by the
    /// file's path.
    fn asked_of(allocator: bool, requests: &str, line: &str) -> Result<String, Failure> {
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
        let line = line.replace("NODE", &node.path().display().to_string());
        let line = format!(
            "steliactl plan {}",
            line.replace("LIST", &list.path().display().to_string())
        );
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|cause| Failure::Usage(cause.to_string()))?;
        let Command::Plan(asked) = cli.asked() else {
            panic!("{:?}", cli.asked())
        };
        cli.output_options()?
            .print(&offline(&asked.allocator, asked.node.as_deref().unwrap())?)
    }

    #[test]
    fn a_pod_that_fits_is_told_its_cpus_and_its_score() {
        let line = "--node NODE --cpus 2 --numa-topology-alignment-policy SingleNUMANode";
        let text = asked_of(true, "", line).unwrap();
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            ["0", "yes", "LSE", "6-7", "1", "not-asked", "150", "=", "100", "+", "50"],
            "{text}"
        );
        let least = format!("{line} --scoring-strategy LeastAllocated --json=short");
        let told: Value = serde_json::from_str(&asked_of(true, "", &least).unwrap()).unwrap();
        assert_eq!((&told[0]["score"], &told[0]["aligned"]), (&50.into(), &true.into()));
    }

    #[test]
    fn pods_that_do_not_fit_are_told_why_and_fail_the_command() {
        let list = r#"[{"cpus": 1}, {"cpus": 4}, {"qos": "LSE", "kubernetes-class": "Burstable", "cpus": 1}]"#;
        let Err(Failure::Partial { printed, reason }) = asked_of(true, list, "--node NODE --requests LIST") else {
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
        for (allocator, list, line, says) in [
            (
                false,
                "",
                "--node NODE --cpus 1",
                "kubelet chooses the CPUs on this node",
            ),
            (
                true,
                "[1]",
                "--node NODE --requests LIST",
                "it is not a JSON list of requests",
            ),
            (true, "", "--node LIST --cpus 1", "not a NodeResourceTopology"),
            (true, "", "--node /nonexistent --cpus 1", "read /nonexistent: "),
            (true, "", "--node - --requests -", "cannot both be standard input"),
            (true, "", "--node NODE --requests LIST --cpus 1", "cannot be used with"),
            (true, "", "--node NODE --qos lse", "possible values"),
        ] {
            let told = asked_of(allocator, list, line).unwrap_err().to_string();
            assert!(told.contains(says), "{line}: {told}");
        }
    }
}
