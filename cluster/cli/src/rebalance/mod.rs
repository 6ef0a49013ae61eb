//! `rebalance`: which VMs would have to move, in which order, so that a pod finds room. It only prints plans.
//!
//! The search is that of `stelia_placement_rules::rebalance`, on the nodes as they are published with profile stelia. This module gives it the nodes
//! and VMs, and also checks what the scheduler counts.

mod may_move;
mod staying;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_cpus::quantity::bytes::of_bytes;
use stelia_kubelet::Uid;
use stelia_placement_rules::rebalance::{Departure, Limits, MoveKind, rebalance};
use stelia_table::{Column, Render, TextStyle, column, counted, properties, table};

use crate::cluster::{Cluster, called};
use crate::eligible;
use crate::objects::Problem;
use crate::objects::own_cpus;
use crate::pod_request::PodRequest;
use crate::prose;
use crate::verdict::{Group, table_of};
use crate::vms::{LAUNCHER, without_launcher};
use may_move::RebalanceInput;
pub use staying::Staying;

const ASSUMED: [&str; 2] = [
    "a VM can go wherever the pod could: its own labels, taints, volumes and migration's own conditions are not considered",
    "devices of a VM that leaves are not counted as given back",
];

/// Limits of a plan.
#[derive(Debug, Clone, Copy)]
pub struct RebalanceLimits {
    pub rebind: bool,
    pub migrate: bool,
    /// VMs of one plan.
    pub moves: usize,
    /// Plans that are printed.
    pub plans: usize,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rebalance {
    pub pod: String,
    /// CPUs of its own that it would have.
    pub cpus: u64,
    /// A node that has room already; null where something has to move.
    pub fits: Option<String>,
    /// The best first: fewest migrations, then least memory to copy, then fewest moves.
    pub plans: Vec<Plan>,
    /// Nodes that were searched for VMs to move.
    pub searched: u64,
    /// VMs that may move.
    pub vms: u64,
    /// Limit of the moves of a plan.
    #[serde(skip)]
    pub max_moves: u64,
    /// Whether the search ended before it had tried everything.
    pub cut: bool,
    /// Why other nodes were not searched.
    pub passed_over: Vec<Group>,
    /// Containers without a VM on the nodes that were searched: they are not moved.
    pub staying: Vec<Staying>,
    pub assumed: Vec<String>,
    pub problems: Vec<Problem>,
}

/// What would make room on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub node: String,
    /// The pod's CPUs afterwards.
    pub cpus: CpuSet,
    pub moves: Vec<Move>,
    /// CPUs of VMs that move.
    pub moved_cpus: u64,
    /// Bytes that migrations copy.
    pub copied: u64,
    /// Whole free cores of the node now, and when all is done.
    pub free_cores: (u64, u64),
}

/// One VM's move. A plan's moves are made one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    pub step: u64,
    /// `namespace/name`.
    pub vm: String,
    pub uid: String,
    /// `rebind` (other CPUs of its node) or `migrate`.
    pub how: &'static str,
    pub from: String,
    pub from_cpus: CpuSet,
    pub to: String,
    pub to_cpus: CpuSet,
    /// Bytes that are copied: what the pod requests.
    pub memory: u64,
}

impl Rebalance {
    pub fn of(pod_request: &PodRequest, cluster: &Cluster, may: RebalanceLimits) -> Self {
        let RebalanceInput {
            mut nodes,
            residents,
            vms,
            refused,
            staying,
        } = RebalanceInput::of(pod_request, cluster, may);
        let limits = Limits {
            moves: may.moves,
            plans: may.plans,
            ..Limits::default()
        };
        let binds = |node: &str, departures: &[Departure<'_>]| {
            may_move::is_within_requests(pod_request, cluster, &vms, node, departures)
        };
        let answer = rebalance(&mut nodes, &residents, &may_move::request(pod_request), limits, &binds);
        let mut passed_over = refused;
        passed_over.extend(answer.search.passed_over.into_iter().map(|(reason, nodes)| Group {
            reason: reason.to_owned(),
            nodes: nodes as u64,
            ..Group::default()
        }));
        let plans = answer
            .plans
            .into_iter()
            .map(|plan| Plan::from_plan(plan, &vms))
            .collect();
        let mut assumed: Vec<String> = ASSUMED.iter().map(|text| (*text).to_owned()).collect();
        if !cluster.has_nodes {
            assumed.push("no Nodes were read: labels, taints and what pods request are not considered".to_owned());
        }
        Self {
            pod: pod_request.name.clone(),
            cpus: own_cpus(&pod_request.pod),
            fits: answer.fits,
            plans,
            searched: answer.search.nodes as u64,
            vms: vms.len() as u64,
            max_moves: may.moves as u64,
            cut: answer.search.cut,
            passed_over,
            staying,
            assumed,
            problems: cluster.problems.stored().to_vec(),
        }
    }
}

impl Plan {
    fn from_plan(plan: stelia_placement_rules::rebalance::Plan, vms: &BTreeMap<Uid, may_move::Vm>) -> Self {
        let node = plan.node;
        let moves = (1..).zip(plan.moves).map(|(step, one)| Move {
            step,
            vm: vms.get(&one.uid).map(|vm| vm.name.clone()).unwrap_or_default(),
            uid: one.uid.to_string(),
            how: match one.how {
                MoveKind::Rebind => "rebind",
                MoveKind::Migrate => "migrate",
            },
            from: node.clone(),
            from_cpus: one.from_cpus,
            to: one.to,
            to_cpus: one.cpus,
            memory: one.memory,
        });
        Self {
            moves: moves.collect(),
            cpus: plan.placement.cpus,
            moved_cpus: plan.gain.moved_cpus as u64,
            copied: plan.gain.copied,
            free_cores: (plan.gain.free_cores.0 as u64, plan.gain.free_cores.1 as u64),
            node,
        }
    }

