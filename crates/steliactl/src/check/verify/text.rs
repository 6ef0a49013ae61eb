//! The findings as text, failures first: each with its effect and fix below it. What many VMs have is told once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Kind, Verified};
use crate::shared::daemon::{Pod, age, whose};
use crate::shared::output::{Meaning, Render, TextStyle, counted, hanging};

/// So many VMs with a finding of one code have a line each; more are told by one of them.
const MAX_ALONE: usize = 3;

impl Render for Verified {
    /// The VMs because of which the command fails.
    fn names(&self) -> Vec<String> {
        let failing = self.findings.iter().filter(|one| one.fails && one.pod.pod_uid != "-");
        let mut names: Vec<String> = failing.map(|one| one.pod.to_string()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn text(&self, style: TextStyle) -> String {
        let mut text: String = folded(&self.findings, style)
            .iter()
            .map(|same| self.lines(same, style))
            .collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text + &self.summary() + "\n"
    }

    fn failure(&self) -> Option<String> {
        let failing = counts(self.findings.iter().filter(|one| one.fails));
        (!failing.is_empty()).then_some(failing)
    }
}

/// `2 failures, 10 waiting`; empty where there are none.
fn counts<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let (waiting, others): (Vec<&Finding>, Vec<&Finding>) = findings.partition(|one| one.kind == Kind::Waiting);
    let failures = others.iter().filter(|one| one.fails).count() as u64;
    let mut parts = Vec::new();
    if failures > 0 {
        parts.push(counted(failures, "failure"));
    }
    if !waiting.is_empty() {
        parts.push(format!("{} waiting", waiting.len()));
    }
    parts.join(", ")
}

/// Findings of one kind and code with the same words, or too many to be told one by one. With `-o wide` each is alone.
fn folded(findings: &[Finding], style: TextStyle) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<(_, Vec<&Finding>)> = Vec::new();
    for one in findings {
        let is_failure = one.fails && one.kind != Kind::Waiting;
        let key = (one.kind, &one.code, is_failure, one.pod.pod_uid == "-");
        let same = groups
            .iter_mut()
            .find(|(other, _)| *other == key && !style.wide && !key.3);
        match same {
            Some((_, group)) => group.push(one),
            None => groups.push((key, vec![one])),
        }
    }
    groups.into_iter().flat_map(|(_, group)| by_text(group)).collect()
}

/// By their words, if these are not too many.
fn by_text(group: Vec<&Finding>) -> Vec<Vec<&Finding>> {
    let mut by_text: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for one in &group {
        by_text.entry(&one.text).or_default().push(one);
    }
    match by_text.len() {
        0..=MAX_ALONE => by_text.into_values().collect(),
        _ => vec![group],
    }
}

fn all(pods: &[&Pod]) -> String {
    let names: Vec<String> = pods.iter().map(|pod| pod.to_string()).collect();
    names.join(", ")
}

impl Verified {
    fn lines(&self, same: &[&Finding], style: TextStyle) -> String {
        let Some(first) = same.iter().min_by_key(|one| one.since_us) else {
            return String::new();
        };
        let (label, meaning) = match first.kind {
            Kind::Waiting => ("WAIT", Meaning::Attention),
            _ if first.fails => ("FAIL", Meaning::Broken),
            _ => ("NOTE", Meaning::Attention),
        };
        // A VM may have several findings of one kind, as of several threads.
        let mut named = BTreeSet::new();
        let mut pods: Vec<&Pod> = same.iter().map(|one| &one.pod).collect();
        pods.retain(|pod| named.insert(&pod.pod_uid));
        let more = match (pods.len(), same.len()) {
            (1, findings @ 2..) => format!(" (and {} more of the kind)", findings - 1),
            _ => String::new(),
        };
        let whose = match pods.as_slice() {
            [pod] if pod.pod_uid == "-" => "node".to_owned(),
            [pod] if style.wide => pod.in_full(),
            [pod] => pod.to_string(),
            _ if same.iter().all(|one| one.text == first.text) => match style.width {
                Some(_) => whose(&pods),
                None => format!("{} VMs ({})", pods.len(), all(&pods)),
            },
            _ => format!("{} VMs, such as {}", pods.len(), first.pod),
        };
        let waits = first.since_us.filter(|since| *since > 0);
        let waits = waits
            .map(|since| format!(" ({})", age(since, self.now)))
            .unwrap_or_default();
        let mut text = hanging(
            label,
            6,
            meaning,
            &format!("{whose}: {}{more}{waits}", first.text),
            style,
        );
        for (name, line) in [("effect", first.effect), ("fix", &first.fix)] {
            if !line.is_empty() {
                text += &hanging(&format!("      {name}"), 14, Meaning::Plain, line, style);
            }
        }
        text
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
        match counts(self.findings.iter()) {
            counts if counts.is_empty() => text + ".",
            counts => format!("{text}. {counts}."),
        }
    }
}
