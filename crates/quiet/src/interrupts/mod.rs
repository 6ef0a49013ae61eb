//! Keeps device interrupts off the CPUs of VMs: one round reads everything, decides (`wanted_mask`), saves what is needed to undo
//! the changes (`saved_masks`), and only then writes the masks that differ.
//!
//! A mask may change at any time (irqbalance, CPUs that go offline and return, drivers that are loaded again), so every
//! round compares all masks. An interrupt whose mask is as wanted still counts as disturbing until its counts in
//! `/proc/interrupts` stop rising.

pub(crate) mod read;
mod remaining_cause;
mod round_history;
mod saved_masks;
#[cfg(test)]
mod tests;
mod wanted_mask;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::cause;
use stelia_kernel::counters::interrupts::{PATH, Table};

use crate::failure::problem;
use crate::files::{Files, System};
use crate::order::Order;
use read::{Identity, Interrupt};
pub use round_history::RoundHistory;
use saved_masks::{Record, SavedMask};
use wanted_mask::{Cpus, Decision, InterruptDevice};
use write::{WriteOutcome, Writer};

/// An interrupt in this round.
struct Task<'a> {
    interrupt: Interrupt,
    /// The pod and the CPUs of the VM to whose own device it belongs.
    owner: Option<(&'a str, &'a CpuSet)>,
    decision: Decision,
    /// The CPUs of VMs that it must leave.
    disturbed: CpuSet,
    /// Its mask is not changed while it has no driver.
    has_no_driver: bool,
    is_recorded: bool,
}

impl Task<'_> {
    fn irq(&self) -> u32 {
        self.interrupt.identity.irq
    }

    fn device(&self) -> InterruptDevice<'_> {
        InterruptDevice {
            local: &self.interrupt.local,
            own: self.owner.map(|(_, cpus)| cpus),
        }
    }
}

/// Carry out what the order says of device interrupts. Failures are in the report.
///
/// Without [`Order::steer`], or without VMs, everything is undone: each mask that is still the one written here is
/// replaced by the base.
pub fn carry_out(system: System<'_>, order: &Order, memory: &mut RoundHistory, report: &mut Report) {
    if let Err(text) = round(system, order, memory, report) {
        problem(report, "", text);
    }
}

/// # Errors
/// The masks or the online CPUs cannot be read, or the base record cannot be saved. Then nothing was written.
fn round(system: System<'_>, order: &Order, memory: &mut RoundHistory, report: &mut Report) -> Result<(), String> {
    let files = system.files;
    let steering = order.steer && !order.vms.is_empty();
    let before = Record::load(system.store)?;
    if !steering {
        *memory = RoundHistory::default();
        if before.is_empty() {
            return Ok(());
        }
    }
    let cpus = Cpus::new(order, read::online(files)?);
    let table = read_counts(files).unwrap_or_else(|text| {
        problem(report, "", text);
        Table::default()
    });
    let scan = read::read(files, &table)?;
    for text in scan.problems {
        problem(report, "", text);
    }
    let handled = scan.interrupts.iter().filter(|one| !one.identity.actions.is_empty());
    report.interrupts = u32::try_from(handled.count()).unwrap_or(u32::MAX);

    let default_mask = read::default_mask(files)?;
    let default = cpus.decide_default(before.default.as_ref(), &default_mask);
    memory.begin(&scan.interrupts);
    let tasks = tasks(&before, scan.interrupts, order, &cpus, memory, steering);
    let record = record(&before, &default, &tasks, &scan.unread);
    if record != before {
        record.save(system.store)?;
    }

    let mut writer = Writer {
        system,
        cpus: &cpus,
        record,
        report,
        steering,
        not_restored: BTreeSet::new(),
    };
    if steering {
        writer.set_default(&default_mask, &default.wanted);
        for task in &tasks {
            let outcome = writer.set_mask(task, memory);
            report_on(task, &outcome, &table, memory, &mut writer);
        }
        memory.end(&cpus.exclusive, &table);
    } else {
        let places: BTreeMap<u32, usize> = before.interrupts.iter().map(|(id, _)| id.irq).zip(0..).collect();
        let mut tasks: Vec<&Task<'_>> = tasks.iter().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(places.get(&task.irq())));
        for task in tasks {
            let outcome = writer.set_mask(task, memory);
            writer.note_restored(task, &outcome);
        }
        writer.set_default(&default_mask, &default.wanted);
        writer.save_rest(&scan.unread)?;
    }
    Ok(())
}

/// Read `/proc/interrupts`, twice if necessary: a CPU that goes on- or offline during a reading makes its text invalid.
fn read_counts(files: &dyn Files) -> Result<Table, String> {
    let read = || {
        let text = files
            .read(PATH)
            .map_err(|error| format!("read {PATH}: {}", cause(&error)))?;
        Table::parse(text.as_bytes()).map_err(|error| format!("{PATH}: {error}"))
    };
    read().or_else(|_| read())
}

