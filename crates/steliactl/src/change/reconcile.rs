//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{Client, Failure, Pod, Pods, fold, in_common, lines_by_pod, whose};
use crate::shared::output::{Render, TextStyle, human, printable, properties, texts_of};

/// The members' order in the D-Bus contract.
const ORDER: [&str; 5] = ["pass", "steps", "writes", "moves", "repaired"];
const DEGRADED: &str = "degraded";
/// The UID of what is of the whole node.
const NODE: &str = "-";

/// The answer of a pass.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Report {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
}

/// Runs a pass.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn gather(client: &Client) -> Result<Report, Failure> {
    let report = client.reconcile(false).await?;
    // The pass has run whether or not the names are known.
    let described = client.describe().await.ok();
    let pods = described.as_ref().map(Pods::of).unwrap_or_default();
    Ok(Report { report, pods })
}

impl Report {
    /// What is degraded, each reason once with the VMs that have it.
    fn degraded(&self) -> Vec<String> {
        let reasons: Vec<(Pod, &str)> = texts_of(&self.report, DEGRADED)
            .map(|line| match line.split_once(": ") {
                Some((uid, reason)) => (self.pods.get(uid), reason),
                None => (Pod::unnamed(NODE), line),
            })
            .collect();
        let folded = fold(reasons.iter().map(|(pod, reason)| (pod, *reason)));
        let lines = folded.into_iter().map(|(pods, reason)| match pods.as_slice() {
            [pod] if pod.pod_uid == NODE => reason.to_owned(),
            pods => format!("{}: {reason}", whose(pods)),
        });
        lines.collect()
    }
}

impl Render for Report {
    fn text(&self, style: TextStyle) -> String {
        let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
        let others = self.report.iter().filter(|(name, _)| *name != DEGRADED);
        let mut rows: Vec<(&str, String)> = others.map(|(name, value)| (name.as_str(), human(value))).collect();
        rows.sort_by_key(|(name, _)| rank(name));
        match self.degraded() {
            none if none.is_empty() => rows.push((DEGRADED, String::new())),
            reasons => rows.extend(reasons.into_iter().map(|reason| (DEGRADED, reason))),
        }
        properties(rows, style)
    }
}

/// The answer of a dry run.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Steps {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
}

/// The steps that a pass would begin with.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn preview(client: &Client) -> Result<Steps, Failure> {
    let report = client.reconcile(true).await?;
    let pods = Pods::of(&client.describe().await?);
    Ok(Steps { report, pods })
}

impl Steps {
    /// The steps in their order, each kind once with its number and the VMs that have it.
    fn folded(&self) -> Vec<String> {
        let mut kinds: Vec<(String, Vec<(Pod, &str)>)> = Vec::new();
        for (uid, step) in lines_by_pod(&self.report, "plan") {
            let kind = match uid {
                NODE => step.to_owned(),
                _ => in_common(step),
            };
            let one = (self.pods.get(uid), step);
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, steps)) => steps.push(one),
                None => kinds.push((kind, vec![one])),
            }
        }
        let lines = kinds.into_iter().map(|(kind, steps)| match steps.as_slice() {
            [(pod, step)] => line(pod, step),
            steps => {
                let pods = fold(steps.iter().map(|(pod, _)| (pod, ())));
                let pods = pods.first().map(|(pods, ())| whose(pods)).unwrap_or_default();
                format!("{pods}: {} ({} steps)\n", printable(&kind), steps.len())
            }
        });
        lines.collect()
    }
}

fn line(pod: &Pod, step: &str) -> String {
    format!("{pod}: {}\n", printable(step))
}

impl Render for Steps {
    fn text(&self, style: TextStyle) -> String {
        let each = || lines_by_pod(&self.report, "plan").map(|(uid, step)| line(&self.pods.get(uid), step));
        let lines = if style.wide { each().collect() } else { self.folded() };
        match lines.concat() {
            none if none.is_empty() => "Nothing to do.\n".to_owned(),
            steps => steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_that_many_vms_have_is_one_row_with_their_names() {
        let pods = ["u1", "u2", "u3", "u4"].map(|uid| Pod {
            pod_uid: uid.to_owned(),
            pod_namespace: "team-a".to_owned(),
            pod_name: format!("vm-{uid}"),
        });
        let mut degraded: Vec<String> = pods.iter().map(|pod| format!("{}: no file: x", pod.pod_uid)).collect();
        degraded.push("u2: CPUs 4 are offline".to_owned());
        let report = json!({"degraded": degraded, "moves": 0, "pass": 7});
        let report = Report {
            report: report.as_object().cloned().unwrap(),
            pods: pods.into_iter().collect(),
        };
        insta::assert_snapshot!(report.text(TextStyle::from(true)), @"
        pass:      7
        moves:     0
        degraded:  4 VMs (team-a/vm-u1, team-a/vm-u2, team-a/vm-u3, …): no file: x
        degraded:  team-a/vm-u2: CPUs 4 are offline
        ");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["degraded"].as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn without_a_reason_there_is_a_dash() {
        let report = Report {
            report: Map::from_iter([(DEGRADED.to_owned(), json!([]))]),
            pods: Pods::default(),
        };
        assert_eq!(report.text(TextStyle::from(true)), "degraded:  -\n");
    }

    #[test]
    fn a_step_that_many_vms_need_is_one_line_and_wide_has_each() {
        let step =
            |uid: &str, cpus: &str| format!("{uid}: write \"{cpus}\" to cpuset.cpus of /stelia.slice/{uid}.scope");
        let plan = [
            step("u1", "4-5"),
            "u1: pin thread 70 to CPU 4".to_owned(),
            step("u2", "6-7"),
            "-: set CPUWeight=200 of stelia.slice".to_owned(),
        ];
        let steps = Steps {
            report: json!({ "plan": plan }).as_object().cloned().unwrap(),
            pods: Pods::default(),
        };
        insta::assert_snapshot!(steps.text(TextStyle::from(true)), @"
        2 VMs (u1, u2): write … to cpuset.cpus of its cgroup (2 steps)
        u1: pin thread 70 to CPU 4
        -: set CPUWeight=200 of stelia.slice
        ");
        let wide = TextStyle {
            wide: true,
            ..TextStyle::from(true)
        };
        insta::assert_snapshot!(steps.text(wide), @r#"
        u1: write "4-5" to cpuset.cpus of /stelia.slice/u1.scope
        u1: pin thread 70 to CPU 4
        u2: write "6-7" to cpuset.cpus of /stelia.slice/u2.scope
        -: set CPUWeight=200 of stelia.slice
        "#);
    }
}
