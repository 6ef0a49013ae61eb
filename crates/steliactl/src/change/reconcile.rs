//! `reconcile`: repairs what differs, or with a dry run says what would change.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::daemon::{
    Client, Condition, Description, Failure, Mode, NODE, Pods, counted_uids, counts, lines_by_pod,
};
use crate::shared::output::{Render, TextStyle, counted, paragraph, printable, some_of};

/// The daemon's answer.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Reconciled {
    report: Map<String, Value>,
    /// The node afterwards; empty if that was not answered.
    #[serde(skip)]
    described: Description,
    #[serde(skip)]
    mode: Mode,
}

/// Repairs, or with a dry run only asks what would change first.
pub(crate) async fn reconcile(client: &Client, mode: Mode) -> Result<Reconciled, Failure> {
    Ok(Reconciled {
        report: client.reconcile(mode).await?,
        described: client.describe().await.unwrap_or_default(),
        mode,
    })
}

impl Reconciled {
    /// What was done or would be, and how the VMs are.
    fn summary(&self) -> String {
        let count = |member: &str| self.report.get(member).and_then(Value::as_u64).unwrap_or(0);
        let planned = lines_by_pod(&self.report, "plan").count() as u64;
        let done = match (self.mode, count("steps")) {
            (Mode::DryRun, _) if planned > 0 => format!("Dry run: steliad would make {}", counted(planned, "change")),
            (Mode::DryRun, _) => "Dry run: steliad would change nothing".to_owned(),
            (Mode::Change, 0) => "Nothing to change".to_owned(),
            (Mode::Change, changes) => {
                let some = |member, what, done| {
                    let count = Some(count(member)).filter(|count| *count > 0)?;
                    Some(format!("{} {done}", counted(count, what)))
                };
                let parts = [
                    some("moves", "thread", "moved"),
                    some("repaired", "difference", "repaired"),
                ];
                let parts: Vec<String> = parts.into_iter().flatten().collect();
                let parts = Some(parts.join(", ")).filter(|parts| !parts.is_empty());
                let parts = parts.map(|parts| format!(" ({parts})")).unwrap_or_default();
                format!("Made {}{parts}", counted(changes, "change"))
            }
        };
        let vms = &self.described.node.instances;
        let counts = counts(vms.values().map(|vm| Condition::of(vm)));
        // It is done whether or not they are known.
        let counts = if vms.is_empty() {
            String::new()
        } else {
            format!(" {counts}.")
        };
        format!("{done}.{counts}")
    }

    /// Whom reasons are of that steliad cannot remove, and the command that has them. VMs that a dry run would
    /// change are left out: the changes may remove their reasons.
    fn wrong(&self) -> Option<String> {
        let reasons = self.report.get("reasons").and_then(Value::as_array);
        let planned: Vec<&str> = lines_by_pod(&self.report, "plan").map(|(uid, _)| uid).collect();
        let uids = reasons.into_iter().flatten().filter_map(|row| row.get(0)?.as_str());
        let uids = uids.filter(|uid| !planned.contains(uid));
        let (vms, pods) = (uids.clone().filter(|uid| *uid != NODE), Pods::of(&self.described));
        let names = some_of(vms.map(|uid| pods.get(uid).to_string()), 3);
        let wrong = counted_uids(uids)?;
        let names = if names.is_empty() { names } else { format!(" ({names})") };
        Some(format!("wrong: {wrong}{names}: steliactl verify"))
    }
}

