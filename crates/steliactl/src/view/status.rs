//! `status`: the node on one screen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use stelia_api::State;
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::CpuSource;
use stelia_model::{Instance, LastPass, Node, Pools};

use crate::shared::daemon::{
    Description, Failure, OnlineCpus, Pod, Selection, Why, fold, named, not_isolated, remedy_of_file, state_and_class,
    whose,
};
use crate::shared::output::{self, Meaning, Render, TextStyle, counted};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Status {
    /// Those that were asked for, in words; the rest of the answer is of these alone where it is of VMs.
    #[serde(skip)]
    vms: Vec<[String; 2]>,
    /// Whether VMs were asked for: sums of the whole node say nothing of them.
    #[serde(skip)]
    is_of_vms: bool,
    /// `degraded`, with each reason once: those that several VMs have, those of single VMs, and those of the node.
    #[serde(skip)]
    folded: [Vec<String>; 3],
    /// Why instances float, each reason once with those that it keeps floating.
    #[serde(skip)]
    floating: Vec<String>,
    pub version: String,
    /// `degraded` if `degraded` below or `kubelet_problem` is not empty, else `running`.
    pub state: &'static str,
    pub degraded: Vec<String>,
    /// How instances are kept apart from the rest: `isolated`, `pinned`, or `unknown` before the first one.
    pub partitions: &'static str,
    /// Units outside that are restricted for pinned instances.
    pub restricted: Vec<String>,
    /// Who chooses CPUs.
    pub cpu_source: CpuSource,
    /// Where that is steliad.
    pub pools: Option<Arc<Pools>>,
    pub instances: BTreeMap<String, usize>,
    /// The instances that have a QoS class.
    pub classes: Vec<Classed>,
    /// The online CPUs, and those that are not.
    pub cpus: CpusByOwner,
    /// Why kubelet's state cannot be used; empty when it can.
    pub kubelet_problem: String,
    /// When kubelet last wrote it, microseconds since the epoch; 0: not known.
    pub kubelet_written_us: u64,
    /// Differences found since the daemon started that other programs had made.
    pub drift_found: u64,
    pub drift_repaired: u64,
    pub last_pass: Option<LastPass>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Classed {
    #[serde(flatten)]
    pod: Pod,
    class: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CpusByOwner {
    #[serde(flatten)]
    online: OnlineCpus,
    offline: CpuSet,
}

impl Status {
    /// The node, and the selected VMs on it.
    ///
    /// # Errors
    /// A pattern fits none.
    pub(crate) fn selected(mut description: Description, selection: &Selection) -> Result<Self, Failure> {
        if selection.is_all() {
            return Ok(Self::of(&description));
        }
        // Who has a CPU does not depend on what is asked for.
        let online = OnlineCpus::of(&description);
        selection.restrict(&mut description)?;
        let now = output::now();
        let mut vms: Vec<[String; 2]> = description
            .node
            .instances
            .iter()
            .map(|(uid, instance)| vm_in_words(&Pod::of(uid, instance), instance, now))
            .collect();
        vms.sort();
        let mut status = Self {
            vms,
            is_of_vms: true,
            ..Self::of(&description)
        };
        status.cpus.online = online;
        Ok(status)
    }

    pub(crate) fn of(description: &Description) -> Self {
        let node = &description.node;
        let mut instances = BTreeMap::new();
        let mut reasons = Vec::new();
        for (pod, instance) in &node.instances {
            *instances.entry(instance.state.to_string()).or_default() += 1;
            let pod = Pod::of(pod, instance);
            reasons.extend(instance.degraded.iter().map(|reason| (pod.clone(), reason)));
        }
        let texts = reasons
            .iter()
            .map(|(pod, reason)| (pod, (reason.code.name(), reason.to_string())));
        let mut folded = fold(texts);
        // What most VMs have comes first, then what is of the same kind, by name.
        folded.sort_by_cached_key(|(pods, (kind, _))| (Reverse(pods.len()), *kind, whose(pods)));
        let (shared, single): (Vec<_>, Vec<_>) = folded.into_iter().partition(|(pods, _)| pods.len() > 1);
        let [shared, single] = [shared, single].map(|reasons| {
            let lines = reasons.iter();
            lines
                .map(|(pods, (_, reason))| format!("{}: {reason}", whose(pods)))
                .collect::<Vec<_>>()
        });
        let mut degraded: Vec<String> = reasons.iter().map(|(pod, reason)| format!("{pod}: {reason}")).collect();
        let of_vms = degraded.len();
        for (scope, reason) in &node.unreadable {
            degraded.push(format!("{scope} is not touched: {reason}"));
        }
        degraded.extend(node.systemd_problem.clone());
        degraded.extend(node.kvm_problem.clone());
        // Each VM has this reason too.
        degraded.extend(node.watch_problem.clone().filter(|_| node.instances.is_empty()));
        let failures = node.last_pass.as_ref().map_or(0, |pass| pass.failures);
        if failures > 0 {
            degraded.push(format!(
                "{} of the last pass failed: journalctl -u steliad",
                counted(failures.into(), "step")
            ));
        }
        let folded = [shared, single, degraded[of_vms..].to_vec()];
        let whole = degraded.is_empty() && node.kubelet_problem.is_none();
        Self {
            vms: Vec::new(),
            is_of_vms: false,
            folded,
            floating: floating(node, output::now()),
            version: description.version.clone(),
            state: if whole { "running" } else { "degraded" },
            degraded,
            partitions: match node.partitions {
                Some(true) => "isolated",
                Some(false) => "pinned",
                None => "unknown",
            },
            restricted: node.restricted.keys().cloned().collect(),
            cpu_source: node.cpu_source,
            pools: node.pools.clone(),
            instances,
            classes: node
                .instances
                .iter()
                .filter(|(_, instance)| !instance.class().is_empty())
                .map(|(uid, instance)| Classed {
                    pod: Pod::of(uid, instance),
                    class: instance.class().to_owned(),
                })
                .collect(),
            cpus: CpusByOwner {
                online: OnlineCpus::of(description),
                offline: node.offline.clone(),
            },
            kubelet_problem: node.kubelet_problem.clone().unwrap_or_default(),
            kubelet_written_us: node.kubelet_modified_us.unwrap_or(0),
            drift_found: node.counters.drift_found,
            drift_repaired: node.counters.drift_repaired,
            last_pass: node.last_pass.clone(),
        }
    }
}

/// "8 floating (team-a/db, team-a/web, team-b/db, …), vCPUs not attached for 6 min", with what most have first: the time is that of the one that waits longest.
fn floating(node: &Node, now: u64) -> Vec<String> {
    let floating = node.instances.iter();
    let floating = floating.filter(|(_, instance)| instance.state == State::Waiting);
    let floating: Vec<(Pod, Why)> = floating
        .filter_map(|(uid, instance)| Some((Pod::of(uid, instance), not_isolated(instance)?)))
        .collect();
    let mut folded = fold(floating.iter().map(|(pod, why)| (pod, why.text.as_str())));
    folded.sort_by_key(|(pods, _)| Reverse(pods.len()));
    let lines = folded.into_iter().filter_map(|(pods, text)| {
        let of = floating.iter().map(|(_, why)| why).filter(|why| why.text == text);
        let longest = of.min_by_key(|why| why.since_us)?;
        Some(format!(
            "{} floating ({}), {}",
            pods.len(),
            named(&pods),
            longest.at(now)
        ))
    });
    lines.collect()
}

/// What a VM is, and why it is not isolated.
fn vm_in_words(pod: &Pod, instance: &Instance, now: u64) -> [String; 2] {
    let since = match instance.isolated_us {
        0 => String::new(),
        usec => format!(" since {}", output::ago(usec, now)),
    };
    let own = if instance.exclusive.is_empty() {
        String::new()
    } else {
        format!("CPUs {}, ", instance.exclusive)
    };
    let state = state_and_class(instance);
    [
        format!("{pod}: {state}{since}, {own}other threads on {}", instance.float),
        not_isolated(instance).map(|why| why.at(now)).unwrap_or_default(),
    ]
}

fn cpus(cpus: &CpuSet) -> String {
    match cpus.len() {
        0 => "0".to_owned(),
        count => format!("{count} ({cpus})"),
    }
}

impl Render for Status {
    fn text(&self, style: TextStyle) -> String {
        text(self, output::now(), style)
    }
}

/// Lines of a name and a value.
#[derive(Default)]
struct Screen(Vec<(String, String, Meaning)>);

impl Screen {
    fn add_row(&mut self, name: &str, value: String, meaning: Meaning) {
        self.0.push((format!("{name}:"), output::or_dash(&value), meaning));
    }

    fn say(&mut self, name: &str, value: String) {
        self.add_row(name, value, Meaning::Plain);
    }
}

fn cpus_by_owner(all: &CpusByOwner, screen: &mut Screen) {
    let online = &all.online;
    screen.say("Exclusive CPUs", cpus(&online.exclusive));
    screen.say("Other pods' CPUs", cpus(&online.pods));
    screen.say("Shared CPUs", cpus(&online.shared));
    screen.say("Reserved CPUs", cpus(&online.reserved));
    if !online.unknown.is_empty() {
        screen.say("Unassigned CPUs", cpus(&online.unknown));
    }
    screen.say("Offline CPUs", cpus(&all.offline));
}

/// What the daemon found and did.
fn passes(status: &Status, now: u64, screen: &mut Screen) {
    screen.say(
        "Drift",
        format!("{} found, {} repaired", status.drift_found, status.drift_repaired),
    );
    if let Some(pass) = &status.last_pass {
        screen.say(
            "Last pass",
            format!(
                "{} by {}, {}",
                pass.number,
                pass.trigger,
                output::ago(pass.ended_us, now)
            ),
        );
        let took = format!("{}.{:03} ms", pass.duration_us / 1_000, pass.duration_us % 1_000);
        screen.say(
            "",
            format!(
                "{}, {}, {} in {took}",
                counted(pass.steps.into(), "step"),
                counted(pass.writes.into(), "write"),
                counted(pass.moves.into(), "move")
            ),
        );
    }
}

/// The screen; `now` is in microseconds since the epoch.
fn text(status: &Status, now: u64, style: TextStyle) -> String {
    let mut screen = Screen::default();
    let chooses = status.cpu_source == CpuSource::Steliad;
    let source = if chooses { ", chooses the CPUs itself" } else { "" };
    let meaning = match status.state {
        "running" => Meaning::Good,
        _ => Meaning::Broken,
    };
    screen.add_row(
        "Daemon",
        format!("steliad {}, {}{source}", status.version, status.state),
        meaning,
    );
    for [vm, why] in &status.vms {
        screen.say("VM", vm.clone());
        if !why.is_empty() {
            screen.add_row("", why.clone(), Meaning::Attention);
        }
    }
    for line in status.folded.iter().flatten() {
        screen.add_row("Degraded", line.clone(), Meaning::Broken);
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
    screen.say("Instances", format!("{count}{states}"));
    // A VM that was asked for has a line of its own.
    for line in status.floating.iter().filter(|_| !status.is_of_vms) {
        screen.add_row("", line.clone(), Meaning::Attention);
    }
    for class in status.classes.iter().map(|one| &one.class).collect::<BTreeSet<_>>() {
        let of = status.classes.iter().filter(|one| one.class == *class);
        let pods: Vec<&Pod> = of.map(|one| &one.pod).collect();
        screen.say(
            &format!("Class {}", output::printable(class)),
            format!("{} ({})", pods.len(), named(&pods)),
        );
    }
    let partitions = match status.partitions {
        "isolated" => "isolated: the kernel takes the CPUs from everything else".to_owned(),
        "pinned" => format!("pinned: {} restricted instead", status.restricted.join(", ")),
        _ => "not known before the first instance".to_owned(),
    };
    screen.say("Partitions", partitions);
    if !status.is_of_vms {
        cpus_by_owner(&status.cpus, &mut screen);
    }
    let written = match status.kubelet_written_us {
        0 => String::new(),
        usec => format!(", written {}", output::ago(usec, now)),
    };
    match status.kubelet_problem.as_str() {
        "" if chooses && written.is_empty() => {
            screen.add_row("kubelet's state", "none, and not needed".to_owned(), Meaning::Plain);
        }
        "" => screen.add_row("kubelet's state", format!("usable{written}"), Meaning::Plain),
        problem => {
            // The VMs that are degraded by it have it already.
            let is_known = status.folded.iter().flatten().any(|line| line.ends_with(problem));
            let problem_or_none = if is_known {
                String::new()
            } else {
                format!(": {problem}")
            };
            let text = format!("NOT USABLE{problem_or_none}{written}");
            screen.add_row("kubelet's state", text, Meaning::Broken);
            if let Some(remedy) = remedy_of_file(problem) {
                screen.say("", format!("to do: {remedy}"));
            }
        }
    }
    if !status.is_of_vms {
        passes(status, now, &mut screen);
    }
    let width = screen.0.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    // As in systemctl's output: names are aligned to the right, values to the left.
    let lines = screen.0.iter().map(|(name, value, meaning)| {
        let mut name = if name == ":" { "" } else { name };
        let room = style.width.map(|columns| columns.saturating_sub(width + 1));
        let values = room.map_or_else(|| vec![value.clone()], |room| output::wrap(value, room));
        let mut text = String::new();
        for value in values {
            let _ = writeln!(text, "{name:>width$} {}", meaning.paint(&value, style));
            name = "";
        }
        text
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stelia_api::{Reason, ReasonCode};
    use stelia_kubelet::{PodName, PodUid};
    use stelia_model::{Counters, PinnedThread, Trigger};

    use super::*;
    use crate::cli::Command;
    use crate::shared::daemon::node::testing::{PODS, allocated, node};
    use crate::tests::fixtures::{cli, holds, never_says, says};

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
                trigger: Trigger::Audit,
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

    /// The lines, without the blanks before their names.
    fn lines(status: &Status) -> Vec<String> {
        let text = text(status, 0, TextStyle::default());
        text.lines().map(|line| line.trim_start().to_owned()).collect()
    }

    #[track_caller]
    fn has(status: &Status, expected: &[&str]) {
        let lines = lines(status);
        for line in expected {
            assert!(lines.iter().any(|one| one == line), "{line}: {lines:#?}");
        }
    }

    #[test]
    fn the_screen_is_the_node() {
        insta::assert_snapshot!(text(&Status::of(&full()), 1_735_689_600_000_000, TextStyle::default()), @"
                  Daemon: steliad 0.1.0, degraded
                Degraded: bbbbbbbb-0000-4000-8000-000000000000: kubelet gave CPU 2 away
               Instances: 2 (1 floating, 1 isolated)
                          1 floating (bbbbbbbb-0000-4000-8000-000000000000), vCPUs not attached
              Partitions: isolated: the kernel takes the CPUs from everything else
          Exclusive CPUs: 3 (2,4-5)
        Other pods' CPUs: 1 (6)
             Shared CPUs: 2 (3,7)
           Reserved CPUs: 2 (0-1)
            Offline CPUs: 2 (8-9)
         kubelet's state: usable, written 2024-12-31T23:59:00.000000Z (1min 0s ago)
                   Drift: 3 found, 2 repaired
               Last pass: 7 by audit, 2024-12-31T23:59:58.500000Z (1s ago)
                          2 steps, 5 writes, 1 move in 1.234 ms
        ");
    }

    #[test]
    fn where_steliad_chooses_the_cpus_it_and_the_classes_are_shown() {
        let status = Status::of(&allocated());
        let expected = [
            "Daemon: steliad 0, running, chooses the CPUs itself",
            "Instances: 3 (1 pinned, 1 floating, 1 isolated)",
            "Class LS: 1 (cccccccc-0000-4000-8000-000000000000)",
            "Class LSE: 1 (aaaaaaaa-0000-4000-8000-000000000000)",
            "Class LSR: 1 (bbbbbbbb-0000-4000-8000-000000000000)",
            "Exclusive CPUs: 3 (2,4-5)",
            "Other pods' CPUs: 1 (6)",
            "Shared CPUs: 3 (1,3,7)",
            "Reserved CPUs: 1 (0)",
            "kubelet's state: none, and not needed",
        ];
        has(&status, &expected);
        holds(
            &serde_json::to_value(&status).unwrap(),
            json!({"/cpu_source": "steliad", "/classes/1/pod_uid": PODS[1], "/classes/1/class": "LSR"}),
        );
    }

    #[test]
    fn every_line_is_explained() {
        let lines = [full(), allocated()].map(|node| lines(&Status::of(&node))).concat();
        let names = lines.iter().filter_map(|line| line.split_once(": "));
        // That of a class is its name too.
        let names = names.map(|(name, _)| if name.starts_with("Class ") { "Class" } else { name });
        let names: Vec<&str> = names.collect();
        let explained = output::manual::explained("COLUMNS", Some("status"));
        for name in &names {
            assert!(explained.iter().any(|one| one == name), "{name}: {explained:?}");
        }
        // Whatever the node, these are not always there.
        let rare = ["Unassigned CPUs", "Degraded", "VM"];
        for name in explained.iter().filter(|name| !rare.contains(&name.as_str())) {
            assert!(names.contains(&name.as_str()), "{name}: {names:?}");
        }
    }

    #[test]
    fn a_reason_of_many_vms_is_one_line_and_as_json_one_a_vm() {
        let mut description = node();
        for instance in description.node.instances.values_mut() {
            Arc::make_mut(instance).degraded = vec![Reason::of_node(ReasonCode::KubeletUnusable, "the file is empty")];
        }
        let status = Status::of(&description);
        assert_eq!(status.degraded.len(), 2);
        let degraded = lines(&status).into_iter().filter(|line| line.starts_with("Degraded:"));
        let both = format!("Degraded: 2 VMs ({}, {}): the file is empty", PODS[0], PODS[1]);
        assert_eq!(degraded.collect::<Vec<_>>(), [both]);
    }

    #[test]
    fn what_floats_is_named_once_for_each_reason_with_the_longest_wait() {
        let mut node = Node::default();
        for (n, since) in [(1, 60_000_000), (2, 5_000_000), (3, 0), (4, 61_000_000)] {
            let floating = Instance {
                state: State::Waiting,
                registered_us: since,
                pod_name: PodName::new("team", &format!("vm-{n}")),
                vcpus: vec![PinnedThread::default(); usize::from(n == 3)],
                ..Instance::default()
            };
            let uid = PodUid::parse(&format!("aaaaaaaa-0000-4000-8000-00000000000{n}")).unwrap();
            node.instances.insert(uid, Arc::new(floating));
        }
        let pinned = "1 floating (team/vm-3), its vCPUs are being pinned";
        assert_eq!(
            floating(&node, 365_000_000),
            [
                "3 floating (team/vm-1, team/vm-2, team/vm-4), vCPUs not attached for 6 min",
                pinned
            ]
        );
        has(&of(node), &["Instances: 4 (4 floating)", pinned]);
    }

    #[test]
    fn a_value_that_is_too_long_goes_on_below_itself() {
        let narrow = TextStyle {
            width: Some(60),
            ..TextStyle::default()
        };
        let text = text(&Status::of(&full()), 0, narrow);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let whole = "isolated: the kernel takes the CPUs from everything else";
        says(&words.join(" "), &[whole]);
    }

    #[test]
    fn vms_that_are_asked_for_have_lines_of_their_own_and_no_sums_of_the_node() {
        let selected = |word: &str| match cli(&["status", word]).command {
            Some(Command::Status(selection)) => Status::selected(full(), &selection),
            other => panic!("{other:?}"),
        };
        let status = selected("bbbb").unwrap();
        let pod = PODS[1];
        let expected = [
            &format!("VM: {pod}: floating, CPUs 2, other threads on 0-1,3,7"),
            "vCPUs not attached",
            &format!("Degraded: {pod}: kubelet gave CPU 2 away"),
            "Instances: 1 (1 floating)",
        ];
        has(&status, &expected);
        let of_node = [
            "Exclusive CPUs",
            "Shared CPUs",
            "Offline CPUs",
            "Drift",
            "Last pass",
            "1 floating (",
        ];
        never_says(&lines(&status).join("\n"), &of_node);
        assert_eq!(status.cpus.online.exclusive, "2,4-5".parse().unwrap(), "JSON has them");
        assert_eq!(selected("--state=isolated").unwrap().state, "running");
        assert_eq!(selected("db").unwrap_err().exit_code(), 3);
    }

    #[test]
    fn what_is_wrong_with_the_node_degrades_it() {
        let hangs = of(Node {
            systemd_problem: Some("systemd (PID 1) has not answered".to_owned()),
            ..Node::default()
        });
        assert_eq!(hangs.state, "degraded");
        assert_eq!(hangs.degraded, ["systemd (PID 1) has not answered"]);
        let without_file = of(Node {
            kubelet_problem: Some("read cpu_manager_state: No such file\x1b[2J".to_owned()),
            pool: None,
            ..Node::default()
        });
        assert_eq!((without_file.state, without_file.partitions), ("degraded", "unknown"));
        let unusable = "kubelet's state: NOT USABLE: read cpu_manager_state: No such file?[2J";
        has(&without_file, &[unusable, "Instances: 0"]);
        never_says(&lines(&without_file).join("\n"), &["Last pass"]);
        // What a pass could not do.
        let mut description = full();
        for instance in description.node.instances.values_mut() {
            Arc::make_mut(instance).degraded.clear();
        }
        assert_eq!(Status::of(&description).state, "running");
        description.node.last_pass.as_mut().unwrap().failures = 2;
        assert_eq!(Status::of(&description).state, "degraded");
    }
}
