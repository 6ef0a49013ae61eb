//! Which interrupts still reach CPUs of VMs, and why.

use stelia_api::quiet::{Remaining, RemainingCause};
use stelia_cpus::CpuSet;

use super::Task;
use super::memory::{InterruptHistory, ROUNDS};
use super::write::Outcome;
use crate::files::Files;
use crate::interrupts;

/// Why an interrupt still reaches CPUs of VMs. `None`: it reaches none, or it did not fire there and is being moved.
pub(super) fn of(
    task: &Task<'_>,
    outcome: &Outcome,
    mask: &CpuSet,
    known: &InterruptHistory,
    files: &dyn Files,
) -> Option<Remaining> {
    let fired: CpuSet = known.fired.keys().copied().collect();
    let count = known.fired.values().sum();
    let reached = mask.intersection(&task.disturbed);
    let (why, cpus, text) = match outcome {
        Outcome::Managed(text) => {
            let cpus = fired.union(&placed(task, files));
            (RemainingCause::Managed, cpus, managed(text, count))
        }
        Outcome::NoVector(text) => (RemainingCause::NoVector, reached, text.clone()),
        Outcome::Failed(text) => (RemainingCause::Refused, reached, text.clone()),
        _ if known.repaired >= ROUNDS => {
            let text = format!(
                "its mask was {} again, after {} repairs",
                task.interrupt.mask, known.repaired
            );
            (
                RemainingCause::Overwritten,
                task.interrupt.mask.intersection(&task.disturbed),
                text,
            )
        }
        _ if known.loud > 0 => {
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
        why,
        text,
        count,
    })
}

/// Where the kernel placed an interrupt that cannot be moved, if that is on CPUs of VMs alone.
fn placed(task: &Task<'_>, files: &dyn Files) -> CpuSet {
    let effective = interrupts::effective(files, task.irq());
    let effective = effective.unwrap_or_else(|| task.interrupt.mask.clone());
    if effective.is_subset(&task.disturbed) {
        effective
    } else {
        CpuSet::new()
    }
}

fn managed(text: &str, count: u64) -> String {
    if count > 0 {
        return text.into();
    }
    format!("{text}; it has not fired there: the queue of a CPU does only for I/O submitted on that CPU")
}
