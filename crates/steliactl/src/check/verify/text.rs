//! The findings as text, failures first: each with its effect and fix below it. What many VMs have is told once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Kind, NODE, Verified};
use crate::shared::daemon::{Pod, age, whose};
use crate::shared::output::{Meaning, Render, TextStyle, counted, natural, paragraph, stacked};

/// If one code has more different texts than this, only the first is printed. With `-o wide`, and of the node, each is printed.
const MAX_TEXTS: usize = 3;

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
        let mut names: Vec<String> = failing.map(|one| one.pod.to_string()).collect();
        names.sort_by_cached_key(|name| natural(name));
        names.dedup();
        names
    }

    fn text(&self, style: TextStyle) -> String {
        let mut texts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for one in &self.findings {
            texts.entry(&one.code).or_default().insert(&one.text);
        }
        let mut groups: BTreeMap<_, Vec<&Finding>> = BTreeMap::new();
        for (at, one) in self.findings.iter().enumerate() {
            let alone = (style.wide || one.pod.pod_uid == NODE).then_some(at);
            let are_few = texts
                .get(one.code.as_str())
                .is_some_and(|texts| texts.len() <= MAX_TEXTS);
            let text = are_few.then_some(&one.text);
            groups
                .entry((one.order(), alone, &one.code, text))
                .or_default()
                .push(one);
        }
        let mut text: String = groups.values().map(|group| self.lines(group, style)).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text + &paragraph(&self.summary(), style)
    }

    fn failure(&self) -> Option<String> {
        let has_node = |one: &Finding| one.fails && one.pod.pod_uid == NODE;
        let node = self.findings.iter().any(has_node).then(|| "the node".to_owned());
        let vms = Some(self.failing().len() as u64).filter(|count| *count > 0);
        let failed: Vec<String> = node.into_iter().chain(vms.map(|count| counted(count, "VM"))).collect();
        (!failed.is_empty()).then(|| format!("failed: {}", failed.join(", ")))
    }
}

impl Verified {
    /// The UIDs of the VMs because of which the command fails.
    fn failing(&self) -> BTreeSet<&str> {
        let failing = self.findings.iter().filter(|one| one.fails && one.pod.pod_uid != NODE);
        failing.map(|one| one.pod.pod_uid.as_str()).collect()
    }

    fn lines(&self, same: &[&Finding], style: TextStyle) -> String {
        let Some(first) = same.first() else {
            return String::new();
        };
        let label = match first.kind {
            _ if first.fails => ("FAIL", Meaning::Broken),
            Kind::Waiting => ("WAIT", Meaning::Attention),
            _ => ("NOTE", Meaning::Attention),
        };
        // A VM may have several findings of one kind, as of several threads. Text and fix are those of the first.
        let mut pods: Vec<&Pod> = same.iter().map(|one| &one.pod).collect();
        pods.dedup();
        let is_one_text = same.iter().all(|other| other.text == first.text);
        let subject = match pods.as_slice() {
            [pod] if style.wide && pod.pod_uid != NODE => pod.in_full(),
            pods if !is_one_text => subject(&pods[..1]),
            [_, _, ..] if style.width.is_none() => {
                let names: Vec<String> = pods.iter().map(ToString::to_string).collect();
                format!("{} VMs ({})", pods.len(), names.join(", "))
            }
            pods => subject(pods),
        };
        let mut text = first.text.clone();
        if let (true, more @ 1..) = (!is_one_text || pods.len() == 1, same.len() - 1) {
            text += &format!(" (and {more} more of the kind: -o wide)");
        }
        if let Some(since) = first.since_us {
            let is_final = self.allow_waiting || first.fails;
            let until = if is_final { "" } else { "; fails after 60s" };
            text += &format!(" ({}{until})", age(since, self.now));
        }
        // A fix is a command to copy, so that it is one of several is said in the text.
        if same.iter().any(|other| other.fix != first.fix) && !first.fix.is_empty() {
            text += "; the fix is that of the first";
        }
        stacked(label, &subject, &text, first.effect, &first.fix, style)
    }

    /// `189 of 200 VMs verified in the kernel. Failed: the node, 2 VMs. 10 waiting.`
    fn summary(&self) -> String {
        if self.instances.is_empty() && self.failure().is_none() {
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
        let failing = self.failing();
        let waits = |one: &&Finding| one.kind == Kind::Waiting && !failing.contains(one.pod.pod_uid.as_str());
        let waiting = self.findings.iter().filter(waits).count();
        let waiting = (waiting > 0).then(|| format!("{waiting} waiting"));
        let failed = self.failure().map(|failed| failed.replace("failed", "Failed"));
        for part in failed.into_iter().chain(waiting) {
            text += &format!(". {part}");
        }
        text.push('.');
        if !self.not_checked.is_empty() {
            text += &format!(" Not checked: {}.", self.not_checked);
        }
        text
    }
}
