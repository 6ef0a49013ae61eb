//! Which interrupts still reach CPUs of VMs, and why.

use stelia_api::quiet::{Remaining, RemainingCause};
use stelia_cpus::CpuSet;

use super::Task;
use super::read;
use super::round_history::{InterruptHistory, REPORT_ROUNDS};
use super::write::WriteOutcome;
use crate::files::Files;

/// Why an interrupt still reaches CPUs of VMs. `None`: it reaches none, or it did not fire there and is being moved.
pub(super) fn remaining(
    task: &Task<'_>,
    outcome: &WriteOutcome,
    mask: &CpuSet,
    history: &InterruptHistory,
    files: &dyn Files,
) -> Option<Remaining> {
    let fired: CpuSet = history.fired.keys().copied().collect();
    let count = history.fired.values().sum();
    let disturbed = mask.intersection(&task.disturbed);
    let (cause, cpus, text) = match outcome {
        WriteOutcome::Managed(text) => {
            let cpus = fired.union(&effective_on_vms(task, files));
            (RemainingCause::Managed, cpus, managed_text(text, count))
        }
        WriteOutcome::NoVector(text) => (RemainingCause::NoVector, disturbed, text.clone()),
        WriteOutcome::Failed(text) => (RemainingCause::Refused, disturbed, text.clone()),
        _ if history.repairs >= REPORT_ROUNDS => {
            let text = format!(
                "its mask was {} again, after {} repairs",
                task.interrupt.mask, history.repairs
            );
            (
                RemainingCause::Overwritten,
                task.interrupt.mask.intersection(&task.disturbed),
                text,
            )
        }
        _ if history.report_rounds > 0 => {
            let text = format!("its mask is {mask}, and it fired {count} times on CPUs {fired}");
            (RemainingCause::StillFires, fired, text)
        }
        _ => return None,
    };
    if cpus.is_empty() {
        return None;
    }
    let identity = &task.interrupt.identity;
    Some(Remaining {
        irq: identity.irq,
        name: identity.actions.clone(),
        cpus,
        why: cause,
        text,
        count,
    })
}

/// Where an interrupt that cannot be moved fires, if that is on CPUs of VMs alone; else no CPUs.
fn effective_on_vms(task: &Task<'_>, files: &dyn Files) -> CpuSet {
    let effective = read::effective(files, task.irq());
    let effective = effective.unwrap_or_else(|| task.interrupt.mask.clone());
    if effective.is_subset(&task.disturbed) {
        effective
    } else {
        CpuSet::new()
    }
}

/// Adds to the kernel's error why such an interrupt, if it did not fire, does not matter much.
fn managed_text(text: &str, count: u64) -> String {
    if count > 0 {
        return text.into();
    }
    format!("{text}; it has not fired there: the queue of a CPU does only for I/O submitted on that CPU")
}