    fn in_words(&self, style: TextStyle) -> String {
        let migrations = self.moves.iter().filter(|one| one.how == "migrate").count() as u64;
        let rebinds = self.moves.len() as u64 - migrations;
        let kinds = [(migrations, "migration"), (rebinds, "rebind")];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, what)| counted(count, what)).collect();
        let copied = match self.copied {
            0 => String::new(),
            bytes => format!(", {} to copy", of_bytes(bytes)),
        };
        let (before, after) = self.free_cores;
        format!(
            "{} on CPUs {} after {}{copied}; whole free cores there: {before} now, {after} then",
            called(&self.node, style),
            self.cpus,
            kinds.join(" and ")
        )
    }
}

impl Move {
    fn in_words(&self, style: TextStyle) -> String {
        let to = match self.how {
            "rebind" => String::new(),
            _ => format!("{}, ", called(&self.to, style)),
        };
        let copied = match self.memory {
            0 => String::new(),
            bytes => format!("; {} to copy", of_bytes(bytes)),
        };
        let (how, vm, from, cpus) = (self.how, without_launcher(&self.vm), &self.from_cpus, &self.to_cpus);
        format!("{how} {vm} from CPUs {from} to {to}CPUs {cpus}{copied}")
    }
}

/// What a plan is called.
fn best_or(number: usize) -> &'static str {
    if number == 1 { "Best" } else { "Or" }
}

const MOVES: [Column<Move>; 7] = [
    column("STEP", |one: &Move| one.step.to_string()).right(),
    column("VM", |one: &Move| one.vm.clone()).yields(1).shortens(),
    column("HOW", |one: &Move| one.how.to_owned()),
    column("FROM", |one: &Move| format!("{}:{}", one.from, one.from_cpus)).wraps(),
    column("TO", |one: &Move| format!("{}:{}", one.to, one.to_cpus)).wraps(),
    column("COPIES", |one: &Move| match one.memory {
        0 => String::new(),
        bytes => of_bytes(bytes),
    })
    .right(),
    column("UID", |one: &Move| one.uid.clone()).wide(),
];

impl Render for Rebalance {
    fn text(&self, style: TextStyle) -> String {
        let mut lines: Vec<(Cow<'_, str>, String)> =
            vec![("Pod".into(), format!("{} ({} exclusive CPUs)", self.pod, self.cpus))];
        let room = match (&self.fits, self.plans.len() as u64) {
            (Some(node), _) => format!("on {}, without any move", called(node, style)),
            (None, 0) => format!(
                "none, and no plan of at most {} was found (--moves)",
                counted(self.max_moves, "move")
            ),
            (None, plans) => format!("none now; {}, nothing is done by itself", counted(plans, "plan")),
        };
        lines.push(("Room".into(), room));
        if self.fits.is_none() {
            let cut = if self.cut { ", not to the end" } else { "" };
            let (vms, nodes) = (counted(self.vms, "VM"), counted(self.searched, "node"));
            lines.push(("Searched".into(), format!("{nodes} with {vms} that may move{cut}")));
            lines.extend(staying::in_words(&self.staying, style).map(|stays| ("Stays".into(), stays)));
        }
        // A terminal of the usual width has no room for the table: each move is a sentence below its plan.
        let are_sentences = style.width.is_some() && !style.wide;
        for (number, plan) in (1..).zip(&self.plans) {
            lines.push((best_or(number).into(), plan.in_words(style)));
            if are_sentences {
                let moves = plan.moves.iter();
                lines.extend(moves.map(|one| (format!("Move {}", one.step).into(), one.in_words(style))));
            }
        }
        if !self.plans.is_empty() {
            lines.extend(self.assumed.iter().map(|assumed| ("Assumed".into(), assumed.clone())));
        }
        let mut parts = vec![properties(lines, style)];
        if are_sentences {
            let mut moves = self.plans.iter().flat_map(|plan| &plan.moves);
            if moves.any(|one| one.vm != without_launcher(&one.vm)) {
                let note = format!("Names of VMs are shown without {LAUNCHER}; -o wide shows them whole.");
                parts.push(prose(&note, style));
            }
        } else {
            parts.extend((1..).zip(&self.plans).map(|(number, plan)| {
                let heading = match style.width {
                    Some(_) => format!("{}: {}\n", best_or(number), called(&plan.node, style)),
                    None => String::new(),
                };
                heading + &table(&MOVES, &plan.moves, style)
            }));
        }
        if self.fits.is_none() && (self.plans.is_empty() || style.wide) {
            parts.push(table_of(&self.passed_over, style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        let planned = self.plans.iter().map(|plan| plan.node.clone());
        self.fits.iter().cloned().chain(planned).collect()
    }

    fn failure(&self) -> Option<String> {
        let is_none = self.fits.is_none() && self.plans.is_empty();
        is_none.then(|| format!("no move was found that makes room for {}", self.pod))
    }
}
