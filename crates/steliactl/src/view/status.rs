//! `status`: the node on one screen; as JSON all that the daemon knows.

use serde::Serialize;
use stelia_kernel::locality::size;
use stelia_koordinator::allocator::CpuSource;
use stelia_model::Node;

use crate::shared::daemon::{Condition, Description, OnlineCpus, age, counts};
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
    pub(crate) fn of(description: &Description) -> Self {
        Self {
            host: String::new(),
            description: description.clone(),
        }
    }

    /// With the name of the host.
    pub(crate) fn on(self, host: String) -> Self {
        Self { host, ..self }
    }

    fn conditions(&self) -> impl Iterator<Item = Condition> {
        let instances = self.description.node.instances.values();
        instances.map(|instance| Condition::of(instance))
    }

    fn at(&self, now: u64, style: TextStyle) -> String {
        let (node, problems) = (&self.description.node, &self.description.problems);
        let state = match problems.len() {
            0 => Meaning::Good.paint("running", style),
            count => Meaning::Broken.paint(&format!("running, {}", counted(count as u64, "NODE problem")), style),
        };
        let host = Some(&self.host).filter(|host| !host.is_empty());
        let host = host.map(|host| format!("{}: ", printable(host))).unwrap_or_default();
        let mut lines: Vec<Fact> = Vec::new();
        let mut say = |name: &str, text: &str, meaning| {
            if !text.is_empty() {
                lines.push((format!("  {name}"), text.to_owned(), meaning));
            }
        };
        for problem in problems {
            say("NODE", &problem.text, Meaning::Broken);
            say("  effect", problem.code.effect(), Meaning::Plain);
            say("  fix", &problem.fix, Meaning::Plain);
        }
        let worst = self.conditions().min().unwrap_or_default();
        let meaning = Some(worst.meaning()).filter(|meaning| *meaning != Meaning::Good);
        say("State", &counts(self.conditions()), meaning.unwrap_or_default());
        say("CPUs", &self.cpus(), Meaning::Plain);
        say("Assigned by", &assigned_by(node, now), Meaning::Plain);
        let partitions = match node.partitions {
            None => "not known before the first VM".to_owned(),
            Some(true) => "supported".to_owned(),
            Some(false) => {
                let units: Vec<&str> = node.restricted.keys().map(String::as_str).collect();
                format!("not in this kernel; restricted instead: {}", units.join(", "))
            }
        };
        say("Partitions", &partitions, Meaning::Plain);
        let (reconciled, meaning) = reconciled(node, now);
        say("Reconciled", &reconciled, meaning);
        let (noise, meaning) = noise(node);
        say("Noise", &noise, meaning);
        let ledger = match (node.ledger.enabled, node.ledger.day.as_str()) {
            (false, _) => "off".to_owned(),
            (true, "") => format!("on, {}, no day signed yet", size(node.ledger.bytes)),
            (true, day) => format!("on, {}, signed until {day}", size(node.ledger.bytes)),
        };
        say("Ledger", &ledger, Meaning::Plain);
        let published = match (&node.publishing.profile, node.publishing.written_us) {
            (None, _) => "off".to_owned(),
            (Some(profile), 0) => format!("{profile}, not written yet"),
            (Some(profile), us) => format!("{profile}, written {} ago", age(us, now)),
        };
        say("Publishing", &published, Meaning::Plain);
        let version = printable(&self.description.version);
        format!("{host}steliad {version} is {state}\n{}", facts(&lines, style))
    }

    fn cpus(&self) -> String {
        let online = OnlineCpus::of(&self.description);
        let all = [
            (&online.exclusive, "of VMs"),
            (&online.pods, "of other pods"),
            (&online.shared, "shared"),
            (&online.reserved, "reserved"),
            (&online.unknown, "not known"),
            (&self.description.node.offline, "offline"),
        ];
        let some = all.into_iter().filter(|(cpus, _)| !cpus.is_empty());
        let words: Vec<String> = some
            .map(|(cpus, whose)| format!("{} {whose} ({cpus})", cpus.len()))
            .collect();
        words.join(", ")
    }
}

fn assigned_by(node: &Node, now: u64) -> String {
    match (node.cpu_source, node.kubelet_modified_us) {
        (CpuSource::Steliad, _) => "steliad".to_owned(),
        (CpuSource::Kubelet, None) => "kubelet (static)".to_owned(),
        (CpuSource::Kubelet, Some(us)) => {
            format!("kubelet (static), cpu_manager_state written {} ago", age(us, now))
        }
    }
}

fn reconciled(node: &Node, now: u64) -> (String, Meaning) {
    let Some(pass) = &node.last_pass else {
        return ("not yet".to_owned(), Meaning::Plain);
    };
    let mut text = format!(
        "{} ago, {}",
        age(pass.ended_us, now),
        counted(pass.steps.into(), "change")
    );
    let (found, repaired) = (node.counters.drift_found, node.counters.drift_repaired);
    if found > 0 {
        text += &format!(
            "; {} by other programs found, {repaired} repaired",
            counted(found, "change")
        );
    }
    match pass.failures {
        0 => (text, Meaning::Plain),
        failed => (
            format!("{text}; {failed} failed: journalctl -u steliad"),
            Meaning::Broken,
        ),
    }
}

