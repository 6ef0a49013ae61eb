//! Where kubelet chose the CPUs: which VMs it would give better ones if they were started anew, and in which order. It is
//! advice only: nothing is done.

use std::collections::BTreeMap;

use kubelet_planner::Node;
use kubelet_planner::better_after_restart::{Restart, Spread, request, restarts};
use serde::Serialize;

use super::breakable;
use crate::shared::daemon::{Description, Pod};
use crate::shared::output::{Column, TextStyle, column, paragraph, properties, table};

const NO_RESTART: &str = "No restart would give a VM better CPUs.\n";

const HEADING: &str =
    "kubelet chose the CPUs of these VMs. Restarted one after the other in this order, they would get better ones:\n";

const CAUTION: &str = "\
Nothing was done. kubelet decides when it admits a pod, by what is free then: look again after each restart. To restart is to
delete the pod, so that it is made anew once the old one has ended; the scheduler chooses its node, which may be another one. A
container that restarts keeps its CPUs. The guest is shut down by it.
";

/// What would be gained by restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Advice {
    /// In order: each step is planned on the node as the steps before it leave it.
    restarts: Vec<Step>,
    /// VMs of which no restart is planned, because their request is not known.
    left_out: Vec<SkippedVm>,
    /// What is assumed of the node.
    assumed: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Step {
    /// From 1.
    step: usize,
    #[serde(flatten)]
    vm: Pod,
    before: Spread,
    after: Spread,
    gain: String,
    /// What of the gain neither the CPUs nor the counts say.
    #[serde(skip)]
    also: String,
}

