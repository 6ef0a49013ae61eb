//! Device interrupts are kept off the CPUs of VMs: one round reads everything, decides (`plan`), keeps what undoing
//! takes (`base`) and only then writes what differs.
//!
//! Nothing is taken on trust. A mask may change behind our back (irqbalance, CPUs that go offline and return, drivers
//! loaded again), so every round compares all of them; and a mask that is as wanted is believed only when the counts
//! in `/proc/interrupts` stop rising.

mod memory;
mod remaining_cause;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::quiet::{Problem, Report};
use stelia_cpus::CpuSet;
use stelia_node::counters::interrupts::{PATH, Table};
use stelia_text::excerpt::cause;

use crate::base::{Record, SavedMask};
use crate::files::{Files, System};
use crate::interrupts::{self, Identity, Interrupt};
use crate::order::Order;
use crate::plan::{self, Cpus, Decision, Device};
pub use memory::Memory;
use write::{Outcome, Writer};

/// An interrupt in this round.
struct Task<'a> {
    interrupt: Interrupt,
    /// The VM that has it for its own, by its pod.
    owner: Option<(&'a str, &'a CpuSet)>,
    decision: Decision,
    /// CPUs of VMs on which it disturbs.
    disturbed: CpuSet,
    /// It has no driver: its mask is kept in mind and left alone.
    asleep: bool,
    /// The record has it.
    is_known: bool,
}

impl Task<'_> {
    fn irq(&self) -> u32 {
        self.interrupt.identity.irq
    }

    fn device(&self) -> Device<'_> {
        Device {
            local: &self.interrupt.local,
            own: self.owner.map(|(_, cpus)| cpus),
        }
    }
}

/// Carry out what the order says of device interrupts. What cannot be done is in the report; nothing fails.
///
/// Without [`Order::steer`], and without VMs, everything is undone: each mask that still is ours becomes the base
/// again.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut Memory, report: &mut Report) {
    if let Err(text) = round(system, order, memory, report) {
        report_problem(report, "", text);
    }
}

fn report_problem(report: &mut Report, pod: &str, text: String) {
    report.problems.push(Problem { pod: pod.into(), text });
}

/// # Errors
/// What is needed to decide cannot be read, or the base record cannot be kept: nothing was written.
fn round(system: System<'_>, order: &Order, memory: &mut Memory, report: &mut Report) -> Result<(), String> {
    let files = system.files;
    let steering = order.steer && !order.vms.is_empty();
    let before = Record::load(system.store)?;
    if !steering {
        *memory = Memory::default();
        if before.is_empty() {
            return Ok(());
        }
    }
    let cpus = Cpus::of(order, interrupts::online(files)?);
    let table = counted(files).unwrap_or_else(|text| {
        report_problem(report, "", text);
        Table::default()
    });
    let found = interrupts::read(files, &table)?;
    for text in found.problems {
        report_problem(report, "", text);
    }
    report.interrupts = count(found.interrupts.iter().filter(|one| !one.identity.actions.is_empty()));

    let default_found = interrupts::default_mask(files)?;
    let default = cpus.decide_default(before.default.as_ref(), &default_found);
    memory.begin(&found.interrupts);
    let tasks = tasks(&before, found.interrupts, order, &cpus, memory, steering);
    let record = record(&before, &default, &tasks, &found.unread);
    if record != before {
        record.save(system.store)?;
    }

    let mut writer = Writer {
        system,
        cpus: &cpus,
        record,
        report,
        steering,
        left: BTreeSet::new(),
    };
    if steering {
        writer.default(&default_found, &default.wanted);
        for task in &tasks {
            let outcome = writer.place(task, memory);
            report_on(task, &outcome, &table, memory, &mut writer);
        }
        memory.end(&cpus.exclusive, &table);
    } else {
        let order: BTreeMap<u32, usize> = before.interrupts.iter().map(|(id, _)| id.irq).zip(0..).collect();
        let mut tasks: Vec<&Task<'_>> = tasks.iter().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(order.get(&task.irq())));
        for task in tasks {
            let outcome = writer.place(task, memory);
            writer.undone(task, &outcome);
        }
        writer.default(&default_found, &default.wanted);
        writer.forget(&found.unread)?;
    }
    Ok(())
}

fn count<T>(all: impl Iterator<Item = T>) -> u32 {
    u32::try_from(all.count()).unwrap_or(u32::MAX)
}

/// Once more where a CPU came or went during the first reading.
fn counted(files: &dyn Files) -> Result<Table, String> {
    let read = || {
        let text = files
            .read(PATH)
            .map_err(|error| format!("read {PATH}: {}", cause(&error)))?;
        Table::parse(text.as_bytes()).map_err(|error| format!("{PATH}: {error}"))
    };
    read().or_else(|_| read())
}

