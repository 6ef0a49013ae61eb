//! The answer as tables, and the sentence that sums it up: below them, and on a terminal above them, where a table that is longer than the
//! screen does not hide it. A terminal also has each reason and its remedy once, below the table of what remains.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::quiet::RemainingCause;
use stelia_cpus::CpuSet;

use super::by_vm::{MAX_ZERO_ROWS, by_vm, is_zero};
use super::{Interrupt, Kthread, Quietness, Vm, words};
use crate::shared::daemon::{Pod, whose};
use crate::shared::output::{Column, TextStyle, column, counted, paragraph, printable, table};

/// The number of interrupts that have rows on a terminal; of one more, all have.
const MAX_INTERRUPT_ROWS: usize = 20;
/// Names of several VMs that are longer than this are left out on a terminal.
const MAX_NAMES_WIDTH: usize = 32;

/// An interrupt or a thread, and the VMs whose CPUs it reaches.
pub(crate) struct RemainingRow<'a, T> {
    pods: Vec<&'a Pod>,
    cpus: CpuSet,
    one: &'a T,
    /// On a terminal the number of a footnote.
    why: String,
    /// Whether the names of several VMs are left out where they are long: the CPUs tell which they are.
    is_short: bool,
}

impl<T> RemainingRow<'_, T> {
    fn whose(&self) -> String {
        let names = whose(&self.pods);
        match self.pods.len() {
            count if self.is_short && count > 1 && names.len() > MAX_NAMES_WIDTH => format!("{count} VMs"),
            _ => names,
        }
    }
}

pub(crate) const fn interrupts<'a>() -> [Column<RemainingRow<'a, Interrupt>>; 7] {
    [
        column("IRQ", |row: &RemainingRow<'_, Interrupt>| row.one.irq.to_string()).right(),
        column("NAME", |row: &RemainingRow<'_, Interrupt>| row.one.name.clone()).yields(3),
        column("POD", RemainingRow::whose).yields(4).shortens(),
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
        column("POD", RemainingRow::whose).yields(3).shortens(),
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
pub(super) const fn is_for_a_screen(style: TextStyle) -> bool {
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
            let row = RemainingRow {
                pods: Vec::new(),
                cpus: CpuSet::new(),
                one,
                why: String::new(),
                is_short: false,
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

/// The problems on a terminal: those of the node, and those of VMs, whose rows do not have them.
fn problems(quietness: &Quietness, style: TextStyle) -> String {
    let of_node = quietness.problems.iter();
    let cure = |one: &str| match words::problem_cure(one).filter(|_| is_for_a_screen(style)) {
        Some(cure) => format!(". What to do: {cure}."),
        None => String::new(),
    };
    let of_node = of_node.map(|one| format!("Problem: {}{}", printable(one), cure(one)));
    let of_vms = quietness.vms.iter().filter(|_| is_for_a_screen(style));
    let of_vms = of_vms.flat_map(|vm| {
        let problems = vm.problems.iter();
        problems.map(move |one| {
            let pod = printable(&vm.pod.to_string());
            format!("Problem: {pod}: {}{}", printable(one), cure(one))
        })
    });
    of_node.chain(of_vms).map(|line| paragraph(&line, style)).collect()
}

pub(super) fn text(quietness: &Quietness, style: TextStyle) -> String {
    let vms = &quietness.vms;
    if is_unknown(quietness, style) {
        let is_counted = vms.iter().all(|vm| vm.device_interrupts_per_second.is_some());
        let vms = vms.len();
        let text = match (&quietness.problem, is_counted) {
            // On a terminal the message on standard error, which is the next line, has the reason.
            (Some(_), false) if style.width.is_some() => return String::new(),
            (Some(_), true) if style.width.is_some() => {
                format!("No device interrupt fired on the CPUs of {vms} VMs within a second (-o wide has their rows).")
            }
            (problem, _) => {
                let problem = printable(problem.as_deref().unwrap_or_default());
                let counted = if is_counted {
                    ", and no device interrupt fired there within a second (-o wide has their rows)"
                } else {
                    ""
                };
                format!("What is left on the CPUs of {vms} VMs is not known: {problem}{counted}.")
            }
        };
        return paragraph(&text, style);
    }
    let on_screen = is_for_a_screen(style);
    let is_first = style.legend && style.width.is_some();
    let sum = || match (&quietness.problem, is_first) {
        // The message on standard error says it.
        (Some(_), true) => String::new(),
        _ => paragraph(&summary(quietness, is_first), style) + &paragraph(&hidden(quietness, style), style),
    };
    let mut parts = Vec::new();
    if is_first {
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
        row.is_short = on_screen;
        row.why = if on_screen {
            notes.number(why_interrupt(row.one), row.one.cure)
        } else {
            why_interrupt(row.one)
        };
    }
    if !irqs.is_empty() {
        let columns = interrupts();
        let [without_cure @ .., _] = &columns;
        let shown: &[Column<RemainingRow<'_, Interrupt>>] = if on_screen { without_cure } else { &columns };
        let rows = if irqs.len() > MAX_INTERRUPT_ROWS + 1 && on_screen {
            MAX_INTERRUPT_ROWS
        } else {
            irqs.len()
        };
        let more = match irqs.len() - rows {
            0 => String::new(),
            more => format!("\n{more} more device interrupts were seen less often (-o wide has them).\n"),
        };
        parts.push(table(shown, &irqs[..rows], style) + &paragraph(&more, style));
    }
    let mut kthreads = rows(
        vms,
        style.wide,
        |vm| vm.threads_remaining.as_slice(),
        |one| (one.tid, &one.cpus, one.left),
    );
    for row in &mut kthreads {
        row.is_short = on_screen;
        row.why = if on_screen {
            notes.number(why_thread(row.one), words::thread_cure(row.one.left))
        } else {
            why_thread(row.one)
        };
    }
    if !kthreads.is_empty() {
        parts.push(table(&threads(), &kthreads, style));
    }
    parts.extend([notes.text(style), problems(quietness, style)]);
    parts.retain(|part| !part.is_empty());
    if style.legend && !is_first {
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
    let text = if left_first {
        format!("{left} {done}{threads}.")
    } else {
        format!("{done}{threads}. {left}")
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
    if kinds.is_empty() {
        String::new()
    } else {
        format!(
            "Not shown, because harmless: {} (-o wide shows them).\n",
            kinds.join(", ")
        )
    }
}