impl Step {
    /// "CPUs 8-9,168-169 → 0-3, NUMA nodes 0-1 → 0".
    fn changes(&self, style: TextStyle) -> String {
        let list = |spread: &Spread| breakable(&spread.cpus.to_string(), style);
        let (before, after) = (&self.before, &self.after);
        let mut changes = vec![format!("CPUs {}", change(&list(before), &list(after)))];
        if before.nodes != after.nodes {
            changes.push(format!("NUMA nodes {}", change(&before.nodes, &after.nodes)));
        }
        if before.partial_cores != after.partial_cores {
            let partial = change(&before.partial_cores, &after.partial_cores);
            changes.push(format!("partial cores {partial}"));
        }
        changes.extend(Some(self.also.clone()).filter(|also| !also.is_empty()));
        changes.join("; ")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SkippedVm {
    #[serde(flatten)]
    vm: Pod,
    reason: String,
}

/// A step as a table has it.
struct Row {
    step: Step,
    style: TextStyle,
}

const STEPS: [Column<Row>; 6] = [
    column("STEP", |row: &Row| row.step.step.to_string()),
    column("POD", |row: &Row| row.step.vm.to_string()).yields(1).shortens(),
    column("CPUS", |row: &Row| {
        let list = |spread: &Spread| breakable(&spread.cpus.to_string(), row.style);
        change(&list(&row.step.before), &list(&row.step.after))
    })
    .wraps(),
    column("NUMA NODES", |row: &Row| {
        change(&row.step.before.nodes, &row.step.after.nodes)
    }),
    column("PARTIAL CORES", |row: &Row| {
        change(&row.step.before.partial_cores, &row.step.after.partial_cores)
    }),
    column("GAIN", |row: &Row| row.step.gain.clone()).wraps(),
];

/// On a terminal a pod has a line of its own, so that its name is whole, and what changes is below it.
const ON_SCREEN: [Column<[String; 2]>; 2] = [
    column("STEP", |[step, _]: &[String; 2]| step.clone()).or_nothing(),
    column("POD, AND BELOW IT WHAT CHANGES", |[_, text]: &[String; 2]| text.clone()).wraps(),
];

fn steps_table(steps: &[Step], style: TextStyle) -> String {
    if style.width.is_some() && style.legend && !style.wide {
        let rows = steps.iter().flat_map(|one| {
            [
                [one.step.to_string(), one.vm.to_string()],
                [String::new(), one.changes(style)],
            ]
        });
        let rows: Vec<[String; 2]> = rows.collect();
        return table(&ON_SCREEN, &rows, style);
    }
    let rows = steps.iter().cloned().map(|step| Row { step, style });
    let rows: Vec<Row> = rows.collect();
    table(&STEPS, &rows, style)
}

/// The lines of a paragraph, filled anew on a terminal.
fn filled(lines: &str, style: TextStyle) -> String {
    match style.width {
        Some(_) => paragraph(&lines.trim_end().replace('\n', " "), style),
        None => lines.to_owned(),
    }
}

fn change<T: PartialEq + ToString>(before: &T, after: &T) -> String {
    match before == after {
        true => before.to_string(),
        false => format!("{} → {}", before.to_string(), after.to_string()),
    }
}

impl Advice {
    /// For the VMs that the daemon describes, or for one of them, on the node as kubelet's files describe it.
    pub(super) fn new(node: &Node, assumed: Vec<String>, description: &Description, pod: Option<&str>) -> Self {
        let (mut pods, mut left_out) = (Vec::new(), Vec::new());
        let instances = description.node.instances.iter();
        let vms: BTreeMap<&str, Pod> = instances
            .filter(|(uid, _)| pod.is_none_or(|pod| pod == uid.as_str()))
            .map(|(uid, instance)| (uid.as_str(), Pod::of(uid, instance)))
            .collect();
        for (uid, vm) in &vms {
            match request(node, uid) {
                Ok(pod) => pods.push(pod),
                Err(reason) => left_out.push(SkippedVm {
                    vm: vm.clone(),
                    reason: reason.to_string(),
                }),
            }
        }
        let named = |uid: &str| vms.get(uid).cloned().unwrap_or_default();
        let planned = restarts(node, &pods);
        let steps = planned.iter().enumerate().map(|(at, restart)| {
            let next = planned.get(at + 1).filter(|_| restart.makes_room);
            let next = next.map(|next| named(&next.pod));
            Step {
                step: at + 1,
                vm: named(&restart.pod),
                before: restart.before.clone(),
                after: restart.after.clone(),
                gain: [fewer(restart), also(restart, next.as_ref())].concat().join(", "),
                also: also(restart, next.as_ref()).join(", "),
            }
        });
        Self {
            restarts: steps.collect(),
            left_out,
            assumed,
        }
    }

    pub(super) fn text(&self, style: TextStyle) -> String {
        let steps = match (self.restarts.is_empty(), style.legend) {
            (true, _) => NO_RESTART.to_owned(),
            (false, true) => {
                let steps = steps_table(&self.restarts, style);
                format!("{}\n{steps}\n{}", filled(HEADING, style), filled(CAUTION, style))
            }
            (false, false) => steps_table(&self.restarts, style),
        };
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|one| ("Left out", format!("{}: {}", one.vm, one.reason)));
        let assumed = self.assumed.iter().map(|note| ("Assumed", note.clone()));
        let notes: Vec<_> = left_out.chain(assumed).collect();
        match notes.is_empty() || !style.legend {
            true => steps,
            false => format!("{steps}\n{}", properties(notes, style)),
        }
    }
}

/// What the VM is on less of, in words.
fn fewer(restart: &Restart) -> Vec<String> {
    let (before, after) = (&restart.before, &restart.after);
    let counts = [
        ("NUMA node", before.nodes.len(), after.nodes.len()),
        ("socket", before.sockets, after.sockets),
        ("partial core", before.partial_cores, after.partial_cores),
    ];
    let fewer = counts.into_iter().filter(|(_, before, after)| after < before);
    let fewer = fewer.map(|(what, before, after)| match after {
        0 => format!("no {what} instead of {before}"),
        1 => format!("1 {what} instead of {before}"),
        after => format!("{after} {what}s instead of {before}"),
    });
    fewer.collect()
}

/// What else is gained; `next` is the VM that this restart makes room for.
fn also(restart: &Restart, next: Option<&Pod>) -> Vec<String> {
    let (before, after) = (&restart.before, &restart.after);
    let mut gains = Vec::new();
    let remote = |spread: &Spread| spread.memory.difference(&spread.nodes).len();
    if remote(after) < remote(before) || (fewer(restart).is_empty() && !restart.makes_room) {
        gains.push("nearer to its memory or devices".to_owned());
    }
    gains.extend(next.map(|vm| format!("makes room for {vm}")));
    gains
}

#[cfg(test)]
mod tests {
    use kubelet_planner::cpus::{CpuState, CpuTopology, Options};
    use kubelet_planner::merge::Policy;
    use kubelet_planner::{CpuManager, Machine, NodeState, NumaNode, Settings};
    use stelia_cpus::CpuSet;
    use stelia_cpus::testing::Shape;
    use stelia_kubelet::{PodName, PodUid};
    use stelia_model::Instance;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// The UID that begins so.
    fn uid(beginning: &str) -> String {
        format!("{beginning}000000-0000-4000-8000-000000000000")
    }

    /// Two NUMA nodes of four cores of two threads, 0-3,8-11 and 4-7,12-15, 0 and 8 reserved, with these pods on it.
    fn node(pods: &[(&str, &str)]) -> Node {
        let shape = Shape {
            nodes: 2,
            cores: 4,
            threads: 2,
            interleaved: true,
        };
        let entry = |(pod, cpus): &(&str, &str)| (uid(pod), [("vm".to_owned(), set(cpus))].into());
        let mut state = NodeState::default();
        let given = pods.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(&set(cpus)));
        state.cpus = CpuState {
            default: set("0-15").difference(&given),
            entries: pods.iter().map(entry).collect(),
            ..CpuState::default()
        };
        let machine = Machine {
            cpus: CpuTopology::new(&shape.topology(), &BTreeMap::new()),
            numa: [(0, NumaNode::default()), (1, NumaNode::default())].into(),
        };
        let settings = Settings {
            cpu_manager: CpuManager::reserving(Options::default(), set("0,8")),
            topology_policy: Policy::BestEffort,
            ..Settings::default()
        };
        Node::start(machine, settings, state).unwrap()
    }

