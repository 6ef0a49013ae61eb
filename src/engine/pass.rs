//! A pass: the turns from the first with something to look at to the last. What is counted in it, what is said of it, and
//! what one would do.

use std::collections::BTreeMap;
use std::time::Instant;

use stelia_api::Reason;
use stelia_decide::{Planned, Whom};
use stelia_kubelet::PodUid;
use stelia_model::Trigger;

/// What was done for one instance, or for all: in one turn, since a call began, or since the daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// How often the instance was read; not counted for all.
    pub looks: u32,
    /// Steps applied, failed ones included.
    pub steps: u32,
    /// Writes to cgroup files (cpusets, types, controllers), cgroups made and removed.
    pub writes: u32,
    /// Cgroup moves of processes and threads.
    pub moves: u32,
    /// Changes by other programs that were undone.
    pub repaired: u32,
    pub failed: u32,
}

impl Numbers {
    pub(super) fn add(&mut self, more: Self) {
        self.looks = self.looks.wrapping_add(more.looks);
        self.steps = self.steps.wrapping_add(more.steps);
        self.writes = self.writes.wrapping_add(more.writes);
        self.moves = self.moves.wrapping_add(more.moves);
        self.repaired = self.repaired.wrapping_add(more.repaired);
        self.failed = self.failed.wrapping_add(more.failed);
    }

    /// What was counted since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            looks: self.looks.wrapping_sub(before.looks),
            steps: self.steps.wrapping_sub(before.steps),
            writes: self.writes.wrapping_sub(before.writes),
            moves: self.moves.wrapping_sub(before.moves),
            repaired: self.repaired.wrapping_sub(before.repaired),
            failed: self.failed.wrapping_sub(before.failed),
        }
    }
}

/// What Reconcile or Audit answers: what was done for the call, in all its turns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassReport {
    pub whom: Whom,
    /// The pass's number since the daemon started; for one instance, how often that was read.
    pub pass: u32,
    pub did: Numbers,
    /// Steps that failed and reasons of degradation.
    pub degraded: Vec<(Whom, Reason)>,
}

/// What a pass would do now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preview {
    /// The first round's steps, in their order. Later rounds depend on the outcome of these.
    pub steps: Vec<Planned>,
    /// What is degraded now, and what could not be done when it was last tried.
    pub degraded: Vec<(Whom, Reason)>,
}

/// The passes, and what was done in all of them.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// The pass under way.
    pub(super) current: Option<Pass>,
    /// How many there were since the daemon started.
    pub(super) count: u32,
    /// What triggers the next one.
    pub(super) trigger: Option<Trigger>,
    /// For all instances, and for what they share.
    pub(super) total: Numbers,
    pub(super) of: BTreeMap<PodUid, Numbers>,
}

impl Passes {
    pub(super) fn did_for(&self, pod: &PodUid) -> Numbers {
        self.of.get(pod).copied().unwrap_or_default()
    }

    pub(super) fn count(&mut self, whom: &Whom, did: Numbers) {
        self.total.add(did);
        if let Some(pod) = whom.pod() {
            self.of.entry(pod.clone()).or_default().add(did);
        }
    }
}

/// A pass: from the first turn with something to look at to the last.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) began: Instant,
    pub(super) trigger: Trigger,
    pub(super) before: Numbers,
    /// When kubelet wrote the change that this pass follows, microseconds since the epoch.
    pub(super) follows_us: Option<u64>,
}
