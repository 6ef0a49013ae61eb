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

use super::cli::Json;
use super::client::Failure;
use super::view;
pub use checks::checks;
pub use facts::Facts;
pub use home::KubeletHome;
pub use kubelet::KubeletFiles;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and less well than it could.
    Warning,
    /// The promise cannot be kept so.
    Failed,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub check: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; empty when all is well.
    pub cure: String,
}

/// What is to be printed.
///
/// # Errors
/// [`Failure::Partial`] when a check failed; warnings are no failure.
pub fn run(root: &Path, json: Json, legend: bool) -> Result<String, Failure> {
    let checks = checks(&Facts::read(root));
    let printed = if json.is_on() {
        view::to_json(json, &checks)
    } else {
        text(&checks, legend)
    };
    let failed: Vec<&str> = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Failed)
        .map(|check| check.check)
        .collect();
    if failed.is_empty() {
        return Ok(printed);
    }
    Err(Failure::Partial {
        printed,
        reason: format!("this node is not fit: {}", failed.join(", ")),
    })
}

fn text(checks: &[Check], legend: bool) -> String {
    let rows = checks.iter().map(|check| {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "FAILED",
        };
        vec![check.check.to_owned(), verdict.to_owned(), view::or_dash(&check.found)]
    });
    let mut text = view::table(&["CHECK", "VERDICT", "FOUND"], rows.collect(), legend, None);
    // What cures several VMs is said once.
    let mut said = BTreeSet::new();
    for check in checks.iter().filter(|check| !check.cure.is_empty()) {
        if !said.insert((check.check, &check.cure)) {
            continue;
        }
        text += &format!("\n{}: {}\n", check.check, check.cure);
    }
    text
}