impl Render for Reconciled {
    /// The changes of a dry run, the summary, and what remains wrong.
    fn text(&self, style: TextStyle) -> String {
        let (pods, vms) = (Pods::of(&self.described), &self.described.node.instances);
        let planned = lines_by_pod(&self.report, "plan").map(|(uid, step)| {
            let whose = if uid == NODE {
                "node".to_owned()
            } else {
                pods.get(uid).to_string()
            };
            // The line begins with the VM: its cgroups are told by their names in its scope.
            let scope = vms.get(uid).map(|vm| format!("{}/", vm.scope)).unwrap_or_default();
            format!("{whose}: {}", step.replace(&scope, ""))
        });
        let remains = if self.mode == Mode::DryRun {
            "Would stay"
        } else {
            "Still"
        };
        let wrong = self.wrong().map(|wrong| format!("{remains} {wrong}"));
        let lines = planned.chain([self.summary()]).chain(wrong);
        lines.map(|line| paragraph(&printable(&line), style)).collect()
    }

    fn failure(&self) -> Option<String> {
        let wrong = self.wrong().filter(|_| self.mode == Mode::Change);
        wrong.map(|wrong| format!("still {wrong}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stelia_kernel::cgroup::CgroupPath;

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::{columns, text};

    fn answer(report: Value, mode: Mode) -> Reconciled {
        Reconciled {
            report: report.as_object().cloned().unwrap(),
            described: node(),
            mode,
        }
    }

    #[test]
    fn what_was_done_and_who_is_still_wrong_is_said() {
        let reason = |uid: &str, code: &str, text: &str, fix: &str| json!([uid, code, text, fix]);
        let fix = "if this persists, find the program that writes the container cgroup's cpuset.cpus";
        let reasons = [
            reason("-", "of-a-newer-daemon", "a file", ""),
            reason(PODS[0], "cpus-offline", "CPUs 4 are offline", "set it online"),
            reason(PODS[1], "cpuset-changed", "container cpuset is empty", fix),
            reason(PODS[2], "cpuset-changed", "container cpuset is empty", fix),
        ];
        let report = json!({"reasons": reasons, "steps": 9, "moves": 1, "repaired": 2, "pass": 7});
        let changed = answer(report.clone(), Mode::Change);
        insta::assert_snapshot!(changed.text(columns(80)));
        assert!(changed.failure().unwrap().starts_with("still wrong: the node, 3 VMs ("));
        assert_eq!(answer(report, Mode::DryRun).failure(), None);
        // What waits is shown by the count of states alone.
        let nothing = answer(json!({"reasons": [], "steps": 0}), Mode::Change);
        assert!(text(&nothing).starts_with("Nothing to change. 2 VMs: "));
        assert_eq!(nothing.failure(), None);
    }

    #[test]
    fn a_dry_run_lists_the_changes() {
        let of_vm = format!("{}: move thread 7 to /x/float", PODS[0]);
        let plan = [of_vm.as_str(), "-: set CPUWeight=200 of stelia.slice"];
        let shown = text(&answer(json!({"plan": plan}), Mode::DryRun));
        assert!(
            shown.contains(&of_vm)
                && shown.contains("node: set CPUWeight=200 of stelia.slice\nDry run: steliad would make 2 changes"),
            "{shown}"
        );
        // What the changes may mend would not stay, and cgroups are told as they are called in the VM's scope.
        let scope = format!("/stelia.slice/stelia-instance-{}.scope", PODS[0]);
        let step = format!(
            "{}: write \"isolated\" to cpuset.cpus.partition of {scope}/instance/vcpu",
            PODS[0]
        );
        let reasons = [0, 1].map(|at| json!([PODS[at], "partition-changed", "", ""]));
        let mut planned = answer(json!({"plan": [step], "reasons": reasons}), Mode::DryRun);
        instance_mut(&mut planned.described, PODS[0]).scope = CgroupPath::parse(&scope).unwrap();
        let shown = text(&planned);
        let stays = format!("Would stay wrong: 1 VM ({}): steliactl verify", PODS[1]);
        assert!(
            shown.contains("partition of instance/vcpu\n") && shown.contains(&stays),
            "{shown}"
        );
        // It is done whether or not the VMs are known.
        let alone = Reconciled {
            described: Description::default(),
            ..answer(json!({"plan": []}), Mode::DryRun)
        };
        assert_eq!(text(&alone), "Dry run: steliad would change nothing.\n");
    }
}
