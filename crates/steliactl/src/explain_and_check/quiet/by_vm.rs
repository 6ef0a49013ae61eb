//! The table of VMs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Vm;
use super::text::is_for_a_screen;
use crate::shared::output::{Column, Meaning, TextStyle, column, paragraph, table};

/// More VMs with nothing but zeros than this have no rows.
pub(super) const MAX_ZERO_ROWS: usize = 3;
/// The number of VMs with the same numbers that have a row each on a terminal; of one more, all have.
const MAX_ALIKE: usize = 3;

/// A VM, or on a terminal several that are alike.
pub(crate) struct VmRow<'a> {
    vm: &'a Vm,
    /// How many VMs the row stands for; `None`: for the one that it names.
    more: Option<usize>,
}

impl<'a> VmRow<'a> {
    fn of(vm: &'a Vm) -> Self {
        Self { vm, more: None }
    }

    fn cpus(&self) -> String {
        match self.more {
            None => self.vm.exclusive_cpus.to_string(),
            Some(_) => String::new(),
        }
    }

    fn name(&self) -> String {
        match self.more {
            None => self.vm.pod.to_string(),
            Some(count) => format!("{count} more VMs"),
        }
    }
}

pub(crate) const fn vms<'a>() -> [Column<VmRow<'a>>; 8] {
    [
        column("POD", VmRow::name).yields(2).shortens(),
        column("POD UID", |row: &VmRow<'_>| row.vm.pod.pod_uid.clone()).wide(),
        column("CPUS", VmRow::cpus).yields(1),
        column("IRQ/S", |row: &VmRow<'_>| number(row.vm.device_interrupts_per_second))
            .right()
            .means(|row| of_number(row.vm.device_interrupts_per_second)),
        column("SINCE ISOLATED", |row: &VmRow<'_>| {
            number(row.vm.device_interrupts_since_isolated)
        })
        .right()
        .means(|row| of_number(row.vm.device_interrupts_since_isolated)),
        column("INTERRUPTS LEFT", |row: &VmRow<'_>| {
            number(known(row.vm, interrupts_left(row.vm)))
        })
        .right()
        .means(|row| of_number(known(row.vm, interrupts_left(row.vm)))),
        column("THREADS LEFT", |row: &VmRow<'_>| {
            number(known(row.vm, threads_left(row.vm)))
        })
        .right()
        .means(|row| of_number(known(row.vm, threads_left(row.vm)))),
        column("PROBLEMS", |row: &VmRow<'_>| row.vm.problems.join("; "))
            .wraps()
            .means(|_| Meaning::Broken),
    ]
}

