//! `reconcile`: repairs what differs, or with a dry run says what would change.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::check::verify::told;
use crate::shared::daemon::{Client, Condition, Description, Failure, Mode, Pods, counts, lines_by_pod};
use crate::shared::output::{Render, TextStyle, counted, paragraph, printable};

/// The daemon's answer.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Reconciled {
    report: Map<String, Value>,
    /// The node afterwards; `None` if that was not answered.
    #[serde(skip)]
    described: Option<Description>,
    #[serde(skip)]
    dry_run: bool,
}

/// Repairs, or with a dry run only asks what would change first.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn reconcile(client: &Client, dry_run: bool) -> Result<Reconciled, Failure> {
    Ok(Reconciled {
        report: client.reconcile(Mode::of(dry_run)).await?,
        described: client.describe().await.ok(),
        dry_run,
    })
}

impl Reconciled {
    /// What was done or would be, whether something remains wrong, and how the VMs are.
    fn summary(&self, is_something_wrong: bool) -> String {
        let count = |member: &str| self.report.get(member).and_then(Value::as_u64).unwrap_or(0);
        let planned = lines_by_pod(&self.report, "plan").count() as u64;
        let done = match (self.dry_run, count("steps")) {
            (true, _) if planned > 0 => format!("Dry run: steliad would make {}", counted(planned, "change")),
            (true, _) => "Dry run: steliad would change nothing".to_owned(),
            (false, 0) if is_something_wrong => "steliad has nothing to change itself".to_owned(),
            (false, 0) => "Nothing to repair".to_owned(),
            (false, changes) => format!(
                "Made {} ({} moved, {} repaired)",
                counted(changes, "change"),
                counted(count("moves"), "thread"),
                counted(count("repaired"), "difference")
            ),
        };
        let vms = self.described.as_ref().map(|described| {
            let vms = described.node.instances.values();
            format!("{}.", counts(vms.map(|one| Condition::of(one))))
        });
        let vms = vms.unwrap_or_default();
        if is_something_wrong {
            return format!("{done}; repair what is listed above yourself.\n{vms}");
        }
        format!("{done}. {vms}").trim_end().to_owned()
    }
}

impl Render for Reconciled {
    /// What remains wrong and which VMs wait, the changes of a dry run, and the summary.
    fn text(&self, style: TextStyle) -> String {
        let told = self.described.clone().map(|described| told(described, &self.report));
        let text = told.iter().flat_map(|told| told.blocks(style));
        let mut text: String = text.map(|block| block.text(style)).collect();
        let pods = self.described.as_ref().map(Pods::of).unwrap_or_default();
        for (uid, step) in lines_by_pod(&self.report, "plan") {
            let whose = if uid == "-" {
                "node".to_owned()
            } else {
                pods.get(uid).to_string()
            };
            text += &paragraph(&printable(&format!("{whose}: {step}")), style);
        }
        if !text.is_empty() {
            text.push('\n');
        }
        // A VM that waits may have started a moment ago.
        let is_something_wrong = told.is_some_and(|told| told.failure().is_some());
        text + &paragraph(&self.summary(is_something_wrong), style)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::{columns, text};

    fn answer(report: Value, dry_run: bool) -> Reconciled {
        Reconciled {
            report: report.as_object().cloned().unwrap(),
            described: Some(node()),
            dry_run,
        }
    }

    #[test]
    fn a_reason_that_many_vms_have_is_told_once_and_then_what_was_done() {
        let reason = |uid: &str, code: &str, text: &str, fix: &str| json!([uid, code, text, fix]);
        let fix = "if this persists, find the program that writes the container cgroup's cpuset.cpus";
        let reasons = [
            reason("-", "of-a-newer-daemon", "a file", ""),
            reason(PODS[0], "cpus-offline", "CPUs 4 are offline", "set it online"),
            reason(PODS[1], "cpuset-changed", "container cpuset is empty", fix),
            reason(PODS[2], "cpuset-changed", "container cpuset is empty", fix),
        ];
        let report = json!({"reasons": reasons, "steps": 9, "moves": 1, "repaired": 2, "pass": 7});
        insta::assert_snapshot!(answer(report, false).text(columns(80)));
        let mut nothing = answer(json!({"reasons": [], "steps": 0}), false);
        instance_mut(nothing.described.as_mut().unwrap(), PODS[1]).state_since_us = crate::shared::output::now();
        let text = text(&nothing);
        assert!(
            text.contains("\nNothing to repair. 2 VMs: ") && text.starts_with("WAIT  "),
            "{text}"
        );
    }

    #[test]
    fn a_dry_run_lists_the_changes() {
        let of_vm = format!("{}: move thread 7 to /x/float", PODS[0]);
        let plan = [of_vm.as_str(), "-: set CPUWeight=200 of stelia.slice"];
        let told = text(&answer(json!({"plan": plan}), true));
        assert!(
            told.contains(&of_vm)
                && told.contains("node: set CPUWeight=200 of stelia.slice\n\nDry run: steliad would make 2 changes"),
            "{told}"
        );
        // It is done whether or not the VMs are known.
        let alone = Reconciled {
            described: None,
            ..answer(json!({"plan": []}), true)
        };
        assert_eq!(text(&alone), "Dry run: steliad would change nothing.\n");
    }
}