    /// VMs by UID, with the name of those that have one.
    fn described(vms: &[(&str, &str)]) -> Description {
        let mut description = Description::default();
        for (beginning, name) in vms {
            let instance = Instance {
                pod_name: PodName::new("shop", name),
                ..Instance::default()
            };
            let pod = PodUid::parse(&uid(beginning)).unwrap();
            description.node.instances.insert(pod, instance.into());
        }
        description
    }

    #[test]
    fn on_a_fragmented_node_the_order_and_each_gain_are_told() {
        let node = node(&[("aa", "3,5,11,13"), ("bb", "1-2,4,9-10,12"), ("cc", "6,14")]);
        let vms = described(&[("bb", "db"), ("aa", "web"), ("cc", "")]);
        let advice = Advice::new(&node, vec!["a fact".to_owned()], &vms, None);
        assert_eq!(
            advice.text(TextStyle::from(false)),
            "1  shop/web  3,5,11,13 → 5,7,13,15     0-1 → 1  0  1 NUMA node instead of 2, 1 socket instead of 2\n\
             2  shop/db   1-2,4,9-10,12 → 1-3,9-11  0-1 → 0  0  1 NUMA node instead of 2, 1 socket instead of 2\n"
        );
        let text = advice.text(TextStyle::from(true));
        assert!(
            text.starts_with("kubelet chose") && text.contains("Nothing was done."),
            "{text}"
        );
        assert!(text.ends_with("\n\nAssumed:  a fact\n"), "{text}");
        let json = serde_json::to_value(&advice).unwrap();
        let first = &json["restarts"][0];
        assert_eq!(
            (&first["pod_uid"], &first["pod_name"]),
            (&uid("aa").into(), &"web".into())
        );
        assert_eq!(first["before"]["numa_nodes"], "0-1");
        assert_eq!(first["after"]["cpus"], "5,7,13,15");
        // Only a is asked for: b's gain is not advised.
        assert_eq!(Advice::new(&node, Vec::new(), &vms, Some(&uid("aa"))).restarts.len(), 1);
        assert_eq!(
            Advice::new(&node, Vec::new(), &vms, Some(&uid("bb"))).text(TextStyle::from(true)),
            NO_RESTART
        );
    }

    #[test]
    fn a_narrow_terminal_has_the_new_cpus_and_each_gain_whole() {
        let node = node(&[("aa", "3,5,11,13"), ("bb", "1-2,4,9-10,12"), ("cc", "6,14")]);
        let vms = described(&[
            ("bb", "virt-launcher-customer-database-001-n4hvb"),
            ("aa", "virt-launcher-customer-database-002-x7k2p"),
            ("cc", ""),
        ]);
        let advice = Advice::new(&node, Vec::new(), &vms, None);
        let narrow = TextStyle {
            width: Some(80),
            ..TextStyle::from(true)
        };
        let text = advice.text(narrow);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for end in [
            "1     shop/virt-launcher-customer-database-002-x7k2p\n      CPUs 3,5,11,13 → 5,7,13,15; NUMA nodes 0-1 → 1\n",
            "shop/virt-launcher-customer-database-001-n4hvb\n      CPUs 1-2,4,9-10,12 → 1-3,9-11; NUMA nodes 0-1 → 0\n",
        ] {
            assert!(text.contains(end), "{end}: {text}");
        }
        assert!(!text.contains("instead") && !text.contains('…'), "{text}");
        let whole = advice.text(TextStyle::from(true));
        assert!(
            whole.starts_with("kubelet chose") && whole.contains("better ones:\n\nSTEP"),
            "{whole}"
        );
        assert!(whole.ends_with(&format!("\n{CAUTION}")), "{whole}");
    }

    #[test]
    fn what_makes_room_says_for_whom() {
        let node = node(&[("aa", "5,13"), ("bb", "1,4,6-7,9,12,14-15"), ("cc", "2,10")]);
        let advice = Advice::new(&node, Vec::new(), &described(&[("aa", ""), ("bb", "db")]), None);
        let gains: Vec<&str> = advice.restarts.iter().map(|step| step.gain.as_str()).collect();
        assert_eq!(
            gains,
            [
                "makes room for shop/db",
                "1 NUMA node instead of 2, 1 socket instead of 2"
            ]
        );
    }

    #[test]
    fn a_vm_without_cpus_of_kubelets_is_named_and_no_restart_is_invented() {
        let advice = Advice::new(
            &node(&[("aa", "1,9")]),
            Vec::new(),
            &described(&[("aa", ""), ("bb", "db")]),
            None,
        );
        assert_eq!(
            advice.text(TextStyle::from(true)),
            format!("{NO_RESTART}\nLeft out:  shop/db: kubelet's CPU manager has no CPUs of it\n")
        );
    }
}
