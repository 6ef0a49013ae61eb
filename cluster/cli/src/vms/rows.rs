//! The rows of the table: names without what all have in common where the terminal is too narrow for it, and one row for VMs that are
//! alike.

use std::collections::{BTreeMap, BTreeSet};

use stelia_table::{TextStyle, counted, table};

use super::filter::LAUNCHER;
use super::notes::with_footnotes;
use super::{COLUMNS, Vm, VmState};
use crate::cluster::{common_domain, without_domain};

/// Limit of the VMs that are listed one by one on a terminal.
const MAX_LISTED_VMS: usize = 20;

/// Limit of the VMs that are named of those which need attention for the same reason.
const MAX_NAMED_VMS: u64 = 10;

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
    pub(super) left_out: Vec<String>,
    /// The footnotes that stand for reasons.
    pub(super) notes: Vec<String>,
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
        let too_long = |width| move |line: &str| line.chars().count() > width;
        let is_wide = style
            .width
            .is_some_and(|width| table(&COLUMNS, &vms, whole).lines().any(too_long(width)));
        let mut rows = Self {
            vms,
            is_folded,
            ..Self::default()
        };
        if is_wide {
            (rows.vms, rows.left_out) = shortened(rows.vms);
            let is_wide = style
                .width
                .is_some_and(|width| table(&COLUMNS, &rows.vms, whole).lines().any(too_long(width)));
            if is_wide && style.legend && !style.wide {
                (rows.vms, rows.notes) = with_footnotes(rows.vms, all);
            }
        }
        rows
    }
}

/// What VMs of one row have in common.
type Alike = (VmState, bool, Option<&'static str>, Option<String>);

/// VMs that are alike.
#[derive(Debug, Default)]
struct Group {
    vms: u64,
    nodes: BTreeSet<String>,
    /// How many of them have a row.
    rows: u64,
    /// Since when the first of the rest is so, with the age as text.
    oldest: Option<(u64, String)>,
}

/// The VMs with one row for those that are alike, where the first of them is. The first VMs that need attention have a row of their own.
fn folded(vms: Vec<Vm>, fold: Fold) -> Vec<Vm> {
    let are_many = fold == Fold::Alike && vms.len() > MAX_LISTED_VMS;
    let key = |vm: &Vm| -> Option<Alike> {
        let may = match vm.state {
            VmState::Unknown => fold != Fold::Nothing,
            _ => are_many,
        };
        may.then(|| (vm.state, vm.is_starting, vm.old, vm.reason.clone()))
    };
    let mut groups: BTreeMap<Alike, Group> = BTreeMap::new();
    for vm in &vms {
        if let Some(key) = key(vm) {
            let group = groups.entry(key).or_default();
            let named = named(vm);
            group.vms += 1;
            // The row of the rest has the nodes of the rest.
            if group.vms > named {
                group.nodes.extend(vm.node.clone());
                let since = vm.since_us.zip(vm.age.clone());
                group.oldest = group.oldest.take().into_iter().chain(since).min();
            }
        }
    }
    // The rows of a group stand together, where the first of them is.
    let mut places: BTreeMap<Alike, usize> = BTreeMap::new();
    let mut rows: Vec<Vec<Vm>> = Vec::new();
    for vm in vms {
        let key = key(&vm);
        let at = key
            .clone()
            .map_or(rows.len(), |key| *places.entry(key).or_insert(rows.len()));
        if at == rows.len() {
            rows.push(Vec::new());
        }
        let Some(rows) = rows.get_mut(at) else { continue };
        let Some(group) = key.and_then(|key| groups.get_mut(&key)) else {
            rows.push(vm);
            continue;
        };
        group.rows += 1;
        let named = named(&vm);
        // A row for a single VM has its name.
        if group.rows <= named || group.vms == named + 1 {
            rows.push(vm);
        } else if group.rows == named + 1 {
            rows.push(row_of(vm, group, named));
        }
    }
    rows.concat()
}

/// How many VMs have a row of their own before the others of their group share one.
fn named(vm: &Vm) -> u64 {
    match vm.state {
        VmState::Degraded | VmState::Pinned => MAX_NAMED_VMS,
        VmState::Waiting if !vm.is_starting => MAX_NAMED_VMS,
        _ => 0,
    }
}

/// The row that stands for the VMs of a group without the first `named`, of which `vm` is one.
fn row_of(vm: Vm, group: &Group, named: u64) -> Vm {
    let more = if named > 0 { "more VM" } else { "VM" };
    let is_unpublished = vm.state == VmState::Unknown && vm.old.is_none();
    Vm {
        label: Some(counted(group.vms - named, more)),
        nodes: (group.nodes.len() > 1).then(|| counted(group.nodes.len() as u64, "node")),
        reason: is_unpublished
            .then(|| NO_CONDITION.to_owned())
            .or_else(|| vm.reason.clone()),
        age: group.oldest.clone().map(|(_, age)| age),
        ..vm
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

/// The VMs without the domain that all their nodes have, and without [`LAUNCHER`]; and what was left out.
fn shortened(mut vms: Vec<Vm>) -> (Vec<Vm>, Vec<String>) {
    let domain = common_domain(
        vms.iter()
            .filter(|vm| vm.nodes.is_none())
            .filter_map(|vm| vm.node.as_deref()),
    )
    .map(str::to_owned);
    let mut is_launcher = false;
    for vm in &mut vms {
        if let Some(node) = vm.node.as_mut().filter(|_| domain.is_some()) {
            node.truncate(without_domain(node).len());
        }
        if let Some(name) = vm.pod_name.strip_prefix(LAUNCHER).filter(|name| !name.is_empty()) {
            vm.pod_name = name.to_owned();
            is_launcher = true;
        }
    }
    let launcher = is_launcher.then(|| LAUNCHER.to_owned());
    (vms, launcher.into_iter().chain(domain).collect())
}
