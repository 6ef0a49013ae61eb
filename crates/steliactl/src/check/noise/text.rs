//! The answer as tables, and below them the sentence that sums it up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::quiet::RemainingCause;
use stelia_cpus::CpuSet;

use super::{Interrupt, Kthread, Quietness, Vm, words};
use crate::shared::daemon::{Pod, whose};
use crate::shared::output::{Column, Meaning, TextStyle, column, counted, paragraph, printable, table};

pub(crate) const VMS: [Column<Vm>; 8] = [
    column("POD", |vm: &Vm| vm.pod.to_string()).yields(2).shortens(),
    column("POD UID", |vm: &Vm| vm.pod.pod_uid.clone()).wide(),
    column("CPUS", |vm: &Vm| vm.exclusive_cpus.to_string()).yields(1),
    column("IRQ/S", |vm: &Vm| number(vm.device_interrupts_per_second))
        .right()
        .means(|vm| of_number(vm.device_interrupts_per_second)),
    column("SINCE ISOLATED", |vm: &Vm| number(vm.device_interrupts_since_isolated))
        .right()
        .means(|vm| of_number(vm.device_interrupts_since_isolated)),
    column("INTERRUPTS LEFT", |vm: &Vm| number(known(vm, interrupts_left(vm))))
        .right()
        .means(|vm| of_number(known(vm, interrupts_left(vm)))),
    column("THREADS LEFT", |vm: &Vm| number(known(vm, threads_left(vm))))
        .right()
        .means(|vm| of_number(known(vm, threads_left(vm)))),
    column("PROBLEMS", |vm: &Vm| vm.problems.join("; "))
        .wraps()
        .means(|_| Meaning::Broken),
];

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

/// How often the interrupts that are left were seen.
fn seen(vm: &Vm) -> u64 {
    let left = vm.interrupts_remaining.iter().filter(|one| one.left);
    left.fold(0, |sum: u64, one| sum.saturating_add(one.count))
}

/// A row for each VM, those that are disturbed most first.
fn by_vm(vms: &[Vm], style: TextStyle) -> String {
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
    table(&VMS, shown, style)
}

/// An interrupt or a thread, and the VMs whose CPUs it reaches.
pub(crate) struct RemainingRow<'a, T> {
    pods: Vec<&'a Pod>,
    cpus: CpuSet,
    one: &'a T,
}

impl<T> RemainingRow<'_, T> {
    fn whose(&self) -> String {
        whose(&self.pods)
    }
}