fn number(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn of_number(number: Option<u64>) -> Meaning {
    match number {
        Some(0) => Meaning::Good,
        _ => Meaning::Attention,
    }
}

fn interrupts_left(vm: &Vm) -> usize {
    vm.interrupts_remaining.iter().filter(|one| one.left).count()
}

fn threads_left(vm: &Vm) -> usize {
    vm.threads_remaining.iter().filter(|one| one.left).count()
}

/// How many are left; `None` where `steliad-quiet` has reported none because it has reported nothing.
fn known(vm: &Vm, left: usize) -> Option<u64> {
    (vm.is_reported || left > 0).then_some(left as u64)
}

/// Whether nothing was counted on its CPUs and nothing is left there, as far as that is known.
pub(super) fn is_zero(vm: &Vm) -> bool {
    vm.device_interrupts_per_second.unwrap_or_default() == 0
        && vm.device_interrupts_since_isolated.unwrap_or_default() == 0
        && interrupts_left(vm) == 0
        && threads_left(vm) == 0
        && vm.problems.is_empty()
}

/// What is known of VMs without a row.
fn zeros(vms: &[&Vm], more: &str) -> String {
    let mut kinds: BTreeMap<(bool, bool), u64> = BTreeMap::new();
    for vm in vms {
        let is_counted = vm.device_interrupts_per_second.is_some();
        *kinds.entry((!is_counted, !vm.is_reported)).or_default() += 1;
    }
    let line = |((not_counted, not_reported), count): ((bool, bool), u64)| {
        let known = match (not_counted, not_reported) {
            (false, false) => "no device interrupt and nothing left there",
            (false, true) => "no device interrupt; what is left there is not known",
            (true, false) => "nothing left there; their device interrupts could not be counted",
            (true, true) => "no count of device interrupts, and what is left there is not known",
        };
        let (vms, have) = if count == 1 { ("VM", "has") } else { ("VMs", "have") };
        // Rows of dashes say no more than that.
        let rows = if not_counted && not_reported {
            ""
        } else {
            " (-o wide has their rows)"
        };
        format!("{count}{more} {vms} {have} {known}{rows}.\n")
    };
    kinds.into_iter().map(line).collect()
}

/// How often the interrupts that are left were seen.
fn seen(vm: &Vm) -> u64 {
    let left = vm.interrupts_remaining.iter().filter(|one| one.left);
    left.fold(0, |sum: u64, one| sum.saturating_add(one.count))
}

/// A row for each VM, those that are disturbed most first; many with nothing but zeros are one line. On a terminal its problems are lines
/// below the table.
pub(super) fn by_vm(vms: &[Vm], style: TextStyle) -> String {
    if vms.is_empty() {
        return "No VM has CPUs of its own.\n".to_owned();
    }
    let mut shown: Vec<&Vm> = vms.iter().collect();
    shown.sort_by_cached_key(|vm| {
        let left = interrupts_left(vm) + threads_left(vm) + vm.problems.len();
        let (rate, since) = (vm.device_interrupts_per_second, vm.device_interrupts_since_isolated);
        let noise = (Reverse(rate), Reverse(since), Reverse(seen(vm)), Reverse(left));
        (noise, vm.pod.to_string())
    });
    let quiet: Vec<&Vm> = vms.iter().filter(|vm| is_zero(vm)).collect();
    if quiet.len() <= MAX_ZERO_ROWS || style.wide || !style.legend {
        return vm_table(shown, style);
    }
    shown.retain(|vm| !is_zero(vm));
    if shown.is_empty() {
        paragraph(&zeros(&quiet, ""), style)
    } else {
        vm_table(shown, style) + "\n" + &paragraph(&zeros(&quiet, " more"), style)
    }
}

fn vm_table(shown: Vec<&Vm>, style: TextStyle) -> String {
    let columns = vms();
    let [without_problems @ .., _] = &columns;
    if is_for_a_screen(style) {
        table(without_problems, &folded(&shown), style) + &unknown_columns(&shown, style)
    } else {
        let rows: Vec<VmRow<'_>> = shown.into_iter().map(VmRow::of).collect();
        table(&columns, &rows, style)
    }
}

/// Rows in their order. The first VMs with the same numbers have one each, and the others of them one together.
fn folded<'a>(shown: &[&'a Vm]) -> Vec<VmRow<'a>> {
    let numbers = |vm: &Vm| {
        (
            vm.device_interrupts_per_second,
            vm.device_interrupts_since_isolated,
            known(vm, interrupts_left(vm)),
            known(vm, threads_left(vm)),
        )
    };
    let mut alike: Vec<Vec<&Vm>> = Vec::new();
    for vm in shown {
        match alike
            .iter_mut()
            .find(|same| same.first().is_some_and(|one| numbers(one) == numbers(vm)))
        {
            Some(same) => same.push(vm),
            None => alike.push(vec![vm]),
        }
    }
    let rows = alike.into_iter().flat_map(|same| {
        let named = if same.len() > MAX_ALIKE + 1 {
            MAX_ALIKE
        } else {
            same.len()
        };
        let (named, others) = same.split_at(named);
        let more = others.first().map(|vm| VmRow {
            vm,
            more: Some(others.len()),
        });
        named.iter().map(|vm| VmRow::of(vm)).chain(more).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Why a column has no number in any row.
fn unknown_columns(shown: &[&Vm], style: TextStyle) -> String {
    let mut text = String::new();
    if shown.iter().all(|vm| vm.device_interrupts_per_second.is_none()) {
        text += "IRQ/S is not known: the device interrupts on these CPUs could not be counted.\n";
    }
    if shown.iter().all(|vm| vm.device_interrupts_since_isolated.is_none()) {
        text += "SINCE ISOLATED is not known: no ledger is kept, or it has not read them yet.\n";
    }
    if text.is_empty() {
        text
    } else {
        format!("\n{}", paragraph(&text, style))
    }
}
