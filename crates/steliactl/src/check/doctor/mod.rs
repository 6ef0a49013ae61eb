//! `doctor`: is this node fit for isolated virtual machines? Needs no daemon; one that runs is asked about interrupts.

mod cgroups;
mod checks;
mod config;
mod cores;
mod crun;
mod device_plugin;
mod dra;
mod facts;
mod home;
mod interrupts;
mod kubelet;
mod ledger;
mod locality;
mod merge;
mod noise;
mod publish;
pub(super) mod scheduler_settings;
mod start;
mod state_file;
mod vm_memory;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stelia_cpus::CpuSet;

use crate::shared::daemon::{Description, Pods};
use crate::shared::output::{Column, Meaning, Render, TextStyle, column, paragraph, printable, table};
use cgroups::Misplaced;
use checks::{Finding, checks};
pub(crate) use device_plugin::status as plugin_status;
use facts::Facts;
pub(super) use facts::systemd;
use home::KubeletHome;
use kubelet::{ConfigProblem, KubeletFiles};
use noise::Noise;
pub(super) use noise::managed_irq_cpus;
use state_file::StateFile;
use vm_memory::OutsideMemory;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// It cannot be decided, because the daemon or a file does not answer.
    Unknown,
    /// It works, and this would make it better: for the administrator to weigh.
    Advice,
    /// It works, but less well than it could.
    Warning,
    Failed,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    /// The check's name, which documents quote.
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

const COLUMNS: [Column<Check>; 3] = [
    column("CHECK", |check| check.check.to_owned()),
    column("VERDICT", |check: &Check| match check.finding.verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Unknown => "unknown".to_owned(),
        Verdict::Advice => "advice".to_owned(),
        Verdict::Warning => "warning".to_owned(),
        Verdict::Failed => "FAILED".to_owned(),
    })
    .means(|check| match check.finding.verdict {
        Verdict::Ok => Meaning::Good,
        Verdict::Unknown | Verdict::Advice => Meaning::Plain,
        Verdict::Warning => Meaning::Attention,
        Verdict::Failed => Meaning::Broken,
    }),
    column("FOUND", |check: &Check| check.finding.found.clone()).wraps(),
];

/// The outcome of all checks. Advice and warnings are not failures.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Examined(Vec<Check>);

/// Runs all checks; `root` is `/`, `plugin_status` what systemd says of the device plugin. What only the daemon knows is `None` where it does
/// not answer; where it knows of VMs with CPUs their noise is measured, which takes a second.
pub(crate) async fn gather(root: &Path, described: Option<Description>, plugin_status: Option<String>) -> Examined {
    let mut facts = Facts::read(root);
    facts.device_plugin.status = plugin_status;
    if let Some(described) = described {
        let instances = described.node.instances.values();
        let cpus = instances.fold(CpuSet::new(), |all, one| all.union(&one.exclusive));
        if !cpus.is_empty() {
            facts.noise = Some(Noise::measure(root, &cpus).await);
        }
        facts.outside_memory = Some(OutsideMemory::of(&described));
        facts.device_plugin.admission_problem = Some(described.node.admission_text());
        facts.quiet = Some(Arc::unwrap_or_clone(described.node.quiet));
        facts.ledger = Some(Arc::unwrap_or_clone(described.node.ledger));
        facts.publishing = Some(Arc::unwrap_or_clone(described.node.publishing));
    }
    Examined(checks(&facts))
}

/// What steliad reads from one of kubelet's files, with the names of the pods of the node below `root`.
pub(crate) fn state_file(path: &Path, root: &Path) -> StateFile {
    state_file::gather(path, &Pods::by_logs(root))
}

impl Render for Examined {
    fn text(&self, style: TextStyle) -> String {
        let mut text = table(&COLUMNS, &self.0, style);
        // A remedy that several VMs have is printed once.
        let mut said = BTreeSet::new();
        for Check { check, finding } in &self.0 {
            let cure = &finding.cure;
            if !cure.is_empty() && said.insert((check, cure)) {
                text += &format!("\n{}", paragraph(&printable(&format!("{check}: {cure}")), style));
            }
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.0.iter().filter(|check| check.finding.verdict == Verdict::Failed);
        let failed: Vec<&str> = failed.map(|check| check.check).collect();
        (!failed.is_empty()).then(|| format!("this node is not fit: {}", failed.join(", ")))
    }
}
