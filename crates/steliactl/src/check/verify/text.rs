//! The findings as text, failures first: each with its effect and fix below it. What many VMs have is told once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Kind, RELEASED, Verified};
use crate::check::{first_few, group_by_key};
use crate::shared::daemon::{Pod, age, counted_uids, whose};
use crate::shared::output::{Block, FAIL, Meaning, NOTE, Render, TextStyle, counted, paragraph};

impl Render for Verified {
    fn text(&self, style: TextStyle) -> String {
        let blank = if self.findings.is_empty() { "" } else { "\n" };
        let blocks: String = self.blocks(style).iter().map(|block| block.text(style)).collect();
        blocks + blank + &paragraph(&self.summary(), style)
    }

    fn failure(&self) -> Option<String> {
        let failing = self.findings.iter().filter(|one| one.fails);
        let failing = counted_uids(failing.map(|one| one.pod.pod_uid.as_str()));
        failing.map(|all| format!("failed: {all}"))
    }
}

impl Verified {
    /// The findings.
    pub(crate) fn blocks(&self, style: TextStyle) -> Vec<Block> {
        let by_code = self.findings.iter().map(|one| {
            let alone = (style.wide || one.is_of_node()).then_some((&one.pod, &one.text));
            ((one.order(), &one.code, alone), one)
        });
        let blocks = group_by_key(by_code).into_iter();
        blocks.map(|(_, group)| self.block(&group, style)).collect()
    }

    /// The VMs because of which the command fails.
    pub(super) fn failing(&self) -> BTreeSet<&Pod> {
        let failing = self.findings.iter().filter(|one| one.fails && !one.is_of_node());
        failing.map(|one| &one.pod).collect()
    }

    /// Findings of one kind as one, with the fix of the first.
    fn block(&self, same: &[&Finding], style: TextStyle) -> Block {
        let first = same[0];
        let label = match first.kind {
            _ if first.fails => FAIL,
            Kind::Waiting => ("WAIT", Meaning::Attention),
            _ => NOTE,
        };
        let mut pods: Vec<&Pod> = same.iter().map(|one| &one.pod).collect();
        pods.dedup();
        let texts = group_by_key(same.iter().map(|one| (&one.text, &one.pod)));
        let (is_one_vm, is_one_text) = (pods.len() == 1, texts.len() == 1);
        let subject = match pods.as_slice() {
            [_] if first.is_of_node() => "node".to_owned(),
            [pod] if style.wide => pod.in_full(),
            pods if !is_one_vm && style.width.is_none() => {
                let names: Vec<String> = pods.iter().map(ToString::to_string).collect();
                format!("{} VMs ({})", pods.len(), names.join(", "))
            }
            pods => whose(pods),
        };
        let texts = texts.iter().map(|(text, of)| {
            if is_one_vm || is_one_text {
                (*text).clone()
            } else {
                format!("{} {text}", of[0])
            }
        });
        let mut text = first_few(&texts.collect::<Vec<_>>());
        // Of several VMs the first that will fail, or that was released.
        if let Some(since) = same.iter().filter_map(|one| one.since_us).min() {
            let until = match label.0 {
                _ if first.code == RELEASED => " ago",
                "WAIT" if !self.allow_waiting => "; fails after 60s",
                _ => "",
            };
            text += &format!(" ({}{until})", age(since, self.now));
        }
        // A fix is a command to copy, so that it is one of several is said in the text.
        if same.iter().any(|other| other.fix != first.fix) && !first.fix.is_empty() {
            text += "; the fix is that of the first";
        }
        Block::new(label, subject, text, first.effect, &first.fix)
    }

    /// `189 of 200 VMs verified in the kernel. Failed: the node, 2 VMs. 10 waiting. 1 released.`
    fn summary(&self) -> String {
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for vm in self.instances.iter().filter(|one| one.verified) {
            *states.entry(vm.state.name()).or_default() += 1;
        }
        let released = self.findings.iter().filter(|one| one.code == RELEASED).count();
        let mut verified = match self.instances.len() + released {
            0 => "No VMs".to_owned(),
            all => {
                let verified = states.values().sum::<usize>();
                format!("{verified} of {} verified in the kernel", counted(all as u64, "VM"))
            }
        };
        if states.keys().any(|state| *state != "isolated") {
            let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            verified += &format!(" ({})", states.join(", "));
        }
        let failing = self.failing();
        let waits = |one: &&Finding| one.kind == Kind::Waiting && !failing.contains(&one.pod);
        let waiting = self.findings.iter().filter(waits).count();
        let mut parts = vec![verified];
        parts.extend(self.failure().map(|failed| failed.replace("failed", "Failed")));
        parts.extend((waiting > 0).then(|| format!("{waiting} waiting")));
        parts.extend((released > 0).then(|| format!("{released} released")));
        if !self.not_checked.is_empty() && !self.instances.is_empty() {
            parts.push(format!("Not checked: {}", self.not_checked));
        }
        parts.join(". ") + "."
    }
}
