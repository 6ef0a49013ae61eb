//! The findings as text: each with what to do below it. What several VMs have in common is told once.

use super::{Finding, Kind};
use crate::shared::daemon::{Pod, whose};
use crate::shared::output::{self, Meaning, TextStyle};

/// Where the text begins, right of the label.
const INDENT: usize = 6;
/// The least room for text on a narrow terminal.
const MIN_ROOM: usize = 24;

/// Findings that are the same of several VMs.
pub(super) struct FoldedFinding<'a> {
    pods: Vec<&'a Pod>,
    problem: &'a str,
    /// The one that has waited longest.
    pub(super) finding: &'a Finding,
}

impl<'a> FoldedFinding<'a> {
    /// Groups findings with the same kind, problem and cure, without what differs between VMs. With `-o wide` each finding stays alone.
    pub(super) fn all(findings: &'a [Finding], style: TextStyle) -> Vec<Self> {
        let key = |one: &'a Finding| {
            let problem = one.common.as_ref().unwrap_or(&one.problem);
            (&one.kind, problem, &one.cure, one.vms)
        };
        let mut rows: Vec<Self> = Vec::new();
        for one in findings {
            let same = |row: &&mut Self| !style.wide && key(row.finding) == key(one);
            match rows.iter_mut().find(same) {
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

    /// The problem, and below it what to do; and whether it makes the command fail.
    pub(super) fn text(&self, is_failing: bool, style: TextStyle) -> String {
        let whose = match self.pods.as_slice() {
            [pod] if pod.pod_uid == "-" => "node".to_owned(),
            [pod] if style.wide => pod.in_full(),
            pods => whose(pods),
        };
        let many = match self.finding.vms {
            vms @ 2.. => format!(" ({vms} VMs)"),
            _ => String::new(),
        };
        let (label, meaning) = match self.finding.kind {
            Kind::Waiting => ("WAIT", Meaning::Attention),
            _ if !is_failing => ("NOTE", Meaning::Attention),
            _ => ("FAIL", Meaning::Broken),
        };
        let lines = [
            (meaning.paint(label, style), format!("{whose}: {}{many}", self.problem)),
            (" ".repeat(label.len()), format!("fix: {}", self.finding.cure)),
        ];
        lines.map(|(label, text)| hanging(&label, &text, style)).concat()
    }
}

/// The text beside a label; further lines begin where the first one does.
fn hanging(label: &str, text: &str, style: TextStyle) -> String {
    let text = output::printable(text);
    let room = style.width.map(|width| width.saturating_sub(INDENT).max(MIN_ROOM));
    let lines = room.map_or_else(|| vec![text.clone()], |room| output::wrap_words(&text, room));
    format!("{label}  {}\n", lines.join(&format!("\n{}", " ".repeat(INDENT))))
}
