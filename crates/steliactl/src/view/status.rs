//! `status`: the node on one screen; as JSON all that the daemon knows.

use serde::Serialize;
use stelia_kernel::locality::size;
use stelia_koordinator::allocator::CpuSource;
use stelia_model::Node;

use super::list::node_lines;
use crate::check::noise::{NOT_REPORTED, unmoved_because};
use crate::shared::daemon::{
    Condition, Description, OnlineCpus, age, counts, former_in_words, former_vms, is_file_unusable, is_in_trouble,
};
use crate::shared::output::{Fact, Meaning, Render, TextStyle, counted, facts, now, printable};

/// As JSON the answer of `Describe`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Status {
    /// The host's name; empty where it is not known.
    #[serde(skip)]
    host: String,
    description: Description,
}

impl Status {
    pub(crate) fn of(description: &Description, host: String) -> Self {
        let description = description.clone();
        Self { host, description }
    }

    fn at(&self, now: u64, style: TextStyle) -> String {
        let (node, problems) = (&self.description.node, &self.description.problems);
        let conditions = || node.instances.values().map(|instance| Condition::of(instance));
        let worst = conditions().min().map(Condition::meaning);
        let worst = worst.filter(|meaning| *meaning != Meaning::Good).unwrap_or_default();
        let written = node.kubelet_modified_us;
        let written = written.map(|us| format!(", cpu_manager_state written {} ago", age(us, now)));
        let assigned = match node.cpu_source {
            CpuSource::Steliad => "steliad".to_owned(),
            CpuSource::Kubelet => format!("kubelet (static){}", written.unwrap_or_default()),
        };
        let units: Vec<&str> = node.restricted.keys().map(String::as_str).collect();
        let partitions = match node.partitions {
            None => "not known before the first VM".to_owned(),
            Some(true) => "supported".to_owned(),
            Some(false) => format!("not in this kernel; restricted instead: {}", units.join(", ")),
        };
        let (checked, is_checked) = checked(node, now);
        let (noise, is_noisy) = noise(node);
        let ledger = match (node.ledger.enabled, node.ledger.day.as_str()) {
            (false, _) => "off".to_owned(),
            (true, "") => format!("on, {}, no day signed yet", size(node.ledger.bytes)),
            (true, day) => format!("on, {}, signed until {day}", size(node.ledger.bytes)),
        };
        let published = match (&node.publishing.profile, node.publishing.written_us) {
            (None, _) => "off".to_owned(),
            (Some(profile), 0) => format!("{profile}, not written yet"),
            (Some(profile), us) => format!("{profile}, written {} ago", age(us, now)),
        };
        let former = former_in_words(&self.description, &former_vms(&self.description).collect::<Vec<_>>());
        let former = former.map(|words| ("Released", words, Meaning::Attention));
        let more = node.instances.values().any(|instance| is_in_trouble(instance));
        let more = more.then(|| ("See", "steliactl list --problems".to_owned(), Meaning::Plain));
        let mut lines = vec![("State", counts(conditions()), worst)];
        lines.extend(former);
        lines.extend([
            ("CPUs", self.cpus(), Meaning::Plain),
            ("Assigned by", assigned, Meaning::Plain),
            ("Partitions", partitions, Meaning::Plain),
            ("Checked", checked, is_checked),
            ("Noise", noise, is_noisy),
            ("Ledger", ledger, Meaning::Plain),
            ("Publishing", published, Meaning::Plain),
        ]);
        let lines = lines.into_iter().chain(more);
        let lines = lines.map(|(name, text, meaning)| (format!("  {name}"), text, meaning));
        let lines: Vec<Fact> = lines.collect();
        let host = Some(&self.host).filter(|host| !host.is_empty());
        let host = host.map_or(String::new(), |host| format!("{host}: "));
        let heading = printable(&format!("{host}steliad {} is running", self.description.version));
        format!("{}{heading}\n{}", node_lines(problems, style), facts(&lines, style))
    }

    fn cpus(&self) -> String {
        let online = OnlineCpus::of(&self.description);
        let unknown = if is_file_unusable(&self.description) {
            "not known while cpu_manager_state is unusable"
        } else {
            "of unknown owners"
        };
        let all = [
            (&online.exclusive, "of VMs"),
            (&online.pods, "of other pods"),
            (&online.shared, "shared"),
            (&online.reserved, "reserved"),
            (&online.unknown, unknown),
            (&self.description.node.offline, "offline"),
        ];
        let some = all.into_iter().filter(|(cpus, _)| !cpus.is_empty());
        let words: Vec<String> = some
            .map(|(cpus, whose)| format!("{} {whose} ({cpus})", cpus.len()))
            .collect();
        words.join(", ")
    }
}

