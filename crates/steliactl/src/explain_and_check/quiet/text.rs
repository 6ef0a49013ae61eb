//! The answer as tables, and the sentence that sums it up: below them, and on a terminal above them, where a table that is longer than the
//! screen does not hide it. A terminal also has each reason and its remedy once, below the table of what remains.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::quiet::RemainingCause;
use stelia_cpus::CpuSet;

use super::{Interrupt, Kthread, Quietness, Vm, words};
use crate::shared::daemon::{Pod, whose};
use crate::shared::output::{Column, Meaning, TextStyle, column, counted, paragraph, printable, table};

/// More VMs with nothing but zeros than this have no rows.
const MAX_ZERO_ROWS: usize = 3;

pub(crate) const COLUMNS: [Column<Vm>; 8] = [
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

/// An interrupt or a thread, and the VMs whose CPUs it reaches.
pub(crate) struct RemainingRow<'a, T> {
    pods: Vec<&'a Pod>,
    cpus: CpuSet,
    one: &'a T,
    /// On a terminal the number of a footnote.
    why: String,
}

pub(crate) const fn interrupts<'a>() -> [Column<RemainingRow<'a, Interrupt>>; 7] {
    [
        column("IRQ", |row: &RemainingRow<'_, Interrupt>| row.one.irq.to_string()).right(),
        column("NAME", |row: &RemainingRow<'_, Interrupt>| row.one.name.clone()).yields(3),
        column("POD", |row: &RemainingRow<'_, Interrupt>| whose(&row.pods))
            .yields(4)
            .shortens(),
        column("CPUS", |row: &RemainingRow<'_, Interrupt>| row.cpus.to_string()).yields(1),
        column("SEEN", |row: &RemainingRow<'_, Interrupt>| row.one.count.to_string()).right(),
        column("WHY", |row: &RemainingRow<'_, Interrupt>| row.why.clone()).wraps(),
        column("WHAT TO DO", |row: &RemainingRow<'_, Interrupt>| {
            row.one.cure.to_owned()
        })
        .wraps(),
    ]
}

pub(crate) const fn threads<'a>() -> [Column<RemainingRow<'a, Kthread>>; 5] {
    [
        column("TID", |row: &RemainingRow<'_, Kthread>| row.one.tid.to_string()).right(),
        column("THREAD", |row: &RemainingRow<'_, Kthread>| row.one.name.clone()).yields(2),
        column("POD", |row: &RemainingRow<'_, Kthread>| whose(&row.pods))
            .yields(3)
            .shortens(),
        column("CPUS", |row: &RemainingRow<'_, Kthread>| row.cpus.to_string()).yields(1),
        column("WHY", |row: &RemainingRow<'_, Kthread>| row.why.clone()).wraps(),
    ]
}

fn why_interrupt(one: &Interrupt) -> String {
    match one.reason {
        // What the kernel says of a mask that it does not take is the same of each.
        RemainingCause::Managed => words::why(RemainingCause::Managed).to_owned(),
        _ => one.why.clone(),
    }
}

fn why_thread(one: &Kthread) -> String {
    words::thread_why(&one.why)
}

/// The lines below the tables of what remains: why, and what to do, each once.
#[derive(Default)]
struct Footnotes(Vec<(String, &'static str)>);

impl Footnotes {
    /// What a row has for a reason, which is added if no row had it yet.
    fn number(&mut self, why: String, cure: &'static str) -> String {
        let note = (why, cure);
        let at = self.0.iter().position(|known| *known == note).unwrap_or_else(|| {
            self.0.push(note);
            self.0.len() - 1
        });
        format!("[{}]", at + 1)
    }

    fn text(&self, style: TextStyle) -> String {
        let notes = (1..).zip(&self.0);
        let notes = notes.map(|(number, (why, cure))| format!("[{number}] {why}. What to do: {cure}."));
        notes.map(|note| paragraph(&printable(&note), style)).collect()
    }
}

/// Whether the layout is that for a terminal: a program gets every row whole.
const fn is_for_a_screen(style: TextStyle) -> bool {
    style.width.is_some() && style.legend && !style.wide
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
            let (pods, cpus, why) = (Vec::new(), CpuSet::new(), String::new());
            (left, RemainingRow { pods, cpus, one, why })
        });
        if left && !*shown_left {
            (*shown_left, row.one) = (true, one);
        }
        row.pods.push(&vm.pod);
        row.cpus = row.cpus.union(cpus);
    }
    rows.into_values().map(|(_, row)| row).collect()
}

/// Whether nothing was counted on its CPUs and nothing is left there, as far as that is known.
fn is_zero(vm: &Vm) -> bool {
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

/// Whether the reason why nothing is known is all that there is to say of these VMs.
fn is_unknown(quietness: &Quietness, style: TextStyle) -> bool {
    let vms = &quietness.vms;
    quietness.problem.is_some()
        && quietness.problems.is_empty()
        && style.legend
        && !style.wide
        && vms.len() > MAX_ZERO_ROWS
        && vms.iter().all(is_zero)
}

/// How often the interrupts that are left were seen.
fn seen(vm: &Vm) -> u64 {
    let left = vm.interrupts_remaining.iter().filter(|one| one.left);
    left.fold(0, |sum: u64, one| sum.saturating_add(one.count))
}

/// A row for each VM, those that are disturbed most first; many with nothing but zeros are one line. On a terminal its problems are lines
/// below the table.
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
    let quiet: Vec<&Vm> = vms.iter().filter(|vm| is_zero(vm)).collect();
    if quiet.len() <= MAX_ZERO_ROWS || style.wide || !style.legend {
        return vm_table(shown, style);
    }
    shown.retain(|vm| !is_zero(vm));
    match shown.is_empty() {
        true => paragraph(&zeros(&quiet, ""), style),
        false => vm_table(shown, style) + "\n" + &paragraph(&zeros(&quiet, " more"), style),
    }
}

fn vm_table(vms: Vec<&Vm>, style: TextStyle) -> String {
    let [columns @ .., _] = &COLUMNS;
    match is_for_a_screen(style) {
        true => table(columns, vms, style),
        false => table(&COLUMNS, vms, style),
    }
}

/// The problems on a terminal: those of the node, and those of VMs, whose rows do not have them.
fn problems(quietness: &Quietness, style: TextStyle) -> String {
    let of_node = quietness.problems.iter();
    let of_node = of_node.map(|one| format!("Problem: {}", printable(one)));
    let of_vms = quietness.vms.iter().filter(|_| is_for_a_screen(style));
    let of_vms = of_vms.flat_map(|vm| {
        let problems = vm.problems.iter();
        problems.map(|one| format!("Problem: {}: {}", printable(&vm.pod.to_string()), printable(one)))
    });
    of_node.chain(of_vms).map(|line| paragraph(&line, style)).collect()
}

pub(super) fn text(quietness: &Quietness, style: TextStyle) -> String {
    let vms = &quietness.vms;
    if is_unknown(quietness, style) {
        let is_counted = vms.iter().all(|vm| vm.device_interrupts_per_second.is_some());
        let counted = if is_counted {
            ", and no device interrupt fired there within a second"
        } else {
            ""
        };
        let rows = if is_counted { " (-o wide has their rows)" } else { "" };
        // On a terminal the reason is in the message on standard error, which is the next line.
        let problem = match (&quietness.problem, style.width) {
            (Some(problem), None) => format!(": {}", printable(problem)),
            _ => String::new(),
        };
        let vms = vms.len();
        let text = format!("What is left on the CPUs of {vms} VMs is not known{problem}{counted}{rows}.");
        return paragraph(&text, style);
    }
    let on_screen = is_for_a_screen(style);
    let sum = || paragraph(&summary(quietness, on_screen), style) + &paragraph(&hidden(quietness, style), style);
    let mut parts = Vec::new();
    if on_screen {
        parts.push(sum());
    }
    parts.push(by_vm(vms, style));
    let mut notes = Footnotes::default();
    let mut irqs = rows(
        vms,
        style.wide,
        |vm| vm.interrupts_remaining.as_slice(),
        |one| (one.irq, &one.cpus, one.left),
    );
    irqs.sort_by_key(|row| Reverse(row.one.count));
    for row in &mut irqs {
        row.why = match on_screen {
            true => notes.number(why_interrupt(row.one), row.one.cure),
            false => why_interrupt(row.one),
        };
    }
    if !irqs.is_empty() {
        let columns = interrupts();
        let [without_cure @ .., _] = &columns;
        let shown: &[Column<RemainingRow<'_, Interrupt>>] = if on_screen { without_cure } else { &columns };
        parts.push(table(shown, &irqs, style));
    }
    let mut kthreads = rows(
        vms,
        style.wide,
        |vm| vm.threads_remaining.as_slice(),
        |one| (one.tid, &one.cpus, one.left),
    );
    for row in &mut kthreads {
        row.why = match on_screen {
            true => notes.number(why_thread(row.one), words::thread_cure(row.one.left)),
            false => why_thread(row.one),
        };
    }
    if !kthreads.is_empty() {
        parts.push(table(&threads(), &kthreads, style));
    }
    parts.extend([notes.text(style), problems(quietness, style)]);
    parts.retain(|part| !part.is_empty());
    if style.legend && !on_screen {
        parts.push(sum());
    }
    parts.join("\n")
}

/// What was done on the node, and whether anything is left, which comes first where the sentence is above the tables.
fn summary(quietness: &Quietness, left_first: bool) -> String {
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
    let text = match left_first {
        true => format!("{left} {done}{threads}."),
        false => format!("{done}{threads}. {left}"),
    };
    text.trim().to_owned() + "\n"
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
    match kinds.is_empty() {
        true => String::new(),
        false => format!(
            "Not shown, because harmless: {} (-o wide shows them).\n",
            kinds.join(", ")
        ),
    }
}
