//! What may be out of date, as events, calls and this program's own steps say it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::kubelet::PodUid;

/// So many instances are read in one turn.
const PORTION: usize = 32;

/// What may be out of date.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) kubelet: bool,
    pub(super) topology: bool,
    pub(super) slice: bool,
    pub(super) outside: bool,
    pub(super) leftover: bool,
    /// Scopes may have come or gone.
    pub(super) scopes: bool,
    /// Scopes nobody knows.
    pub(super) unknown: BTreeSet<PodUid>,
    /// Instances; true where it was this program that changed them.
    pub(super) instances: BTreeMap<PodUid, bool>,
    /// Instances of which nothing but float's CPUs; true where it was this program that changed them.
    pub(super) floats: BTreeMap<PodUid, bool>,
    /// Instances the audit has not come by yet.
    pub(super) audit: VecDeque<PodUid>,
    /// Instances to be planned for, as they are known.
    pub(super) plan: BTreeSet<PodUid>,
    /// Everybody is to be planned for.
    pub(super) everyone: bool,
    /// What all share is to be planned.
    pub(super) shared: bool,
}

impl Dirty {
    /// Whether anything is to be looked at that does not rest.
    pub(super) fn is_due(&self, rests: impl Fn(&PodUid) -> bool) -> bool {
        let node = self.kubelet || self.topology || self.slice || self.outside || self.leftover || self.scopes;
        node || self.everyone
            || self.shared
            || !self.unknown.is_empty()
            || !self.audit.is_empty()
            || !self.plan.is_empty()
            || !self.floats.is_empty()
            || self.instances.keys().any(|pod| !rests(pod))
    }

    /// Whether an instance is to be looked at or planned for.
    pub(super) fn has(&self, pod: &PodUid) -> bool {
        let known = self.instances.contains_key(pod) || self.floats.contains_key(pod) || self.plan.contains(pod);
        known || self.everyone || self.unknown.contains(pod)
    }

    /// The instances to be read in this turn: those that changed, then a few for the audit. True: by this program.
    pub(super) fn due(&mut self, rests: impl Fn(&PodUid) -> bool) -> Vec<(PodUid, bool)> {
        let changed = self.instances.iter().filter(|(pod, _)| !rests(pod)).take(PORTION);
        let mut due: Vec<(PodUid, bool)> = changed.map(|(pod, ours)| (pod.clone(), *ours)).collect();
        for (pod, _) in &due {
            self.instances.remove(pod);
        }
        while due.len() < PORTION
            && let Some(pod) = self.audit.pop_front()
        {
            due.push((pod, false));
        }
        due
    }
}