/// When steliad last compared the node with what it should be, whether it failed to change something, and what others changed.
fn checked(node: &Node, now: u64) -> (String, Meaning) {
    let Some(last) = &node.last_pass else {
        return ("not yet".to_owned(), Meaning::Plain);
    };
    let ago = age(last.ended_us, now);
    if last.failures > 0 {
        let (failed, changes) = (last.failures, counted(last.steps.into(), "change"));
        let text = format!("{ago} ago, {failed} of {changes} failed: journalctl -u steliad");
        return (text, Meaning::Broken);
    }
    let (found, repaired) = (node.counters.drift_found, node.counters.drift_repaired);
    let is_degraded = node.instances.values().any(|one| !one.degraded.is_empty());
    let mut text = format!("{ago} ago");
    if found > 0 {
        text += &format!(
            "; so far {} by other programs, {repaired} repaired",
            counted(found, "change")
        );
    }
    if found > repaired && is_degraded {
        text += ": steliactl verify";
    }
    (text, Meaning::Plain)
}

/// What is kept off the VMs' CPUs besides tasks.
fn noise(node: &Node) -> (String, Meaning) {
    let report = &node.quiet.report;
    let (interrupts, threads) = (report.remaining.len() as u64, report.threads_remaining.len() as u64);
    match unmoved_because(&node.quiet) {
        _ if interrupts + threads > 0 => {
            let both = [counted(interrupts, "interrupt"), counted(threads, "kernel thread")].join(" and ");
            let text = format!("{both} remain on the VMs' CPUs: steliactl noise");
            (text, Meaning::Attention)
        }
        Some(_) if node.instances.is_empty() => ("nothing to keep off: no VMs".to_owned(), Meaning::Plain),
        // With the reason the command would be broken on a terminal.
        Some((NOT_REPORTED, fix)) => (format!("not known: {fix}"), Meaning::Attention),
        Some((why, fix)) => (format!("{why}: {fix}"), Meaning::Attention),
        None => {
            let moved = counted(report.moved.into(), "interrupt");
            (format!("{moved} moved away, none remains"), Meaning::Plain)
        }
    }
}

impl Render for Status {
    fn text(&self, style: TextStyle) -> String {
        self.at(now(), style)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use stelia_api::ledger::LedgerSummary;
    use stelia_api::quiet::Quiet;
    use stelia_api::{Reason, ReasonCode};
    use stelia_model::{LastPass, Trigger};

    use super::*;
    use crate::shared::daemon::node::testing::{allocated, node};
    use crate::tests::fixtures::{columns, holds, says};

    const NOW: u64 = 1_735_689_600_000_000;

    fn status(description: &Description) -> Status {
        Status::of(description, "node-1".to_owned())
    }

    fn last(steps: u32, failures: u32) -> Option<LastPass> {
        Some(LastPass {
            number: 7,
            trigger: Trigger::Audit,
            ended_us: NOW - 12_000_000,
            duration_us: 1_234,
            steps,
            writes: 5,
            moves: 1,
            failures,
        })
    }

    #[test]
    fn a_node_with_a_problem_fits_one_screen() {
        let mut description = node();
        description.version = "0.1.0".to_owned();
        description.problems = vec![Reason::of_node(ReasonCode::KubeletUnusable, "/a/path: checksum")];
        description.node.partitions = Some(true);
        description.node.offline = "8-9".parse().unwrap();
        description.node.kubelet_modified_us = Some(NOW - 7_200_000_000);
        description.node.last_pass = last(0, 0);
        let status = status(&description);
        insta::assert_snapshot!(status.at(NOW, columns(80)));
        holds(
            &serde_json::to_value(&status).unwrap(),
            json!({"/problems/0/code": "kubelet-unusable", "/node/last_pass/number": 7}),
        );
    }

    #[test]
    fn what_failed_and_what_remains_is_named_with_its_command() {
        let mut description = allocated();
        let node = &mut description.node;
        let report = stelia_api::quiet::Report {
            remaining: vec![Default::default()],
            ..Default::default()
        };
        node.quiet = Arc::new(Quiet {
            answered_us: 1,
            report,
            ..Quiet::default()
        });
        node.ledger = Arc::new(LedgerSummary {
            enabled: true,
            day: "2026-10-31".to_owned(),
            ..LedgerSummary::default()
        });
        node.partitions = Some(false);
        node.restricted = [("system.slice".to_owned(), String::new())].into();
        node.last_pass = last(2, 2);
        let text = status(&description).at(NOW, TextStyle::from(true));
        let parts = [
            "Assigned by  steliad\n",
            "1 isolated, 1 pinned, 1 shared",
            "steliactl noise",
            "2 of 2 changes failed: journalctl",
            "signed until 2026-10-31",
            "system.slice",
        ];
        says(&text, &parts);
        let (repaired, found) = (last(1, 0), 3);
        description.node.last_pass = repaired;
        description.node.counters.drift_found = found;
        says(
            &status(&description).at(NOW, TextStyle::from(true)),
            &["12s ago; so far 3 changes by other programs"],
        );
    }
}