pub(crate) const fn interrupts<'a>() -> [Column<RemainingRow<'a, Interrupt>>; 7] {
    [
        column("IRQ", |row: &RemainingRow<'_, Interrupt>| row.one.irq.to_string()).right(),
        column("NAME", |row: &RemainingRow<'_, Interrupt>| row.one.name.clone()).yields(3),
        column("POD", RemainingRow::whose).yields(4).shortens(),
        column("CPUS", |row: &RemainingRow<'_, Interrupt>| row.cpus.to_string()).yields(1),
        column("SEEN", |row: &RemainingRow<'_, Interrupt>| row.one.count.to_string()).right(),
        column("WHY", |row: &RemainingRow<'_, Interrupt>| why_interrupt(row.one)).wraps(),
        column("WHAT TO DO", |row: &RemainingRow<'_, Interrupt>| {
            row.one.cure.to_owned()
        })
        .wraps(),
    ]
}

pub(crate) const fn threads<'a>() -> [Column<RemainingRow<'a, Kthread>>; 6] {
    [
        column("TID", |row: &RemainingRow<'_, Kthread>| row.one.tid.to_string()).right(),
        column("THREAD", |row: &RemainingRow<'_, Kthread>| row.one.name.clone()).yields(2),
        column("POD", RemainingRow::whose).yields(3).shortens(),
        column("CPUS", |row: &RemainingRow<'_, Kthread>| row.cpus.to_string()).yields(1),
        column("WHY", |row: &RemainingRow<'_, Kthread>| words::thread_why(&row.one.why)).wraps(),
        column("WHAT TO DO", |row: &RemainingRow<'_, Kthread>| {
            words::thread_cure(row.one.left).to_owned()
        })
        .wraps(),
    ]
}

fn why_interrupt(one: &Interrupt) -> String {
    match one.reason {
        // What the kernel says of a mask that it does not take is the same of each.
        RemainingCause::Managed => words::why(RemainingCause::Managed).to_owned(),
        _ => one.why.clone(),
    }
}

/// What remains, each once with all VMs that it reaches; without `all` only what is left. It is shown as it is of a VM that it
/// disturbs, if it disturbs any.
fn rows<'a, T: 'a, K: Ord>(
    vms: &'a [Vm],
    all: bool,
    of: fn(&'a Vm) -> &'a [T],
    about: fn(&'a T) -> (K, &'a CpuSet, bool),
) -> Vec<RemainingRow<'a, T>> {
    let mut rows: BTreeMap<K, (bool, RemainingRow<'a, T>)> = BTreeMap::new();
    for (vm, one) in vms.iter().flat_map(|vm| of(vm).iter().map(move |one| (vm, one))) {
        let (key, cpus, left) = about(one);
        if !left && !all {
            continue;
        }
        let (shown_left, row) = rows.entry(key).or_insert_with(|| {
            let row = RemainingRow {
                pods: Vec::new(),
                cpus: CpuSet::new(),
                one,
            };
            (left, row)
        });
        if left && !*shown_left {
            (*shown_left, row.one) = (true, one);
        }
        row.pods.push(&vm.pod);
        row.cpus = row.cpus.union(cpus);
    }
    rows.into_values().map(|(_, row)| row).collect()
}

pub(super) fn text(quietness: &Quietness, style: TextStyle) -> String {
    let vms = &quietness.vms;
    let mut parts = vec![by_vm(vms, style)];
    let mut irqs = rows(
        vms,
        style.wide,
        |vm| vm.interrupts_remaining.as_slice(),
        |one| (one.irq, &one.cpus, one.left),
    );
    irqs.sort_by_key(|row| Reverse(row.one.count));
    if !irqs.is_empty() {
        parts.push(table(&interrupts(), &irqs, style));
    }
    let kthreads = rows(
        vms,
        style.wide,
        |vm| vm.threads_remaining.as_slice(),
        |one| (one.tid, &one.cpus, one.left),
    );
    if !kthreads.is_empty() {
        parts.push(table(&threads(), &kthreads, style));
    }
    let cure = |problem: &str| words::problem_cure(problem).map(|cure| format!(". What to do: {cure}."));
    let of_node = quietness.problems.iter();
    let of_node = of_node.map(|one| format!("Problem: {}{}", printable(one), cure(one).unwrap_or_default()));
    // The table of VMs has their problems, not what helps.
    let of_vms = vms.iter().flat_map(|vm| {
        let problems = vm.problems.iter();
        problems.filter_map(|one| Some(format!("Problem: {}: {}{}", vm.pod, printable(one), cure(one)?)))
    });
    parts.push(of_node.chain(of_vms).map(|line| paragraph(&line, style)).collect());
    parts.retain(|part| !part.is_empty());
    if style.legend {
        parts.push(paragraph(&summary(quietness), style) + &paragraph(&hidden(quietness, style), style));
    }
    parts.join("\n")
}

/// What was done on the node, and whether anything is left.
fn summary(quietness: &Quietness) -> String {
    if let Some(problem) = &quietness.problem {
        return format!("What is left is not known: {}.\n", printable(problem));
    }
    let is_off = quietness.steering == "off";
    if !is_off && quietness.interrupts == 0 && quietness.left().is_empty() && !quietness.vms.is_empty() {
        return "steliad-quiet has not reported yet which device interrupts it moved.\n".to_owned();
    }
    let done = match quietness.steering.as_str() {
        "off" => "irq-steering is off: no interrupt is moved".to_owned(),
        _ => format!(
            "{} of {} moved; {}",
            quietness.moved,
            counted(quietness.interrupts.into(), "device interrupt"),
            words::irqbalance(quietness.irqbalance)
        ),
    };
    let threads = match quietness.threads_moved {
        0 => String::new(),
        count => format!("; {} moved", counted(count, "kernel thread")),
    };
    let left = match quietness.left() {
        left if !left.is_empty() => format!("Left: {left}."),
        _ if is_off => String::new(),
        _ if quietness.is_uncounted() => {
            "steliad-quiet left nothing; whether device interrupts fire is not known: they could not be counted."
                .to_owned()
        }
        _ => "Nothing is left.".to_owned(),
    };
    format!("{done}{threads}. {left}").trim().to_owned() + "\n"
}

/// What is not shown because it disturbs no VM.
fn hidden(quietness: &Quietness, style: TextStyle) -> String {
    let (irqs, tids) = quietness.numbers(false);
    let kinds = [
        (
            irqs.len(),
            "interrupt that does not fire there",
            "interrupts that do not fire there",
        ),
        (tids.len(), "rescuer thread", "rescuer threads"),
    ];
    let kinds = kinds.into_iter().filter(|(count, ..)| *count > 0 && !style.wide);
    let kinds: Vec<String> = kinds
        .map(|(count, one, several)| format!("{count} {}", if count == 1 { one } else { several }))
        .collect();
    if kinds.is_empty() {
        String::new()
    } else {
        format!(
            "Not shown, because harmless: {} (-o wide shows them).\n",
            kinds.join(", ")
        )
    }
}
