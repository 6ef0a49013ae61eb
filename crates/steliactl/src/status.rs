//! `status`: the node on one screen.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stelia_api::view::LastPass;
use stelia_cpus::CpuSet;

use super::node::{Description, Owner, named_pass, owner};
use super::view::{self, Render};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Status {
    pub version: String,
    /// `degraded` if `degraded` below or `kubelet_problem` is not empty, else `running`.
    pub state: &'static str,
    pub degraded: Vec<String>,
    /// How instances are kept apart from the rest: `isolated`, `contained`, or `unknown` before the first one.
    pub partitions: &'static str,
    /// Units outside that are restricted for contained instances.
    pub restricted: Vec<String>,
    /// Who chooses CPUs: `kubelet` or `steliad`; empty: the daemon does not say.
    #[serde(rename = "CPUSource")]
    pub cpu_source: String,
    pub instances: BTreeMap<String, usize>,
    /// The QoS class of each instance that has one, by pod.
    pub classes: BTreeMap<String, String>,
    /// The online CPUs, and those that are not.
    #[serde(rename = "CPUs")]
    pub cpus: CpusByOwner,
    /// Why kubelet's state cannot be used; empty when it can.
    pub kubelet_problem: String,
    /// When kubelet last wrote it, microseconds since the epoch; 0: not known.
    pub kubelet_timestamp: u64,
    /// Differences found since the daemon started that other programs had made.
    pub drift_found: u64,
    pub drift_repaired: u64,
    #[serde(serialize_with = "named_pass")]
    pub last_pass: Option<LastPass>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CpusByOwner {
    pub exclusive: CpuSet,
    pub pods: CpuSet,
    pub shared: CpuSet,
    pub reserved: CpuSet,
    /// kubelet's file does not list them, or cannot be used.
    pub unknown: CpuSet,
    pub offline: CpuSet,
}

impl CpusByOwner {
    fn of(description: &Description) -> Self {
        let node = &description.node;
        let mut pools = Self {
            offline: node.offline.clone(),
            ..Self::default()
        };
        for cpu in node.topology.online().iter() {
            let pool = match owner(description, cpu) {
                Owner::Instance { .. } => &mut pools.exclusive,
                Owner::Pod { .. } | Owner::Kubelet => &mut pools.pods,
                Owner::Shared => &mut pools.shared,
                Owner::Reserved => &mut pools.reserved,
                Owner::Unknown => &mut pools.unknown,
            };
            pool.insert(cpu);
        }
        pools
    }
}

impl Status {
    pub(crate) fn of(description: &Description) -> Self {
        let node = &description.node;
        let mut instances = BTreeMap::new();
        let mut degraded = Vec::new();
        for (pod, instance) in &node.instances {
            *instances.entry(instance.state.clone()).or_default() += 1;
            degraded.extend(instance.degraded.iter().map(|reason| format!("{pod}: {reason}")));
        }
        for (scope, reason) in &node.unreadable {
            degraded.push(format!("{scope} is not touched: {reason}"));
        }
        degraded.extend(node.systemd_problem.clone());
        let failures = node.last_pass.as_ref().map_or(0, |pass| pass.failures);
        if failures > 0 {
            degraded.push(format!(
                "{failures} steps of the last pass failed: journalctl -u steliad"
            ));
        }
        let whole = degraded.is_empty() && node.kubelet_problem.is_none();
        Self {
            version: description.version.clone(),
            state: if whole { "running" } else { "degraded" },
            degraded,
            partitions: match node.partitions {
                Some(true) => "isolated",
                Some(false) => "contained",
                None => "unknown",
            },
            restricted: node.restricted.keys().cloned().collect(),
            cpu_source: node.cpu_source.clone().unwrap_or_default(),
            instances,
            classes: node
                .instances
                .iter()
                .filter(|(_, instance)| !instance.class().is_empty())
                .map(|(pod, instance)| (pod.clone(), instance.class().to_owned()))
                .collect(),
            cpus: CpusByOwner::of(description),
            kubelet_problem: node.kubelet_problem.clone().unwrap_or_default(),
            kubelet_timestamp: node.kubelet_modified_us.unwrap_or(0),
            drift_found: node.counters.drift_found,
            drift_repaired: node.counters.drift_repaired,
            last_pass: node.last_pass.clone(),
        }
    }
}

/// A time, followed by how long ago that is.
fn ago(usec: u64, now: u64) -> String {
    let seconds = now.saturating_sub(usec) / 1_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let since = match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}min {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}min"),
        (days, hours, _) => format!("{days}d {hours}h"),
    };
    format!("{} ({since} ago)", view::time(usec))
}