/// What is kept off the VMs' CPUs besides tasks.
fn noise(node: &Node) -> (String, Meaning) {
    let quiet = &node.quiet;
    let (interrupts, threads) = (quiet.report.remaining.len(), quiet.report.threads_remaining.len());
    let count = |count: usize, what| counted(count as u64, what);
    match quiet.steering.as_str() {
        "off" => (
            "interrupts are not steered (irq-steering = off)".to_owned(),
            Meaning::Plain,
        ),
        _ if quiet.answered_us == 0 => ("not counted yet".to_owned(), Meaning::Plain),
        _ if interrupts + threads == 0 => {
            let moved = counted(quiet.report.moved.into(), "interrupt");
            (format!("{moved} moved away, none remains"), Meaning::Plain)
        }
        _ => {
            let both = format!(
                "{} and {}",
                count(interrupts, "interrupt"),
                count(threads, "kernel thread")
            );
            (
                format!("{both} remain on the VMs' CPUs: steliactl noise"),
                Meaning::Attention,
            )
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
    use stelia_model::{Counters, LastPass, Trigger};

    use super::*;
    use crate::shared::daemon::node::testing::{allocated, node};
    use crate::tests::fixtures::{columns, holds, says};

    const NOW: u64 = 1_735_689_600_000_000;

    fn status(description: &Description) -> Status {
        Status::of(description).on("node-1".to_owned())
    }

    #[test]
    fn a_node_with_a_problem_fits_one_screen() {
        let base = node();
        let description = Description {
            version: "0.1.0".to_owned(),
            problems: vec![Reason::of_node(
                ReasonCode::KubeletUnusable,
                "cpu_manager_state: checksum mismatch (stored 1, computed 2)\u{1b}[2J",
            )],
            node: Node {
                partitions: Some(true),
                offline: "8-9".parse().unwrap(),
                kubelet_modified_us: Some(NOW - 7_200_000_000),
                counters: Counters {
                    drift_found: 3,
                    drift_repaired: 2,
                },
                last_pass: Some(LastPass {
                    number: 7,
                    trigger: Trigger::Audit,
                    ended_us: NOW - 12_000_000,
                    duration_us: 1_234,
                    steps: 1,
                    writes: 5,
                    moves: 1,
                    failures: 0,
                }),
                ..base.node
            },
            ..base
        };
        let status = status(&description);
        insta::assert_snapshot!(status.at(NOW, columns(80)), @r"
        node-1: steliad 0.1.0 is running, 1 NODE problem
          NODE         cpu_manager_state: checksum mismatch (stored 1, computed 2)?[2J
            effect     no new VMs; running VMs keep their CPUs
            fix        drain the node, stop kubelet, delete the file, start kubelet
          State        2 VMs: 1 isolated, 1 degraded
          CPUs         3 of VMs (2,4-5), 1 of other pods (6), 2 shared (3,7), 2 reserved
                       (0-1), 2 offline (8-9)
          Assigned by  kubelet (static), cpu_manager_state written 2h ago
          Partitions   supported
          Reconciled   12s ago, 1 change; 3 changes by other programs found, 2 repaired
          Noise        not counted yet
          Ledger       off
          Publishing   off
        ");
        holds(
            &serde_json::to_value(&status).unwrap(),
            json!({"/problems/0/code": "kubelet-unusable", "/node/last_pass/number": 7}),
        );
    }

    #[test]
    fn what_failed_and_what_remains_is_named_with_its_command() {
        let mut description = allocated();
        let node = &mut description.node;
        node.quiet = Arc::new(Quiet {
            answered_us: 1,
            report: stelia_api::quiet::Report {
                remaining: vec![Default::default()],
                ..Default::default()
            },
            ..Quiet::default()
        });
        node.ledger = Arc::new(LedgerSummary {
            enabled: true,
            day: "2026-10-31".to_owned(),
            ..LedgerSummary::default()
        });
        node.partitions = Some(false);
        node.restricted = [("system.slice".to_owned(), String::new())].into();
        node.last_pass = Some(LastPass {
            number: 1,
            trigger: Trigger::Event,
            ended_us: NOW,
            duration_us: 0,
            steps: 2,
            writes: 0,
            moves: 0,
            failures: 2,
        });
        let text = status(&description).at(NOW, TextStyle::from(true));
        let parts = [
            "Assigned by  steliad\n",
            "1 isolated, 1 pinned, 1 shared",
            "steliactl noise",
            "2 failed: journalctl",
            "signed until 2026-10-31",
            "system.slice",
        ];
        says(&text, &parts);
    }
}
