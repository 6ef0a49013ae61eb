//! `doctor`: whether this node is ready for VMs. It needs no daemon. What a running one says is wrong on the node is shown, and not
//! checked again.
//!
//! What is observed is read once. A check is a pure function of it.

mod host;
mod kubelet;
mod observed;
mod services;
mod state_file;
mod vms;

#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use crate::check::first_few;
use crate::shared::daemon::{Description, Failure};
use crate::shared::output::{Meaning, Render, TextStyle, paragraph, stacked};
use observed::Observed;
pub(super) use observed::systemd;
pub(crate) use state_file::read_state_file;

/// In the order in which diagnoses are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Fail,
    /// VMs run, but less well than they could.
    Warn,
    /// For the administrator to weigh: what would make it better, or what cannot be determined.
    Note,
    Pass,
    /// Not run, because another check did not pass.
    Skip,
}

impl Outcome {
    const fn label(self) -> (&'static str, Meaning) {
        match self {
            Self::Fail => ("FAIL", Meaning::Broken),
            Self::Warn => ("WARN", Meaning::Attention),
            Self::Note => ("NOTE", Meaning::Plain),
            Self::Pass => ("PASS", Meaning::Good),
            Self::Skip => ("SKIP", Meaning::Absent),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Diagnosis {
    /// The check's name, which documents quote; of what the daemon says, the reason's code.
    check: &'static str,
    outcome: Outcome,
    fact: String,
    /// What follows from it; empty where the fact says it.
    effect: &'static str,
    /// A command or an instruction; empty where there is nothing to do.
    fix: String,
    /// Of a skipped check the one that did not pass.
    needs: Option<&'static str>,
}

/// `Err`: the check is skipped, because the one of this name did not pass.
type CheckResult = Result<Diagnosis, &'static str>;
type Check = fn(&Observed) -> CheckResult;

fn diagnosis(outcome: Outcome, fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Diagnosis {
    Diagnosis {
        check: "",
        outcome,
        fact: fact.into(),
        effect,
        fix: fix.into(),
        needs: None,
    }
}

fn pass(fact: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Pass, fact, "", ""))
}

fn note(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Note, fact, effect, fix))
}

fn warn(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Warn, fact, effect, fix))
}

fn fail(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> CheckResult {
    Ok(diagnosis(Outcome::Fail, fact, effect, fix))
}

/// An effect that several checks name.
const NO_VMS: &str = "no new VMs; running VMs keep their CPUs";

const KUBELET: &str = "kubelet";
const STATE: &str = "kubelet-state";
const DAEMON: &str = "daemon";

/// The most basic first.
const CHECKS: [(&str, Check); 22] = [
    ("cgroup", host::cgroup),
    ("kernel", host::kernel),
    ("systemd", host::systemd),
    ("kvm", host::kvm),
    (KUBELET, kubelet::configuration),
    ("kubelet-home", kubelet::home),
    ("kubelet-cgroups", kubelet::cgroups),
    ("kubelet-policy", kubelet::policy),
    ("dra-driver", kubelet::dra),
    (STATE, kubelet::state),
    ("kubelet-start", kubelet::start),
    ("crun", vms::quotas),
    ("cpus", host::cpus),
    ("isolcpus", host::isolcpus),
    ("numa-balancing", vms::numa_balancing),
    (DAEMON, services::daemon),
    ("runner-socket", services::socket),
    ("device-plugin", services::device_plugin),
    ("irq-steering", services::steering),
    ("ledger", services::ledger),
    ("vm-memory", vms::memory),
    ("locality", vms::locality),
];

fn examine(seen: &Observed) -> Vec<Diagnosis> {
    let checked = CHECKS.iter().map(|(check, run)| match run(seen) {
        Ok(diagnosis) => Diagnosis { check, ..diagnosis },
        Err(needs) => Diagnosis {
            check,
            needs: Some(needs),
            ..diagnosis(Outcome::Skip, format!("needs {needs}"), "", "")
        },
    });
    checked.chain(services::problems(seen)).collect()
}

/// All diagnoses; as JSON a list of them.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Examined {
    diagnoses: Vec<Diagnosis>,
    /// Whether checks that passed or were skipped are printed too.
    #[serde(skip)]
    verbose: bool,
}

/// Runs all checks on the node below `root`. `described`: what the daemon says of it.
pub(crate) async fn gather(root: &Path, described: Result<Description, Failure>, verbose: bool) -> Examined {
    let mut seen = Observed::read(root, described);
    // systemctl speaks of this host only.
    if root == Path::new("/") {
        seen.read_units().await;
    }
    let diagnoses = examine(&seen);
    Examined { diagnoses, verbose }
}

impl Examined {
    fn count(&self, is: impl Fn(&Diagnosis) -> bool) -> usize {
        self.diagnoses.iter().filter(|one| is(one)).count()
    }
}

impl Render for Examined {
    fn text(&self, style: TextStyle) -> String {
        let all = self.verbose || style.wide;
        let mut shown: Vec<&Diagnosis> = self.diagnoses.iter().collect();
        shown.retain(|one| all || one.outcome < Outcome::Pass);
        shown.sort_by_key(|one| one.outcome);
        let blocks = shown.into_iter();
        let blocks = blocks.map(|one| {
            let label = one.outcome.label();
            stacked(label, one.check, &one.fact, one.effect, &one.fix, style)
        });
        let mut text: String = blocks.collect();
        if style.legend {
            let outcome = |outcome| self.count(|one| one.outcome == outcome);
            let skipped = Some(outcome(Outcome::Skip)).filter(|count| *count > 0);
            let summary = format!(
                "{} passed{}{}. {}.",
                outcome(Outcome::Pass),
                if all { "" } else { " (-v)" },
                skipped.map_or(String::new(), |count| format!(", {count} skipped")),
                self.failure().map_or("This node is ready for VMs".to_owned(), |not| not
                    .replace("this", "This")),
            );
            text += &paragraph(&summary, style);
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.diagnoses.iter().filter(|one| one.outcome == Outcome::Fail);
        let failed: Vec<&str> = failed.map(|one| one.check).collect();
        (!failed.is_empty()).then(|| format!("this node is not ready for VMs: {}", failed.join(", ")))
    }
}
