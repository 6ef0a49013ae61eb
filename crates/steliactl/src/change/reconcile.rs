//! `reconcile`: repairs what differs, or with a dry run says what would change.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{Client, Failure, Pod, Pods, fold, lines_by_pod, whose};
use crate::shared::output::{Render, TextStyle, counted, printable};

/// The UID of what is of the whole node.
const NODE: &str = "-";

/// The daemon's answer.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Reconciled {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
    #[serde(skip)]
    dry_run: bool,
}

/// Repairs, or with a dry run only asks what would change first.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn gather(client: &Client, dry_run: bool) -> Result<Reconciled, Failure> {
    let report = client.reconcile(dry_run).await?;
    // It is done whether or not the names are known.
    let described = client.describe().await.ok();
    Ok(Reconciled {
        report,
        pods: described.as_ref().map(Pods::of).unwrap_or_default(),
        dry_run,
    })
}

impl Reconciled {
    fn count(&self, member: &str) -> u64 {
        self.report.get(member).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The steps of a dry run, each with its pod's UID.
    fn steps(&self) -> Vec<(&str, &str)> {
        lines_by_pod(&self.report, "plan").collect()
    }

    fn headline(&self, degraded: usize) -> String {
        let is_move = |(_, step): &&(&str, &str)| step.starts_with("move ");
        let to_float = |(_, step): &&(&str, &str)| step.ends_with("/float");
        let steps = self.steps();
        let changes = if self.dry_run {
            steps.len() as u64
        } else {
            self.count("steps")
        };
        let floats = steps.iter().filter(is_move).filter(to_float).count();
        let done = match (changes, self.dry_run) {
            (0, _) => "Nothing to repair".to_owned(),
            (changes, true) => format!(
                "{} ({} moved to float)",
                counted(changes, "change"),
                counted(floats as u64, "thread")
            ),
            (changes, false) => format!(
                "Made {} ({} moved, {} repaired)",
                counted(changes, "change"),
                counted(self.count("moves"), "thread"),
                counted(self.count("repaired"), "difference")
            ),
        };
        match degraded {
            0 => done,
            vms => format!(
                "{done}; {} degraded",
                counted(vms as u64, "VM") + if vms == 1 { " remains" } else { " remain" }
            ),
        }
    }
}

/// Why a VM or the node is not as it should be: the pod, the text, the fix.
type Reason<'a> = (Pod, (&'a str, &'a str));

impl Reconciled {
    fn reasons(&self) -> Vec<Reason<'_>> {
        let rows = self.report.get("reasons").and_then(Value::as_array);
        // The UID, the code, the text, the fix.
        fn text(row: &Value, at: usize) -> Option<&str> {
            row.get(at)?.as_str()
        }
        let rows = rows.into_iter().flatten();
        rows.filter_map(|row| Some((self.pods.get(text(row, 0)?), (text(row, 2)?, text(row, 3)?))))
            .collect()
    }
}

impl Render for Reconciled {
    /// What was done or would be, what remains wrong (each reason once) with its fix, the changes of a dry run.
    fn text(&self, _: TextStyle) -> String {
        let reasons = self.reasons();
        let vms: BTreeSet<&Pod> = reasons
            .iter()
            .map(|(pod, _)| pod)
            .filter(|pod| pod.pod_uid != NODE)
            .collect();
        let mut lines = vec![self.headline(vms.len())];
        for (pods, (text, fix)) in fold(reasons.iter().map(|(pod, reason)| (pod, *reason))) {
            let whose = match pods.as_slice() {
                [pod] if pod.pod_uid == NODE => "node".to_owned(),
                pods => whose(pods),
            };
            lines.push(format!("WARN  {whose}: {text}"));
            lines.extend((!fix.is_empty()).then(|| format!("      fix: {fix}")));
        }
        let steps = self.steps().into_iter();
        lines.extend(steps.map(|(uid, step)| match uid {
            NODE => format!("node: {step}"),
            uid => format!("{}: {step}", self.pods.get(uid)),
        }));
        lines.iter().map(|line| printable(line) + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::fixtures::{pod, text};

    fn answer(report: Value, dry_run: bool) -> Reconciled {
        let pods = ["u1", "u2"].map(|uid| pod(uid, &format!("team-a/{uid}")));
        Reconciled {
            report: report.as_object().cloned().unwrap(),
            pods: pods.into_iter().collect(),
            dry_run,
        }
    }

    #[test]
    fn what_was_done_comes_first_and_a_reason_that_many_vms_have_is_one_line() {
        let reason = |uid: &str, text: &str, fix: &str| json!([uid, "code", text, fix]);
        let reasons = [
            reason("u1", "no file: x", "restart kubelet"),
            reason("u2", "no file: x", "restart kubelet"),
            reason("-", "a file", ""),
        ];
        let report = json!({"reasons": reasons, "steps": 9, "moves": 1, "repaired": 2, "pass": 7});
        insta::assert_snapshot!(text(&answer(report, false)), @"
        Made 9 changes (1 thread moved, 2 differences repaired); 2 VMs remain degraded
        WARN  2 VMs (team-a/u1, team-a/u2): no file: x
              fix: restart kubelet
        WARN  node: a file
        ");
        assert_eq!(
            text(&answer(json!({"reasons": [], "steps": 0}), false)),
            "Nothing to repair\n"
        );
    }

    #[test]
    fn a_dry_run_lists_the_changes_and_counts_those_to_float() {
        let plan = [
            "u1: move thread 7 to /x/float",
            "u1: pin thread 70 to CPU 4",
            "-: set CPUWeight=200 of stelia.slice",
        ];
        insta::assert_snapshot!(text(&answer(json!({"plan": plan}), true)), @"
        3 changes (1 thread moved to float)
        team-a/u1: move thread 7 to /x/float
        team-a/u1: pin thread 70 to CPU 4
        node: set CPUWeight=200 of stelia.slice
        ");
        let nothing = answer(json!({"plan": [], "reasons": [["u1", "code", "no file", ""]]}), true);
        assert!(text(&nothing).starts_with("Nothing to repair; 1 VM remains degraded"));
    }
}
