//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{Client, Failure, Pod, Pods, fold, lines_by_pod, whose};
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

impl Render for Steps {
    fn text(&self, _: TextStyle) -> String {
        let steps = lines_by_pod(&self.report, "plan");
        let steps = steps.map(|(pod, step)| format!("{}: {}\n", self.pods.get(pod), printable(step)));
        match steps.collect::<String>() {
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
}
