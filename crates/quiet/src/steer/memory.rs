//! What one round remembers for the next. It may be lost: then the counts begin again.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_node::counters::interrupts::{IrqLine, Table, risen};

use super::Task;
use super::write::Outcome;
use crate::files::Files;
use crate::interrupts::{self, Identity, Interrupt};

/// Rounds in a row in which another program's mask is repaired before it is reported, and rounds in which an interrupt
/// that fires although its mask is as wanted stays reported after it was last seen to.
pub(super) const ROUNDS: u32 = 3;

/// What earlier rounds saw, for the life of the process. What undoing takes is in the base record instead.
#[derive(Debug, Default)]
pub struct Memory {
    known: BTreeMap<u32, InterruptHistory>,
    /// CPUs of VMs that were counted in the round before.
    watched: CpuSet,
}

/// An interrupt's state of earlier rounds.
#[derive(Debug, Default)]
pub(super) struct InterruptHistory {
    identity: Identity,
    /// Whether a round ended with it, so `counts` can be compared with.
    seen: bool,
    /// On CPUs of VMs.
    counts: Vec<(u32, u32)>,
    /// How often it fired on each CPU where it disturbs, since that is so.
    pub(super) fired: BTreeMap<u32, u64>,
    /// The mask as the last round left it.
    left: CpuSet,
    /// Consecutive rounds that found a changed mask which disturbs.
    pub(super) repaired: u32,
    /// The kernel's words, once it refused to move it.
    managed: Option<String>,
    /// What was wanted when a stand-in was taken.
    stood_in_for: Option<CpuSet>,
    settled: MaskState,
    /// The number of further rounds in which it is reported as still firing.
    pub(super) loud: u32,
}

/// Whether the mask is as wanted after it was written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum MaskState {
    #[default]
    No,
    /// The kernel moves some interrupts only when they fire next: this once, each of the CPUs left may see one.
    Moves,
    Yes,
}

impl Memory {
    fn of(&self, identity: &Identity) -> Option<&InterruptHistory> {
        self.known
            .get(&identity.irq)
            .filter(|known| known.identity == *identity)
    }

    /// Whether the kernel refused to move it.
    pub(super) fn cannot_move(&self, identity: &Identity) -> bool {
        self.managed(identity).is_some()
    }

    /// The kernel's words.
    pub(super) fn managed(&self, identity: &Identity) -> Option<&str> {
        self.of(identity)?.managed.as_deref()
    }

    /// Whether the mask found is one that was taken because the wanted one has no vector: it stays until something
    /// else is wanted, because each further try would take the kernel's lock for all vectors for nothing.
    pub(super) fn is_stand_in(&self, task: &Task<'_>) -> bool {
        let known = self.of(&task.interrupt.identity);
        let same = known.filter(|known| known.stood_in_for.as_ref() == Some(&task.decision.wanted));
        same.is_some_and(|known| known.left == task.interrupt.mask) && task.interrupt.mask.is_disjoint(&task.disturbed)
    }

    /// Forget interrupts that went away, and those whose number means another one now.
    pub(super) fn begin(&mut self, found: &[Interrupt]) {
        let mut before = std::mem::take(&mut self.known);
        let known = |interrupt: &Interrupt| {
            let identity = &interrupt.identity;
            let old = before.remove(&identity.irq).filter(|known| known.identity == *identity);
            let new = || InterruptHistory {
                identity: identity.clone(),
                ..InterruptHistory::default()
            };
            (identity.irq, old.unwrap_or_else(new))
        };
        self.known = found
            .iter()
            .filter(|one| !one.identity.actions.is_empty())
            .map(known)
            .collect();
    }

    /// The next round compares counts of these CPUs. One that was offline has no count to compare with.
    pub(super) fn end(&mut self, exclusive: &CpuSet, table: &Table) {
        self.watched = exclusive.intersection(&table.cpus);
    }

    /// What this round saw of an interrupt, whose mask it leaves as `mask`.
    pub(super) fn note(
        &mut self,
        task: &Task<'_>,
        outcome: &Outcome,
        mask: &CpuSet,
        line: Option<&IrqLine>,
        files: &dyn Files,
    ) -> &InterruptHistory {
        let known = self.known.entry(task.irq()).or_default();
        let (found, wanted) = (&task.interrupt.mask, &task.decision.wanted);
        let counts = line.map_or(&[][..], IrqLine::counts);
        let both = task.disturbed.intersection(&self.watched);
        let mut rises = if known.seen {
            risen(&known.counts, counts, &both)
        } else {
            Vec::new()
        };
        known.fired.retain(|cpu, _| task.disturbed.contains(*cpu));
        for (cpu, count) in &rises {
            *known.fired.entry(*cpu).or_default() += u64::from(*count);
        }

        let repaired = known.seen && *found != known.left && !found.is_disjoint(&task.disturbed);
        known.repaired = if repaired && found != wanted {
            known.repaired + 1
        } else {
            0
        };

        let as_wanted = found == wanted && found.is_disjoint(&task.disturbed);
        let rose = !rises.is_empty();
        if known.settled == MaskState::Moves {
            rises.retain(|(_, count)| *count > 1);
        }
        let fires = as_wanted && known.settled != MaskState::No && !rises.is_empty();
        known.loud = match (as_wanted, fires) {
            (false, _) => 0,
            (true, true) => ROUNDS,
            (true, false) => known.loud.saturating_sub(1),
        };
        known.settled = match known.settled {
            _ if !as_wanted => MaskState::No,
            MaskState::Moves if rose => MaskState::Yes,
            MaskState::No | MaskState::Moves => {
                let reached = interrupts::effective(files, task.irq());
                let moves = reached.is_some_and(|cpus| !cpus.is_disjoint(&task.disturbed));
                if moves { MaskState::Moves } else { MaskState::Yes }
            }
            MaskState::Yes => MaskState::Yes,
        };

        match outcome {
            Outcome::Managed(text) => known.managed = Some(text.clone()),
            Outcome::StandIn(_) => known.stood_in_for = Some(wanted.clone()),
            _ => known.stood_in_for = None,
        }
        known.seen = true;
        known.left = mask.clone();
        known.counts = counts
            .iter()
            .filter(|(cpu, _)| task.disturbed.contains(*cpu))
            .copied()
            .collect();
        known
    }
}
