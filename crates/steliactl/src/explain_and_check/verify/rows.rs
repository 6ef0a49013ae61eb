//! The findings as rows of a table: what several VMs have in common is one row.

use super::Finding;
use crate::shared::daemon::{Pod, whose};
use crate::shared::output::{Column, Meaning, column};

/// Findings that are the same of several VMs.
pub(crate) struct FoldedFinding<'a> {
    pods: Vec<&'a Pod>,
    problem: &'a str,
    /// The one that has waited longest.
    finding: &'a Finding,
}

impl<'a> FoldedFinding<'a> {
    /// One a kind, problem and cure, whatever is of one VM alone.
    pub(super) fn all(findings: &'a [Finding]) -> Vec<Self> {
        let key = |one: &'a Finding| {
            let problem = one.common.as_ref().unwrap_or(&one.problem);
            (&one.kind, problem, &one.cure, one.vms)
        };
        let mut rows: Vec<Self> = Vec::new();
        for one in findings {
            match rows.iter_mut().find(|row| key(row.finding) == key(one)) {
                Some(row) => row.add(one),
                None => rows.push(Self {
                    pods: vec![&one.pod],
                    problem: &one.problem,
                    finding: one,
                }),
            }
        }
        rows
    }

    fn add(&mut self, other: &'a Finding) {
        if !self.pods.contains(&&other.pod) {
            self.pods.push(&other.pod);
        }
        if other.since_us.is_some() && other.since_us < self.finding.since_us {
            self.finding = other;
        }
        self.problem = match self.finding.since_us {
            Some(_) => &self.finding.problem,
            None if self.problem == other.problem => self.problem,
            None => self.finding.common.as_ref().unwrap_or(&self.finding.problem),
        };
    }

    fn problem(&self) -> String {
        match self.finding.vms {
            vms @ 2.. => format!("{} ({vms} VMs)", self.problem),
            _ => self.problem.to_owned(),
        }
    }
}

pub(crate) const fn columns<'a>() -> [Column<FoldedFinding<'a>>; 4] {
    [
        column("POD", |one: &FoldedFinding<'_>| whose(&one.pods))
            .yields(1)
            .shortens(),
        column("POD UID", |one: &FoldedFinding<'_>| match one.pods.as_slice() {
            [pod] => pod.pod_uid.clone(),
            _ => String::new(),
        })
        .wide(),
        column("PROBLEM", FoldedFinding::problem)
            .wraps()
            .means(|_| Meaning::Broken),
        column("CURE", |one: &FoldedFinding<'_>| one.finding.cure.clone())
            .wraps()
            .whole(),
    ]
}