/// What to do with each interrupt. An interrupt without a driver is only handled if the record has it: such a line keeps its mask
/// until it has a driver again, and is given back its base when everything is undone.
fn tasks<'a>(
    before: &Record,
    found: Vec<Interrupt>,
    order: &'a Order,
    cpus: &Cpus,
    memory: &Memory,
    steering: bool,
) -> Vec<Task<'a>> {
    let recorded: BTreeMap<u32, (&Identity, &SavedMask)> = before
        .interrupts
        .iter()
        .map(|(identity, kept)| (identity.irq, (identity, kept)))
        .collect();
    let task = |interrupt: Interrupt| {
        let asleep = interrupt.identity.actions.is_empty();
        let known = recorded.get(&interrupt.identity.irq);
        let known = known.filter(|(identity, _)| identity.lives_on_as(&interrupt.identity));
        let kept = known.map(|(_, kept)| *kept);
        if asleep && kept.is_none_or(|kept| kept.ours.is_empty()) {
            return None;
        }
        let owner = plan::owner(order, interrupt.identity.vfio_device()).map(|(pod, vm)| (pod, &vm.cpus));
        let device = Device {
            local: &interrupt.local,
            own: owner.map(|(_, cpus)| cpus),
        };
        let decision = if asleep && steering {
            Decision {
                kept: kept?.clone(),
                wanted: interrupt.mask.clone(),
            }
        } else if memory.cannot_move(&interrupt.identity) {
            let kept = SavedMask {
                base: interrupt.mask.clone(),
                ours: Vec::new(),
            };
            Decision {
                wanted: cpus.wanted(&interrupt.mask, device),
                kept,
            }
        } else {
            cpus.decide(kept, &interrupt.mask, device, before.default.as_ref())
        };
        let disturbed = cpus.disturbed(device);
        Some(Task {
            is_known: kept.is_some(),
            interrupt,
            owner,
            decision,
            disturbed,
            asleep,
        })
    };
    found.into_iter().filter_map(task).collect()
}

/// What the record has to be before anything is written. Those known keep their places, with the drivers that they have now, also where they
/// could not be read now; what went away, or has a number that means something else now, is gone.
fn record(before: &Record, default: &Decision, tasks: &[Task<'_>], unread: &BTreeSet<u32>) -> Record {
    let mut present: BTreeMap<u32, &Task<'_>> = tasks.iter().map(|task| (task.irq(), task)).collect();
    let known = before.interrupts.iter().filter_map(|(identity, earlier)| {
        let Some(task) = present.get(&identity.irq).copied() else {
            return unread
                .contains(&identity.irq)
                .then(|| (identity.clone(), earlier.clone()));
        };
        if !task.is_known {
            return None;
        }
        present.remove(&identity.irq);
        let now = &task.decision.kept;
        // A mask that was never changed is only remembered as known: others may move it all day, and nothing is saved
        // for it.
        let same = earlier.ours.is_empty() && now.ours.is_empty();
        Some((
            task.interrupt.identity.clone(),
            if same { earlier } else { now }.clone(),
        ))
    });
    let mut interrupts: Vec<(Identity, SavedMask)> = known.collect();
    let new = present.into_values();
    interrupts.extend(new.map(|task| (task.interrupt.identity.clone(), task.decision.kept.clone())));
    let default = Some(default.kept.clone()).filter(|kept| !kept.ours.is_empty());
    Record { default, interrupts }
}

/// What became of an interrupt, for those who read the report.
fn report_on(task: &Task<'_>, outcome: &Outcome, table: &Table, memory: &mut Memory, writer: &mut Writer<'_>) {
    if task.asleep {
        return;
    }
    let line = table.lines.get(&task.irq());
    let files = writer.system.files;
    let mask = match outcome {
        Outcome::Gone => return,
        Outcome::Set(mask) | Outcome::StandIn(mask) => mask,
        _ => &task.interrupt.mask,
    };
    let known = memory.note(task, outcome, mask, line, files);
    let steered = !task.decision.kept.ours.is_empty() && *mask != task.decision.kept.base;
    let right = mask.is_disjoint(&task.disturbed) && !matches!(outcome, Outcome::NoVector(_) | Outcome::Failed(_));
    writer.report.moved += u32::from(steered && right);
    let remaining = remaining_cause::of(task, outcome, mask, known, files);
    let pod = task.owner.map_or("", |(pod, _)| pod);
    match outcome {
        Outcome::Failed(text) => report_problem(writer.report, pod, text.clone()),
        Outcome::NoVector(text) if remaining.is_none() => report_problem(writer.report, pod, text.clone()),
        _ => {}
    }
    writer.report.remaining.extend(remaining);
}
