//! The rows of the table: names without what all have in common where the terminal is too narrow for it, and one row for a node's VMs of
//! which nothing is known.

use std::collections::BTreeMap;

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
        let vms = match fold && !style.wide {
            true => folded(vms),
            false => vms.to_vec(),
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

/// The VMs with one row for those of a node whose state is unknown, where the first of them is.
fn folded(vms: &[Vm]) -> Vec<Vm> {
    let key = |vm: &Vm| (vm.state == VmState::Unknown).then(|| vm.node.clone());
    let mut counts: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for node in vms.iter().filter_map(key) {
        *counts.entry(node).or_default() += 1;
    }
    let mut rows = Vec::new();
    for vm in vms {
        let count = key(vm).and_then(|node| counts.get_mut(&node));
        match count {
            None | Some(1) => rows.push(vm.clone()),
            // It has a row already.
            Some(0) => {}
            Some(count) => {
                rows.push(Vm {
                    label: Some(counted(*count, "VM")),
                    ..vm.clone()
                });
                *count = 0;
            }
        }
    }
    rows
}

/// The VMs without the domain that all their nodes have, and without [`LAUNCHER`]; and what was left out.
fn shortened(mut vms: Vec<Vm>) -> (Vec<Vm>, Vec<String>) {
    let domain = common_domain(vms.iter().filter_map(|vm| vm.node.as_deref())).map(str::to_owned);
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
