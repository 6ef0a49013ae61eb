//! `doctor`: is this node fit for isolated virtual machines? Needs no daemon.

mod checks;
mod facts;
mod home;
mod kubelet;
mod locality;
mod merge;
mod start;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::view::{Column, Look, Meaning, Render, column, table};
pub use checks::checks;
pub use facts::Facts;
pub(crate) use facts::systemd;
pub(crate) use home::KubeletHome;
pub(crate) use kubelet::KubeletFiles;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// It works, but less well than it could.
    Warning,
    Failed,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The check's name, which documents quote.
    pub check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    /// What to do; empty when the check passed.
    pub(crate) cure: String,
}

const COLUMNS: [Column<Check>; 3] = [
    column("CHECK", |check| check.check.to_owned()),
    column("VERDICT", |check: &Check| match check.verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Warning => "warning".to_owned(),
        Verdict::Failed => "FAILED".to_owned(),
    })
    .means(|check| match check.verdict {
        Verdict::Ok => Meaning::Good,
        Verdict::Warning => Meaning::Attention,
        Verdict::Failed => Meaning::Broken,
    }),
    column("FOUND", |check: &Check| check.found.clone()).yields(1),
];

/// The outcome of all checks. Warnings are not failures.
#[derive(Debug, Serialize)]
pub(crate) struct Examined(Vec<Check>);

/// Runs all checks; `root` is `/`.
pub(crate) fn gather(root: &Path) -> Examined {
    Examined(checks(&Facts::read(root)))
}

impl Render for Examined {
    fn text(&self, look: Look) -> String {
        let mut text = table(&COLUMNS, &self.0, look);
        // The same cure for several VMs is printed once.
        let mut said = BTreeSet::new();
        for Check { check, cure, .. } in self.0.iter().filter(|check| !check.cure.is_empty()) {
            if said.insert((check, cure)) {
                text += &format!("\n{check}: {cure}\n");
            }
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let failed = self.0.iter().filter(|check| check.verdict == Verdict::Failed);
        let failed: Vec<&str> = failed.map(|check| check.check).collect();
        (!failed.is_empty()).then(|| format!("this node is not fit: {}", failed.join(", ")))
    }
}
