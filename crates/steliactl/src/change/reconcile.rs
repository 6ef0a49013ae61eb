//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{Client, Failure, Pod, Pods, fold, lines_by_pod, whose};
use crate::shared::output::{Render, TextStyle, human, printable, properties, texts_of};

/// The members' order in the D-Bus contract.
const ORDER: [&str; 5] = ["pass", "steps", "writes", "moves", "repaired"];
const DEGRADED: &str = "degraded";
/// The UID of what is of the whole node.
const NODE: &str = "-";

/// The daemon's answer: the report of a pass, or with a dry run the steps that it would begin with.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Reconciled {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
    #[serde(skip)]
    dry_run: bool,
}

/// Runs a pass, or with a dry run only asks for its first steps.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn gather(client: &Client, dry_run: bool) -> Result<Reconciled, Failure> {
    let report = client.reconcile(dry_run).await?;
    // The pass has run whether or not the names are known.
    let described = client.describe().await.ok();
    Ok(Reconciled {
        report,
        pods: described.as_ref().map(Pods::of).unwrap_or_default(),
        dry_run,
    })
}

impl Reconciled {
    /// What the exit code, which is of the pass, does not say: that VMs are degraded. `verify` has what helps.
    pub(crate) fn note(&self) -> Option<String> {
        let pods = lines_by_pod(&self.report, DEGRADED).map(|(uid, _)| uid);
        let degraded = match pods.filter(|uid| *uid != NODE).collect::<BTreeSet<_>>().len() {
            0 => return None,
            1 => "1 VM is degraded".to_owned(),
            vms => format!("{vms} VMs are degraded"),
        };
        Some(if self.dry_run {
            format!("{degraded} now: steliactl verify says what helps")
        } else {
            format!("the pass succeeded; {degraded}: steliactl verify says what helps")
        })
    }

    /// What is degraded, each reason once with the VMs that have it.
    fn degraded(&self) -> Vec<String> {
        let reasons: Vec<(Pod, &str)> = texts_of(&self.report, DEGRADED)
            .map(|line| match line.split_once(": ") {
                Some((uid, reason)) => (self.pods.get(uid), reason),
                None => (Pod::unnamed(NODE), line),
            })
            .collect();
        let mut folded = fold(reasons.iter().map(|(pod, reason)| (pod, *reason)));
        folded.sort_by_key(|(pods, _)| Reverse(pods.len()));
        let lines = folded.into_iter().map(|(pods, reason)| match pods.as_slice() {
            [pod] if pod.pod_uid == NODE => reason.to_owned(),
            pods => format!("{}: {reason}", whose(pods)),
        });
        lines.collect()
    }

    fn report(&self, style: TextStyle) -> String {
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

    fn steps(&self) -> String {
        let steps = lines_by_pod(&self.report, "plan");
        let steps: String = steps
            .map(|(uid, step)| format!("{}: {}\n", self.pods.get(uid), printable(step)))
            .collect();
        if steps.is_empty() {
            "Nothing to do.\n".to_owned()
        } else {
            steps
        }
    }
}

impl Render for Reconciled {
    fn text(&self, style: TextStyle) -> String {
        if self.dry_run { self.steps() } else { self.report(style) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(report: Value, pods: Pods, dry_run: bool) -> Reconciled {
        Reconciled {
            report: report.as_object().cloned().unwrap(),
            pods,
            dry_run,
        }
    }

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
        let report = answer(report, pods.into_iter().collect(), false);
        insta::assert_snapshot!(report.text(TextStyle::from(true)), @"
        pass:      7
        moves:     0
        degraded:  4 VMs (team-a/vm-u1, team-a/vm-u2, team-a/vm-u3, team-a/vm-u4): no file: x
        degraded:  team-a/vm-u2: CPUs 4 are offline
        ");
        let note = report.note().unwrap();
        assert!(note.starts_with("the pass succeeded; 4 VMs are degraded: "), "{note}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["degraded"].as_array().map(Vec::len), Some(5));
        let none = answer(json!({"degraded": []}), Pods::default(), false);
        assert_eq!(none.text(TextStyle::from(true)), "degraded:  -\n");
        assert_eq!(none.note(), None);
    }

    #[test]
    fn where_a_pass_would_do_nothing_degraded_vms_are_mentioned() {
        let nothing = answer(json!({"plan": [], "degraded": ["u1: no file"]}), Pods::default(), true);
        assert_eq!(nothing.text(TextStyle::from(true)), "Nothing to do.\n");
        assert!(nothing.note().unwrap().starts_with("1 VM is degraded now"));
    }

    #[test]
    fn each_step_is_a_line() {
        let plan = ["u1: pin thread 70 to CPU 4", "-: set CPUWeight=200 of stelia.slice"];
        let steps = answer(json!({ "plan": plan }), Pods::default(), true);
        assert_eq!(steps.text(TextStyle::from(true)), plan.join("\n") + "\n");
    }
}
