//! The answer as tables, and the sentence below them.

use super::{Interrupt, Kthread, Quietness, Vm, words};
use crate::shared::daemon::Pod;
use crate::shared::output::{Column, Meaning, TextStyle, column, counted, printable, table};

pub(crate) const COLUMNS: [Column<Vm>; 7] = [
    column("POD", |vm: &Vm| vm.pod.to_string()).yields(2),
    column("POD UID", |vm: &Vm| vm.pod.pod_uid.clone()).wide(),
    column("CPUS", |vm: &Vm| vm.exclusive_cpus.to_string()).yields(1),
    column("IRQ/S", |vm: &Vm| {
        vm.device_interrupts_per_second
            .map(|number| number.to_string())
            .unwrap_or_default()
    })
    .right()
    .means(|vm| match vm.device_interrupts_per_second {
        Some(0) => Meaning::Good,
        _ => Meaning::Attention,
    }),
    column("INTERRUPTS LEFT", |vm: &Vm| vm.interrupts_remaining.len().to_string())
        .right()
        .means(|vm| of_count(vm.interrupts_remaining.len())),
    column("THREADS LEFT", |vm: &Vm| vm.threads_remaining.len().to_string())
        .right()
        .means(|vm| of_count(vm.threads_remaining.len())),
    column("PROBLEMS", |vm: &Vm| vm.problems.join("; "))
        .yields(3)
        .means(|_| Meaning::Broken),
];

fn of_count(count: usize) -> Meaning {
    match count {
        0 => Meaning::Good,
        _ => Meaning::Attention,
    }
}

/// An interrupt or a thread, and the VM whose CPUs it reaches.
pub(crate) struct RemainingRow<'a, T> {
    pod: &'a Pod,
    one: &'a T,
}

pub(crate) const fn interrupts<'a>() -> [Column<RemainingRow<'a, Interrupt>>; 7] {
    [
        column("IRQ", |left: &RemainingRow<'_, Interrupt>| left.one.irq.to_string()).right(),
        column("NAME", |left: &RemainingRow<'_, Interrupt>| left.one.name.clone()).yields(3),
        column("POD", |left: &RemainingRow<'_, Interrupt>| left.pod.to_string()).yields(4),
        column("CPUS", |left: &RemainingRow<'_, Interrupt>| left.one.cpus.to_string()).yields(1),
        column("SEEN", |left: &RemainingRow<'_, Interrupt>| left.one.count.to_string()).right(),
        column("WHY", |left: &RemainingRow<'_, Interrupt>| left.one.why.clone()).yields(2),
        column("WHAT TO DO", |left: &RemainingRow<'_, Interrupt>| {
            left.one.cure.to_owned()
        })
        .yields(5),
    ]
}

pub(crate) const fn threads<'a>() -> [Column<RemainingRow<'a, Kthread>>; 5] {
    [
        column("TID", |left: &RemainingRow<'_, Kthread>| left.one.tid.to_string()).right(),
        column("THREAD", |left: &RemainingRow<'_, Kthread>| left.one.name.clone()).yields(2),
        column("POD", |left: &RemainingRow<'_, Kthread>| left.pod.to_string()).yields(3),
        column("CPUS", |left: &RemainingRow<'_, Kthread>| left.one.cpus.to_string()).yields(1),
        column("WHY", |left: &RemainingRow<'_, Kthread>| left.one.why.clone()).yields(4),
    ]
}

pub(super) fn text(quietness: &Quietness, style: TextStyle) -> String {
    let vms = &quietness.vms;
    let mut parts = match vms.is_empty() {
        true => vec!["No VM has CPUs of its own.\n".to_owned()],
        false => vec![table(&COLUMNS, vms, style)],
    };
    let each = |vm| rows(vm, |vm| &vm.interrupts_remaining);
    let interrupts_left: Vec<RemainingRow<'_, Interrupt>> = vms.iter().flat_map(each).collect();
    if !interrupts_left.is_empty() {
        parts.push(table(&interrupts(), &interrupts_left, style));
    }
    let each = |vm| rows(vm, |vm| &vm.threads_remaining);
    let threads_left: Vec<RemainingRow<'_, Kthread>> = vms.iter().flat_map(each).collect();
    if !threads_left.is_empty() {
        parts.push(table(&threads(), &threads_left, style));
    }
    if !quietness.problems.is_empty() {
        let problems = quietness.problems.iter();
        parts.push(problems.map(|one| format!("Problem: {}\n", printable(one))).collect());
    }
    if style.legend {
        parts.push(summary(quietness));
    }
    parts.join("\n")
}

fn rows<'a, T>(vm: &'a Vm, of: fn(&'a Vm) -> &'a Vec<T>) -> impl Iterator<Item = RemainingRow<'a, T>> {
    of(vm).iter().map(|one| RemainingRow { pod: &vm.pod, one })
}

/// What was done on the node, and whether anything is left.
fn summary(quietness: &Quietness) -> String {
    if let Some(problem) = &quietness.problem {
        return format!("What is left is not known: {}.\n", printable(problem));
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
        _ if quietness.steering == "off" => String::new(),
        _ => "Nothing is left.".to_owned(),
    };
    format!("{done}{threads}. {left}").trim_end().to_owned() + "\n"
}