/// What to do with each interrupt. An interrupt without a driver is included only if the record has a changed mask for it: it
/// keeps that mask until it has a driver again, and gets its base back when everything is undone.
fn tasks<'a>(
    before: &Record,
    interrupts: Vec<Interrupt>,
    order: &'a Order,
    cpus: &Cpus,
    memory: &RoundHistory,
    steering: bool,
) -> Vec<Task<'a>> {
    let recorded: BTreeMap<u32, (&Identity, &SavedMask)> = before
        .interrupts
        .iter()
        .map(|(identity, saved)| (identity.irq, (identity, saved)))
        .collect();
    let task = |interrupt: Interrupt| {
        let has_no_driver = interrupt.identity.actions.is_empty();
        let entry = recorded.get(&interrupt.identity.irq);
        let entry = entry.filter(|(identity, _)| identity.lives_on_as(&interrupt.identity));
        let saved = entry.map(|(_, saved)| *saved);
        if has_no_driver && saved.is_none_or(|saved| saved.ours.is_empty()) {
            return None;
        }
        let owner = wanted_mask::owner(order, interrupt.identity.vfio_device()).map(|(pod, vm)| (pod, &vm.cpus));
        let device = InterruptDevice {
            local: &interrupt.local,
            own: owner.map(|(_, cpus)| cpus),
        };
        let decision = if has_no_driver && steering {
            Decision {
                saved: saved?.clone(),
                wanted: interrupt.mask.clone(),
            }
        } else if memory.refusal(&interrupt.identity).is_some() {
            Decision {
                wanted: cpus.wanted(&interrupt.mask, device),
                saved: SavedMask {
                    base: interrupt.mask.clone(),
                    ours: Vec::new(),
                },
            }
        } else {
            cpus.decide(saved, &interrupt.mask, device, before.default.as_ref())
        };
        let disturbed = cpus.disturbed(device);
        Some(Task {
            is_recorded: saved.is_some(),
            interrupt,
            owner,
            decision,
            disturbed,
            has_no_driver,
        })
    };
    interrupts.into_iter().filter_map(task).collect()
}

/// The record as it has to be saved before anything is written. Interrupts of the former record keep their places, with the
/// drivers that they have now, even if they could not be read now. Interrupts that went away, or whose number means another
/// one now, are left out.
fn record(before: &Record, default: &Decision, tasks: &[Task<'_>], unread: &BTreeSet<u32>) -> Record {
    let mut by_irq: BTreeMap<u32, &Task<'_>> = tasks.iter().map(|task| (task.irq(), task)).collect();
    let recorded = before.interrupts.iter().filter_map(|(identity, earlier)| {
        let Some(task) = by_irq.get(&identity.irq).copied() else {
            return unread
                .contains(&identity.irq)
                .then(|| (identity.clone(), earlier.clone()));
        };
        if !task.is_recorded {
            return None;
        }
        by_irq.remove(&identity.irq);
        let now = &task.decision.saved;
        // The entry of a mask that was never changed only tells that the interrupt is not new. Other programs may move it all
        // day, and the record is not saved again for that.
        let never_changed = earlier.ours.is_empty() && now.ours.is_empty();
        let saved = if never_changed { earlier } else { now };
        Some((task.interrupt.identity.clone(), saved.clone()))
    });
    let mut interrupts: Vec<(Identity, SavedMask)> = recorded.collect();
    let new = by_irq.into_values();
    interrupts.extend(new.map(|task| (task.interrupt.identity.clone(), task.decision.saved.clone())));
    let default = Some(default.saved.clone()).filter(|saved| !saved.ours.is_empty());
    Record { default, interrupts }
}

/// Add the interrupt's outcome to the report.
fn report_on(
    task: &Task<'_>,
    outcome: &WriteOutcome,
    table: &Table,
    memory: &mut RoundHistory,
    writer: &mut Writer<'_>,
) {
    if task.has_no_driver {
        return;
    }
    let line = table.lines.get(&task.irq());
    let files = writer.system.files;
    let mask = match outcome {
        WriteOutcome::Gone => return,
        WriteOutcome::Set(mask) | WriteOutcome::Alternative(mask) => mask,
        _ => &task.interrupt.mask,
    };
    let history = memory.update(task, outcome, mask, line, files);
    let saved = &task.decision.saved;
    let is_moved = !saved.ours.is_empty() && *mask != saved.base;
    let failed = matches!(outcome, WriteOutcome::NoVector(_) | WriteOutcome::Failed(_));
    writer.report.moved += u32::from(is_moved && !failed && mask.is_disjoint(&task.disturbed));
    let remaining = remaining_cause::remaining(task, outcome, mask, history, files);
    let pod = task.owner.map_or("", |(pod, _)| pod);
    match outcome {
        WriteOutcome::Failed(text) => problem(writer.report, pod, text.clone()),
        WriteOutcome::NoVector(text) if remaining.is_none() => problem(writer.report, pod, text.clone()),
        _ => {}
    }
    writer.report.remaining.extend(remaining);
}
