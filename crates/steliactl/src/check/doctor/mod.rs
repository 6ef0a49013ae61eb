//! `doctor`: whether this node is ready for VMs. It needs no daemon. What a running one says is wrong on the node is shown, and not
//! checked again.
//!
//! The facts are read once. A check is a pure function of them.

mod facts;
mod host;
mod kubelet;
mod services;
mod state_file;
mod vms;

#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use crate::check::some;
use crate::shared::daemon::{Description, Failure};
use crate::shared::output::{Meaning, Render, TextStyle, paragraph, stacked};
use facts::Facts;
pub(super) use facts::systemd;
pub(crate) use state_file::gather as state_file;

/// In the order in which findings are printed.
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
struct Finding {
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
type Found = Result<Finding, &'static str>;
type Check = fn(&Facts) -> Found;

fn found(outcome: Outcome, fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Finding {
    Finding {
        check: "",
        outcome,
        fact: fact.into(),
        effect,
        fix: fix.into(),
        needs: None,
    }
}

fn pass(fact: impl Into<String>) -> Found {
    Ok(found(Outcome::Pass, fact, "", ""))
}

fn note(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Found {
    Ok(found(Outcome::Note, fact, effect, fix))
}

fn warn(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Found {
    Ok(found(Outcome::Warn, fact, effect, fix))
}

fn fail(fact: impl Into<String>, effect: &'static str, fix: impl Into<String>) -> Found {
    Ok(found(Outcome::Fail, fact, effect, fix))
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

fn examine(facts: &Facts) -> Vec<Finding> {
    let checked = CHECKS.iter().map(|(check, run)| match run(facts) {
        Ok(finding) => Finding { check, ..finding },
        Err(needs) => Finding {
            check,
            needs: Some(needs),
            ..found(Outcome::Skip, format!("needs {needs}"), "", "")
        },
    });
    checked.chain(services::problems(facts)).collect()
}

/// All findings; as JSON a list of them.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Examined {
    findings: Vec<Finding>,
    /// Whether checks that passed or were skipped are printed too.
    #[serde(skip)]
    verbose: bool,
}

/// Runs all checks on the node below `root`. `told`: what the daemon says of it.
pub(crate) async fn gather(root: &Path, told: Result<Description, Failure>, verbose: bool) -> Examined {
    let mut facts = Facts::read(root, told);
    // It speaks of this host only.
    if root == Path::new("/") {
        facts.read_units().await;
    }
    let findings = examine(&facts);
    Examined { findings, verbose }
}

impl Examined {
    fn count(&self, is: impl Fn(&Finding) -> bool) -> usize {
        self.findings.iter().filter(|one| is(one)).count()
    }

    /// The fact, and how many checks were skipped because of it.
    fn fact(&self, one: &Finding) -> String {
        match self.count(|other| other.needs == Some(one.check)) {
            skipped if skipped == 0 || one.outcome == Outcome::Pass => one.fact.clone(),
            1 => format!("{}; 1 check needs it and was skipped", one.fact),
            skipped => format!("{}; {skipped} checks need it and were skipped", one.fact),
        }
    }
}

impl Render for Examined {
    fn text(&self, style: TextStyle) -> String {
        let all = self.verbose || style.wide;
        let mut shown: Vec<&Finding> = self.findings.iter().collect();
        shown.retain(|one| all || one.outcome < Outcome::Pass);
        shown.sort_by_key(|one| one.outcome);
        let blocks = shown.into_iter();
        let blocks = blocks.map(|one| {
            let (label, fact) = (one.outcome.label(), self.fact(one));
            stacked(label, one.check, &fact, one.effect, &one.fix, style)
        });
        let mut text: String = blocks.collect();
        if style.legend {
            let outcome = |outcome| self.count(|one| one.outcome == outcome);
            let summary = format!(
                "{} passed{}, {} skipped. This node is {}ready for VMs.",
                outcome(Outcome::Pass),
                if all { "" } else { " (-v)" },
                outcome(Outcome::Skip),
                if outcome(Outcome::Fail) > 0 { "not " } else { "" },
            );
            text += &paragraph(&summary, style);
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.findings.iter().filter(|one| one.outcome == Outcome::Fail);
        let failed: Vec<&str> = failed.map(|one| one.check).collect();
        (!failed.is_empty()).then(|| format!("this node is not ready for VMs: {}", failed.join(", ")))
    }
}