fn cpus(cpus: &CpuSet) -> String {
    match cpus.len() {
        0 => "0".to_owned(),
        count => format!("{count} ({cpus})"),
    }
}

impl Render for Status {
    fn text(&self, _: bool) -> String {
        text(self, view::now())
    }
}

/// The screen; `now` is microseconds since the epoch.
fn text(status: &Status, now: u64) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut say = |name: &str, value: String| rows.push([format!("{name}:"), view::or_dash(&value)]);
    let source = match status.cpu_source.as_str() {
        "steliad" => ", chooses the CPUs itself",
        _ => "",
    };
    say(
        "Daemon",
        format!("steliad {}, {}{source}", status.version, status.state),
    );
    for reason in &status.degraded {
        say("Degraded", reason.clone());
    }
    let states: Vec<String> = status
        .instances
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let count: usize = status.instances.values().sum();
    let states = if states.is_empty() {
        String::new()
    } else {
        format!(" ({})", states.join(", "))
    };
    say("Instances", format!("{count}{states}"));
    for class in status.classes.values().collect::<BTreeSet<_>>() {
        let of = status.classes.iter().filter(|(_, other)| *other == class);
        let pods: Vec<&str> = of.map(|(pod, _)| pod.as_str()).collect();
        say(
            &format!("Class {}", view::printable(class)),
            format!("{} ({})", pods.len(), pods.join(", ")),
        );
    }
    let partitions = match status.partitions {
        "isolated" => "isolated: the kernel takes the CPUs from everything else".to_owned(),
        "contained" => format!("contained: {} restricted instead", status.restricted.join(", ")),
        _ => "not known before the first instance".to_owned(),
    };
    say("Partitions", partitions);
    say("Exclusive CPUs", cpus(&status.cpus.exclusive));
    say("Other pods' CPUs", cpus(&status.cpus.pods));
    say("Shared CPUs", cpus(&status.cpus.shared));
    say("Reserved CPUs", cpus(&status.cpus.reserved));
    if !status.cpus.unknown.is_empty() {
        say("Unassigned CPUs", cpus(&status.cpus.unknown));
    }
    say("Offline CPUs", cpus(&status.cpus.offline));
    let written = match status.kubelet_timestamp {
        0 => String::new(),
        usec => format!(", written {}", ago(usec, now)),
    };
    match status.kubelet_problem.as_str() {
        "" if status.cpu_source == "steliad" && written.is_empty() => {
            say("kubelet's state", "none, and not needed".to_owned());
        }
        "" => say("kubelet's state", format!("usable{written}")),
        problem => say("kubelet's state", format!("NOT USABLE: {problem}{written}")),
    }
    say(
        "Drift",
        format!("{} found, {} repaired", status.drift_found, status.drift_repaired),
    );
    if let Some(pass) = &status.last_pass {
        say(
            "Last pass",
            format!("{} by {}, {}", pass.number, pass.trigger, ago(pass.ended_us, now)),
        );
        let took = format!("{}.{:03} ms", pass.duration_us / 1_000, pass.duration_us % 1_000);
        say(
            "",
            format!(
                "{} steps, {} writes, {} moves in {took}",
                pass.steps, pass.writes, pass.moves
            ),
        );
    }
    let width = rows.iter().map(|[name, _]| name.len()).max().unwrap_or(0);
    // As in systemctl's output: names are aligned to the right, values to the left.
    let lines = rows.iter().map(|[name, value]| {
        let name = if name == ":" { "" } else { name };
        format!("{name:>width$} {value}\n")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use stelia_api::view::{Counters, Node};

    use super::*;
    use crate::node::testing::{allocated, node};

    fn full() -> Description {
        let base = node();
        let node = Node {
            partitions: Some(true),
            offline: "8-9".parse().unwrap(),
            kubelet_modified_us: Some(1_735_689_540_000_000),
            counters: Counters {
                drift_found: 3,
                drift_repaired: 2,
            },
            last_pass: Some(LastPass {
                number: 7,
                trigger: "audit".to_owned(),
                ended_us: 1_735_689_598_500_000,
                duration_us: 1_234,
                steps: 2,
                writes: 5,
                moves: 1,
                failures: 0,
            }),
            ..base.node
        };
        Description {
            version: "0.1.0".to_owned(),
            node,
            ..base
        }
    }

    fn of(node: Node) -> Status {
        Status::of(&Description {
            node,
            ..Description::default()
        })
    }

    #[test]
    fn the_screen_is_the_node() {
        insta::assert_snapshot!(text(&Status::of(&full()), 1_735_689_600_000_000), @"
                  Daemon: steliad 0.1.0, degraded
                Degraded: bbbbbbbb: kubelet gave CPU 2 away
               Instances: 2 (1 floating, 1 isolated)
              Partitions: isolated: the kernel takes the CPUs from everything else
          Exclusive CPUs: 3 (2,4-5)
        Other pods' CPUs: 1 (6)
             Shared CPUs: 2 (3,7)
           Reserved CPUs: 2 (0-1)
            Offline CPUs: 2 (8-9)
         kubelet's state: usable, written 2024-12-31T23:59:00.000000Z (1min 0s ago)
                   Drift: 3 found, 2 repaired
               Last pass: 7 by audit, 2024-12-31T23:59:58.500000Z (1s ago)
                          2 steps, 5 writes, 1 moves in 1.234 ms
        ");
    }

    #[test]
    fn where_steliad_chooses_the_cpus_it_and_the_classes_are_shown() {
        let status = Status::of(&allocated());
        let text = text(&status, 0);
        for line in [
            "Daemon: steliad 0, running, chooses the CPUs itself",
            "Instances: 3 (1 contained, 1 floating, 1 isolated)",
            "Class LS: 1 (cccccccc)",
            "Class LSE: 1 (aaaaaaaa)",
            "Class LSR: 1 (bbbbbbbb)",
            "Exclusive CPUs: 3 (2,4-5)",
            "Other pods' CPUs: 1 (6)",
            "Shared CPUs: 3 (1,3,7)",
            "Reserved CPUs: 1 (0)",
            "kubelet's state: none, and not needed",
        ] {
            assert!(text.lines().any(|told| told.trim_start() == line), "{line}: {text}");
        }
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(
            (&json["CPUSource"], &json["Classes"]["bbbbbbbb"]),
            (&"steliad".into(), &"LSR".into())
        );
    }

    #[test]
    fn a_systemd_that_hangs_is_named() {
        let status = of(Node {
            systemd_problem: Some("systemd (PID 1) has not answered".to_owned()),
            ..Node::default()
        });
        assert_eq!(
            (status.state, status.degraded),
            ("degraded", vec!["systemd (PID 1) has not answered".to_owned()])
        );
    }

    #[test]
    fn a_node_without_instances_and_without_kubelets_file_says_so() {
        let status = of(Node {
            kubelet_problem: Some("read cpu_manager_state: No such file\x1b[2J".to_owned()),
            pool: None,
            ..Node::default()
        });
        assert_eq!((status.state, status.partitions), ("degraded", "unknown"));
        let text = text(&status, 0);
        assert!(
            text.contains("NOT USABLE: read cpu_manager_state: No such file?[2J\n"),
            "{text}"
        );
        assert!(text.contains("Instances: 0\n") && !text.contains("Last pass"), "{text}");
    }

    #[test]
    fn what_a_pass_could_not_do_degrades_the_node() {
        let mut description = full();
        for instance in description.node.instances.values_mut() {
            instance.degraded.clear();
        }
        assert_eq!(Status::of(&description).state, "running");
        description.node.last_pass.as_mut().unwrap().failures = 2;
        assert_eq!(Status::of(&description).state, "degraded");
    }

    #[test]
    fn ages_are_short() {
        let age = |seconds: u64| {
            let text = ago(1_000_000, 1_000_000 + seconds * 1_000_000);
            text.split_once('(').unwrap().1.trim_end_matches(" ago)").to_owned()
        };
        assert_eq!([5, 65, 3_660, 90_000].map(age), ["5s", "1min 5s", "1h 1min", "1d 1h"]);
        // The clock was set back.
        assert!(ago(2_000_000, 0).ends_with("(0s ago)"));
    }
}
