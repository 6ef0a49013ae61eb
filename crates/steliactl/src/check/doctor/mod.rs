//! `doctor`: whether this node is ready for isolated VMs. Needs no daemon; one that runs is asked about interrupts, the ledger and memory.
//!
//! The facts are read first. A check is a pure function of them.

mod daemon;
mod facts;
mod host;
mod kubelet;
mod noise;
mod state_file;
mod vms;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use stelia_cpus::Topology;
use stelia_kubelet::{CpuManagerState, KubeletConfig};

use crate::shared::daemon::{Client, Description, Pods};
use crate::shared::output::blocks::finding;
use crate::shared::output::{Meaning, Render, TextStyle, paragraph};
use facts::Facts;
pub(super) use facts::systemd;
use noise::Noise;
pub(super) use noise::managed_irq_cpus;
use state_file::StateFile;

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
    outcome: Outcome,
    fact: String,
    /// A command or an instruction; empty when there is nothing to do.
    fix: String,
    /// Of a skipped check the one that did not pass.
    needs: Option<&'static str>,
}

impl Finding {
    fn new(outcome: Outcome, fact: impl Into<String>) -> Self {
        Self {
            outcome,
            fact: fact.into(),
            fix: String::new(),
            needs: None,
        }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        let fix = fix.into();
        Self { fix, ..self }
    }
}

fn pass(fact: impl Into<String>) -> Finding {
    Finding::new(Outcome::Pass, fact)
}

fn note(fact: impl Into<String>) -> Finding {
    Finding::new(Outcome::Note, fact)
}

fn warn(fact: impl Into<String>) -> Finding {
    Finding::new(Outcome::Warn, fact)
}

fn fail(fact: impl Into<String>) -> Finding {
    Finding::new(Outcome::Fail, fact)
}

/// A warning that names all of these, or a pass where there are none.
fn warn_of(wrong: impl IntoIterator<Item = String>, fix: &str, otherwise: impl Into<String>) -> Finding {
    let wrong: Vec<String> = wrong.into_iter().collect();
    match wrong.as_slice() {
        [] => pass(otherwise),
        wrong => warn(wrong.join("; ")).fix(fix),
    }
}

