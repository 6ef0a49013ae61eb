//! The findings as text, failures first: each with its effect and fix below it. What many VMs have is told once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Kind, NODE, Verified};
use crate::shared::daemon::{Pod, age, whose};
use crate::shared::output::{Meaning, Render, TextStyle, counted, hanging};

/// So many different texts with one code are told one by one; more are told by one of them.
const MAX_TEXTS: usize = 3;

/// Stacked lines: what is wrong with whom, and below it what follows and what to do.
pub(crate) fn stacked(
    (label, meaning): (&str, Meaning),
    subject: &str,
    text: &str,
    effect: &str,
    fix: &str,
    style: TextStyle,
) -> String {
    let mut lines = hanging(label, 6, meaning, &format!("{subject}: {text}"), style);
    for (name, line) in [("      effect", effect), ("      fix", fix)] {
        if !line.is_empty() {
            lines += &hanging(name, 14, Meaning::Plain, line, style);
        }
    }
    lines
}

/// Whom it is about.
pub(crate) fn subject(pods: &[&Pod]) -> String {
    match pods {
        [pod] if pod.pod_uid == NODE => "node".to_owned(),
        pods => whose(pods),
    }
}

impl Render for Verified {
    /// The VMs because of which the command fails.
    fn names(&self) -> Vec<String> {
        let failing = self.findings.iter().filter(|one| one.fails && one.pod.pod_uid != NODE);
        let names: BTreeSet<String> = failing.map(|one| one.pod.to_string()).collect();
        names.into_iter().collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let groups = grouped(&self.findings, style);
        let mut text: String = groups.iter().map(|same| self.lines(same, style)).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text + &self.summary() + "\n"
    }

    fn failure(&self) -> Option<String> {
        let failures = self.findings.iter().filter(|one| one.fails).count() as u64;
        (failures > 0).then(|| counted(failures, "failure"))
    }
}

/// Findings of one kind and code with the same words, or with too many to be told one by one. With `-o wide`, and of the node, each is alone.
fn grouped(findings: &[Finding], style: TextStyle) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for one in findings {
        let is_alone = |one: &Finding| style.wide || one.pod.pod_uid == NODE;
        let is_like = |other: &Finding| (other.kind, &other.code, other.fails) == (one.kind, &one.code, one.fails);
        let with = |group: &&mut Vec<&Finding>| group.iter().all(|other| is_like(other) && !is_alone(other));
        match groups.iter_mut().find(with) {
            Some(group) if !is_alone(one) => group.push(one),
            _ => groups.push(vec![one]),
        }
    }
    groups.into_iter().flat_map(by_text).collect()
}

/// By their words, if these are not too many.
fn by_text(group: Vec<&Finding>) -> Vec<Vec<&Finding>> {
    let mut by_text: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for one in &group {
        by_text.entry(&one.text).or_default().push(one);
    }
    if by_text.len() <= MAX_TEXTS {
        by_text.into_values().collect()
    } else {
        vec![group]
    }
}

impl Verified {
    fn lines(&self, same: &[&Finding], style: TextStyle) -> String {
        let Some(first) = same.iter().min_by_key(|one| one.since_us) else {
            return String::new();
        };
        let label = match first.kind {
            _ if first.fails => ("FAIL", Meaning::Broken),
            Kind::Waiting => ("WAIT", Meaning::Attention),
            _ => ("NOTE", Meaning::Attention),
        };
        // A VM may have several findings of one kind, as of several threads.
        let pods: BTreeSet<&Pod> = same.iter().map(|one| &one.pod).collect();
        let pods: Vec<&Pod> = pods.into_iter().collect();
        let subject = match pods.as_slice() {
            [pod] if style.wide && pod.pod_uid != NODE => pod.in_full(),
            [one, _, ..] if same.iter().any(|other| other.text != first.text) => {
                format!("{} VMs, such as {one}", pods.len())
            }
            pods => subject(pods),
        };
        let mut text = first.text.clone();
        if let ([_], more @ 1..) = (pods.as_slice(), same.len() - 1) {
            text += &format!(" (and {more} more of the kind)");
        }
        if let Some(since) = first.since_us {
            let until = if self.allow_waiting || first.fails {
                ""
            } else {
                "; fails after 60 s"
            };
            text += &format!(" ({}{until})", age(since, self.now));
        }
        stacked(label, &subject, &text, first.effect, &first.fix, style)
    }

    /// `189 of 200 VMs verified in the kernel. 2 failures, 10 waiting.`
    fn summary(&self) -> String {
        if self.instances.is_empty() && self.findings.is_empty() {
            return "No VMs.".to_owned();
        }
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for vm in self.instances.iter().filter(|one| one.verified) {
            *states.entry(vm.state.name()).or_default() += 1;
        }
        let (verified, all) = (states.values().sum::<usize>(), self.instances.len() as u64);
        let mut text = format!("{verified} of {} verified in the kernel", counted(all, "VM"));
        if states.keys().any(|state| *state != "isolated") {
            let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            text += &format!(" ({})", states.join(", "));
        }
        let waiting = self
            .findings
            .iter()
            .filter(|one| one.kind == Kind::Waiting && !one.fails);
        let waiting = waiting.count();
        let waiting = (waiting > 0).then(|| format!("{waiting} waiting"));
        let counts: Vec<String> = self.failure().into_iter().chain(waiting).collect();
        if !counts.is_empty() {
            text += &format!(". {}", counts.join(", "));
        }
        text + "."
    }
}
