//! The rows of the table: names without what all have in common where the terminal is too narrow for it, and one row for the VMs of
//! which nothing is known.

use std::collections::{BTreeMap, BTreeSet};

use stelia_table::{TextStyle, counted, table};

use super::{COLUMNS, Vm, VmState};
use crate::cluster::{common_domain, without_domain};

/// What KubeVirt's pods are called, in front of the VM's name.
pub(super) const LAUNCHER: &str = "virt-launcher-";

/// The rows, and what their names lack.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) vms: Vec<Vm>,
    pub(super) left_out: Vec<String>,
    /// Whether a row stands for several VMs.
    pub(super) is_folded: bool,
}

impl Rows {
    /// `fold`: whether VMs of unknown state may share a row.
    pub(super) fn of(vms: &[Vm], style: TextStyle, fold: bool) -> Self {
        // What reads a pipe gets each.
        let vms = match fold && !style.wide && style.width.is_some() {
            true => folded(vms),
            false => vms.to_vec(),
        };
        let vms: Vec<Vm> = match style.wide {
            // A column of its own has the message.
            true => vms,
            false => vms.into_iter().map(with_message).collect(),
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
        let (vms, left_out) = match is_wide {
            true => shortened(vms),
            false => (vms, Vec::new()),
        };
        Self {
            vms,
            left_out,
            is_folded,
        }
    }
}

/// The reason in the row of VMs of which nothing is known.
const NO_CONDITION: &str = "no condition is published: --pod-conditions=all";

/// The VMs with one row for all whose state is unknown for the same reason, where the first of them is.
fn folded(vms: &[Vm]) -> Vec<Vm> {
    let key = |vm: &Vm| (vm.state == VmState::Unknown).then_some(vm.old);
    let mut counts: BTreeMap<Option<&str>, (u64, BTreeSet<&str>)> = BTreeMap::new();
    for vm in vms {
        if let Some(old) = key(vm) {
            let (count, nodes) = counts.entry(old).or_default();
            *count += 1;
            nodes.extend(vm.node.as_deref());
        }
    }
    let mut rows = Vec::new();
    for vm in vms {
        let of_reason = key(vm).and_then(|old| counts.get_mut(&old));
        match of_reason {
            None | Some((1, _)) => rows.push(vm.clone()),
            // It has a row already.
            Some((0, _)) => {}
            Some((count, nodes)) => {
                let is_unpublished = vm.old.is_none();
                rows.push(Vm {
                    label: Some(counted(*count, "VM")),
                    nodes: (nodes.len() > 1).then(|| counted(nodes.len() as u64, "node")),
                    reason: is_unpublished
                        .then(|| NO_CONDITION.to_owned())
                        .or_else(|| vm.reason.clone()),
                    ..vm.clone()
                });
                *count = 0;
            }
        }
    }
    rows
}

/// A VM that floats with its condition's message where the reason repeats the state.
fn with_message(mut vm: Vm) -> Vm {
    let repeats = |reason: &String| reason.eq_ignore_ascii_case(vm.state.name());
    if vm.state == VmState::Floating && vm.message.is_some() && vm.reason.as_ref().is_some_and(repeats) {
        vm.reason = vm.message.clone();
    }
    vm
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