/// `needs` is the check that says why.
fn skip(needs: &'static str) -> Finding {
    Finding {
        needs: Some(needs),
        ..Finding::new(Outcome::Skip, format!("needs {needs}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    /// Its name, which documents quote.
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

/// A check, by what it needs beside the facts. Without that it is skipped.
enum Run {
    Facts(fn(&Facts) -> Finding),
    Kubelet(fn(&Facts, &KubeletConfig) -> Finding),
    Topology(fn(&Facts, &Topology) -> Finding),
    State(fn(&Facts, &CpuManagerState) -> Finding),
    Daemon(fn(&Facts, &Description) -> Finding),
    /// What was measured on the CPUs of VMs; the check passes where no VM has CPUs.
    Noise(fn(&Facts, &Noise) -> Finding),
}

impl Run {
    fn on(&self, facts: &Facts) -> Finding {
        match self {
            Self::Facts(check) => check(facts),
            Self::Kubelet(check) => with(facts.kubelet.as_ref().ok(), KUBELET, |kubelet| check(facts, kubelet)),
            Self::Topology(check) => with(facts.topology.as_ref().ok(), CPUS, |topology| check(facts, topology)),
            Self::State(check) => match &facts.state {
                Ok(state) => check(facts, state),
                Err(_) => skip(if facts.has_no_state_yet() { KUBELET } else { STATE }),
            },
            Self::Daemon(check) => with(facts.described.as_ref(), DAEMON, |told| check(facts, told)),
            Self::Noise(check) => match (&facts.noise, &facts.described) {
                (Some(noise), _) => check(facts, noise),
                (None, Some(_)) => pass("no VM has CPUs"),
                (None, None) => skip(DAEMON),
            },
        }
    }
}

fn with<T>(found: Option<&T>, needs: &'static str, check: impl FnOnce(&T) -> Finding) -> Finding {
    found.map_or_else(|| skip(needs), check)
}

const KUBELET: &str = "kubelet";
const STATE: &str = "kubelet-state";
const CPUS: &str = "cpus";
const QUIET: &str = "steliad-quiet";
const DAEMON: &str = "daemon";

/// All checks but `locality`, the most basic first.
const CHECKS: [(&str, Run); 34] = [
    ("cgroup", Run::Facts(host::cgroup)),
    ("kernel", Run::Facts(host::kernel)),
    ("systemd", Run::Facts(host::systemd)),
    ("kvm", Run::Facts(host::kvm)),
    (KUBELET, Run::Facts(kubelet::process)),
    ("kubelet-home", Run::Facts(kubelet::home)),
    ("kubelet-config", Run::Kubelet(kubelet::config)),
    ("kubelet-cgroups", Run::Facts(kubelet::cgroups)),
    ("kubelet-policy", Run::Facts(kubelet::policy)),
    ("dra-driver", Run::Facts(kubelet::dra)),
    ("crun", Run::State(vms::quotas)),
    (STATE, Run::Facts(kubelet::state)),
    ("kubelet-start", Run::Facts(kubelet::start)),
    ("hint-merge", Run::Kubelet(kubelet::merge)),
    (CPUS, Run::Facts(host::cpus)),
    ("whole-cores", Run::State(vms::whole_cores)),
    ("core-scheduling", Run::Topology(vms::core_scheduling)),
    ("numa-balancing", Run::Facts(vms::numa_balancing)),
    ("sched-ext", Run::Facts(host::sched_ext)),
    ("isolcpus", Run::Facts(host::isolcpus)),
    ("offline", Run::Facts(host::offline)),
    (QUIET, Run::Daemon(daemon::quiet)),
    ("irq-steering", Run::Daemon(daemon::steering)),
    ("irqbalance", Run::Facts(daemon::irqbalance)),
    ("nohz_full", Run::Noise(noise::nohz_full)),
    ("rcu_nocbs", Run::Noise(noise::rcu_nocbs)),
    ("managed_irq", Run::Noise(noise::managed_irq)),
    ("rps", Run::Noise(noise::rps)),
    ("ledger", Run::Daemon(daemon::ledger)),
    ("publish", Run::Daemon(daemon::publish)),
    ("device-plugin", Run::Facts(daemon::device_plugin)),
    ("vm-memory", Run::Daemon(daemon::vm_memory)),
    ("runner-socket", Run::Facts(daemon::socket)),
    (DAEMON, Run::Facts(daemon::runs)),
];

fn checks(facts: &Facts) -> Vec<Check> {
    let single = CHECKS.iter().map(|(name, check)| (*name, check.on(facts)));
    let localities = vms::locality(facts).into_iter();
    let all = single.chain(localities.map(|finding| ("locality", finding)));
    all.map(|(check, finding)| Check { check, finding }).collect()
}

/// The findings of all checks; as JSON a list of them.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Examined {
    checks: Vec<Check>,
    /// Whether those that passed are printed too.
    #[serde(skip)]
    verbose: bool,
}

/// Runs all checks on the node below `root`. A daemon is asked if it runs. Where VMs have CPUs, what disturbs them is measured, which takes a
/// second.
pub(crate) async fn gather(root: &Path, client: Option<&Client>, verbose: bool) -> Examined {
    let mut facts = Facts::read(root);
    if let Some(client) = client {
        // systemd speaks of this host only.
        if root == Path::new("/") {
            facts.plugin_status = daemon::plugin_status(client.connection()).await;
        }
        facts.described = client.describe().await.ok();
    }
    if let Some(described) = &facts.described {
        facts.noise = Noise::measure(root, described).await;
    }
    let checks = checks(&facts);
    Examined { checks, verbose }
}

/// What steliad reads from one of kubelet's files on the node below `root`.
pub(crate) fn state_file(path: &Path, root: &Path) -> StateFile {
    state_file::gather(path, root, &Pods::by_logs(root))
}

impl Examined {
    fn count(&self, is: impl Fn(&Finding) -> bool) -> usize {
        self.checks.iter().filter(|check| is(&check.finding)).count()
    }

    /// The fact, and how many checks were skipped because of it.
    fn fact(&self, check: &Check) -> String {
        let fact = &check.finding.fact;
        match self.count(|finding| finding.needs == Some(check.check)) {
            skipped if skipped == 0 || check.finding.outcome == Outcome::Pass => fact.clone(),
            1 => format!("{fact}; 1 check needs it and was skipped"),
            skipped => format!("{fact}; {skipped} checks need it and were skipped"),
        }
    }
}

impl Render for Examined {
    fn text(&self, style: TextStyle) -> String {
        let all = self.verbose || style.wide;
        let mut shown: Vec<&Check> = self.checks.iter().collect();
        shown.retain(|check| all || !matches!(check.finding.outcome, Outcome::Pass | Outcome::Skip));
        shown.sort_by_key(|check| check.finding.outcome);
        let width = shown.iter().map(|check| check.check.len()).max().unwrap_or(0);
        let mut text = String::new();
        let is_silent = |one: &&Check| one.check == DAEMON && one.finding.outcome != Outcome::Pass;
        if shown.iter().any(is_silent) {
            text += &paragraph("steliad does not answer. Running VMs stay isolated.\n\n", style);
        }
        let mut told = BTreeSet::new();
        for check in shown {
            // What several VMs have in common is told once.
            let is_new = told.insert((check.check, &check.finding.fix));
            let fix = if is_new { check.finding.fix.as_str() } else { "" };
            let subject = format!("{:width$}", check.check);
            text += &finding(check.finding.outcome.label(), &subject, &self.fact(check), fix, style);
        }
        if style.legend {
            let outcome = |outcome| self.count(|finding| finding.outcome == outcome);
            let summary = format!(
                "{} passed{}, {} skipped.  This node is {}ready for VMs.",
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
        let failed = self.checks.iter().filter(|one| one.finding.outcome == Outcome::Fail);
        let mut failed: Vec<&str> = failed.map(|one| one.check).collect();
        failed.dedup();
        (!failed.is_empty()).then(|| format!("this node is not ready for VMs: {}", failed.join(", ")))
    }
}
