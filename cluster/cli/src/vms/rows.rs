//! The rows of the table: names without what all have in common where the terminal is too narrow for it, and one row for VMs that are
//! alike.

use std::collections::BTreeSet;

use stelia_table::{TextStyle, counted, table};

use super::{COLUMNS, Vm, VmState};
use crate::rows::{self, MAX_LISTED_ROWS, short_names};

/// Limit of the VMs that are named of those which need attention for the same reason.
const MAX_NAMED_VMS: usize = 10;

/// The reason in the row of VMs of which nothing is known.
const NO_CONDITION: &str = "no condition is published: --pod-conditions=all";

/// Which VMs may share a row on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    Nothing,
    /// Those of unknown state.
    Unknown,
    /// Those of unknown state, and if there are many VMs also those that are alike.
    Alike,
}

/// The rows, and what their names lack.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) vms: Vec<Vm>,
    pub(super) left_out: Option<String>,
    /// Whether a row stands for several VMs.
    pub(super) is_folded: bool,
}

impl Rows {
    pub(super) fn of(all: &[Vm], style: TextStyle, fold: Fold) -> Self {
        let vms: Vec<Vm> = match (style.wide, style.width) {
            // A column of its own has the message.
            (true, _) => all.to_vec(),
            // What reads a pipe gets each.
            (false, None) => all.iter().cloned().map(with_message).collect(),
            (false, Some(_)) => folded(all.iter().cloned().map(with_cause).collect(), fold),
        };
        let is_folded = vms.iter().any(|vm| vm.label.is_some());
        let whole = TextStyle {
            width: None,
            coloured: false,
            ..style
        };
        let mut rows = Self {
            left_out: None,
            is_folded,
            vms,
        };
        let text = table(&COLUMNS, &rows.vms, whole);
        let is_too_wide = |width| text.lines().any(|line| line.chars().count() > width);
        if style.width.is_some_and(is_too_wide) {
            let names = rows.vms.iter_mut().map(|vm| {
                let node = vm.node.as_mut().filter(|_| vm.nodes.is_none());
                (node, &mut vm.pod_name)
            });
            rows.left_out = short_names(names.collect());
        }
        rows
    }
}

/// What VMs of one row have in common.
type Alike = (VmState, bool, Option<&'static str>, Option<String>);

/// The VMs with one row for those that are alike, where the first of them is. The first VMs that need attention have a row of their own.
fn folded(vms: Vec<Vm>, fold: Fold) -> Vec<Vm> {
    let are_many = fold == Fold::Alike && vms.len() > MAX_LISTED_ROWS;
    let key = |vm: &Vm| -> Option<Alike> {
        let may = match vm.state {
            VmState::Unknown => fold != Fold::Nothing,
            _ => are_many,
        };
        may.then(|| (vm.state, vm.is_starting, vm.old, vm.reason.clone()))
    };
    rows::fold(vms, key, named, row_of)
}

/// How many VMs have a row of their own before the others of their group share one.
fn named(vm: &Vm) -> usize {
    match vm.state {
        VmState::Degraded | VmState::Pinned => MAX_NAMED_VMS,
        VmState::Waiting if !vm.is_starting => MAX_NAMED_VMS,
        _ => 0,
    }
}

/// The row that stands for several VMs that are alike.
fn row_of(first: Vm, more: Vec<Vm>) -> Vm {
    let what = if named(&first) > 0 { "more VM" } else { "VM" };
    let all = || more.iter().chain([&first]);
    let nodes: BTreeSet<&String> = all().filter_map(|vm| vm.node.as_ref()).collect();
    let oldest = all().filter_map(|vm| vm.since_us.zip(vm.age.as_ref())).min();
    let is_unpublished = first.state == VmState::Unknown && first.old.is_none();
    Vm {
        label: Some(counted(all().count() as u64, what)),
        nodes: (nodes.len() > 1).then(|| counted(nodes.len() as u64, "node")),
        age: oldest.map(|(_, age)| age.clone()),
        reason: is_unpublished.then(|| NO_CONDITION.to_owned()).or(first.reason.clone()),
        ..first.clone()
    }
}

/// A VM that floats with its condition's message where the reason repeats the state.
fn with_message(mut vm: Vm) -> Vm {
    if vm.state == VmState::Waiting && vm.message.is_some() && repeats_the_state(&vm) {
        vm.reason = vm.message.clone();
    }
    vm
}

/// The same for a terminal, where every VM has its cause in a few words, and a VM without one has none.
fn with_cause(vm: Vm) -> Vm {
    if !repeats_the_state(&vm) {
        return vm;
    }
    let cause = match vm.state {
        VmState::Isolated => None,
        VmState::Waiting if vm.is_starting => Some("starting".to_owned()),
        // "its vCPUs are pinned to the CPUs 4-7, without a partition that keeps others off: the kernel refused the partition"
        VmState::Pinned => {
            let cause = |message: &String| Some(message.split_once(": ")?.1.to_owned());
            vm.message.as_ref().and_then(cause)
        }
        _ => vm.message.clone().or_else(|| vm.reason.clone()),
    };
    Vm { reason: cause, ..vm }
}

fn repeats_the_state(vm: &Vm) -> bool {
    let reason = vm.reason.as_ref();
    reason.is_some_and(|reason| reason.eq_ignore_ascii_case(vm.state.name()))
}
