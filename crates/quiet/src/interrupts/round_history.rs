//! What one round keeps in memory for the next. A restarted process has none of it and begins to count again.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{IrqLine, Table, risen};

use super::Task;
use super::read::{self, Identity, Interrupt};
use super::write::WriteOutcome;
use crate::files::Files;

/// Rounds in a row in which another program's mask is repaired before it is reported, and rounds for which an interrupt
/// stays reported after it last fired although its mask is as wanted.
pub(super) const REPORT_ROUNDS: u32 = 3;

/// The interrupts as earlier rounds of this process saw them. What is needed to undo changes is in the base record
/// instead.
#[derive(Debug, Default)]
pub struct RoundHistory {
    histories: BTreeMap<u32, InterruptHistory>,
    /// The CPUs of VMs for which the last round read counts.
    counted_cpus: CpuSet,
}

/// An interrupt's state of earlier rounds.
#[derive(Debug, Default)]
pub(super) struct InterruptHistory {
    identity: Identity,
    /// Whether `counts` and `last_mask` are those of a complete round.
    is_complete: bool,
    /// The count on each CPU of a VM that the interrupt disturbs, as of the last round.
    counts: Vec<(u32, u32)>,
    /// How often it fired on each CPU that it disturbs, since it disturbs that CPU.
    pub(super) fired: BTreeMap<u32, u64>,
    /// The mask at the end of the last round.
    last_mask: CpuSet,
    /// Rounds in a row in which another program had set a mask that disturbs VMs.
    pub(super) repairs: u32,
    /// The kernel's error, if it refused to move the interrupt.
    refusal: Option<String>,
    /// The wanted mask for which no vector was left, while an alternative is in force.
    no_vector_for: Option<CpuSet>,
    mask_state: MaskState,
    /// The number of further rounds in which it is reported as still firing.
    pub(super) report_rounds: u32,
}

/// Whether the wanted mask is in force.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum MaskState {
    #[default]
    Different,
    /// It is written, but the kernel moves some interrupts only when they fire next: one interrupt may still arrive on each
    /// CPU of the former mask.
    Pending,
    InForce,
}

impl RoundHistory {
    fn history(&self, identity: &Identity) -> Option<&InterruptHistory> {
        self.histories
            .get(&identity.irq)
            .filter(|history| history.identity == *identity)
    }

    /// The kernel's error, if it refused to move the interrupt.
    pub(super) fn refusal(&self, identity: &Identity) -> Option<&str> {
        self.history(identity)?.refusal.as_deref()
    }

    /// Whether the mask is an alternative that was written because the wanted one has no vector: it stays until another
    /// mask is wanted, because every attempt takes the kernel's lock for all vectors.
    pub(super) fn keeps_alternative(&self, task: &Task<'_>) -> bool {
        let Some(history) = self.history(&task.interrupt.identity) else {
            return false;
        };
        history.no_vector_for.as_ref() == Some(&task.decision.wanted)
            && history.last_mask == task.interrupt.mask
            && task.interrupt.mask.is_disjoint(&task.disturbed)
    }

    /// Forget interrupts that went away, and those whose number means another one now.
    pub(super) fn begin(&mut self, interrupts: &[Interrupt]) {
        let mut before = std::mem::take(&mut self.histories);
        let history = |interrupt: &Interrupt| {
            let identity = &interrupt.identity;
            let old = before.remove(&identity.irq);
            let old = old.filter(|history| history.identity == *identity);
            let new = || InterruptHistory {
                identity: identity.clone(),
                ..InterruptHistory::default()
            };
            (identity.irq, old.unwrap_or_else(new))
        };
        self.histories = interrupts
            .iter()
            .filter(|interrupt| !interrupt.identity.actions.is_empty())
            .map(history)
            .collect();
    }

    /// The next round compares counts of these CPUs. A CPU that was offline has no count to compare with.
    pub(super) fn end(&mut self, exclusive: &CpuSet, table: &Table) {
        self.counted_cpus = exclusive.intersection(&table.cpus);
    }

    /// Update the interrupt's history with what this round saw; `mask` is the mask at its end.
    pub(super) fn update(
        &mut self,
        task: &Task<'_>,
        outcome: &WriteOutcome,
        mask: &CpuSet,
        line: Option<&IrqLine>,
        files: &dyn Files,
    ) -> &InterruptHistory {
        let history = self.histories.entry(task.irq()).or_default();
        let (found, wanted) = (&task.interrupt.mask, &task.decision.wanted);
        let counts = line.map_or(&[][..], IrqLine::counts);
        let mut rises = if history.is_complete {
            risen(
                &history.counts,
                counts,
                &task.disturbed.intersection(&self.counted_cpus),
            )
        } else {
            Vec::new()
        };
        history.fired.retain(|cpu, _| task.disturbed.contains(*cpu));
        for (cpu, count) in &rises {
            *history.fired.entry(*cpu).or_default() += u64::from(*count);
        }

        let was_overwritten = history.is_complete && *found != history.last_mask;
        let disturbs = !found.is_disjoint(&task.disturbed);
        history.repairs = if was_overwritten && disturbs && found != wanted {
            history.repairs + 1
        } else {
            0
        };

        let as_wanted = found == wanted && !disturbs;
        let rose = !rises.is_empty();
        if history.mask_state == MaskState::Pending {
            rises.retain(|(_, count)| *count > 1);
        }
        let still_fires = as_wanted && history.mask_state != MaskState::Different && !rises.is_empty();
        history.report_rounds = match (as_wanted, still_fires) {
            (false, _) => 0,
            (true, true) => REPORT_ROUNDS,
            (true, false) => history.report_rounds.saturating_sub(1),
        };
        history.mask_state = match history.mask_state {
            _ if !as_wanted => MaskState::Different,
            MaskState::Pending if rose => MaskState::InForce,
            MaskState::Different | MaskState::Pending => {
                let effective = read::effective(files, task.irq());
                let is_pending = effective.is_some_and(|cpus| !cpus.is_disjoint(&task.disturbed));
                if is_pending {
                    MaskState::Pending
                } else {
                    MaskState::InForce
                }
            }
            MaskState::InForce => MaskState::InForce,
        };

        match outcome {
            WriteOutcome::Managed(text) => history.refusal = Some(text.clone()),
            WriteOutcome::Alternative(_) => history.no_vector_for = Some(wanted.clone()),
            _ => history.no_vector_for = None,
        }
        history.is_complete = true;
        history.last_mask = mask.clone();
        history.counts = counts
            .iter()
            .filter(|(cpu, _)| task.disturbed.contains(*cpu))
            .copied()
            .collect();
        history
    }
}
