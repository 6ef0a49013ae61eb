//! What may be out of date, after events, calls and this program's own steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use stelia_kubelet::PodUid;

use super::fair_share::RecentLooks;

/// Instances read in one turn.
const MAX_INSTANCES_PER_TURN: usize = 32;
/// Turns in a row in which the audit waits for changed instances.
const MAX_AUDIT_WAIT_TURNS: u32 = 8;
/// Turns in a row in which instances with many recent looks wait for others, at most.
const MAX_TURNS_BEHIND: u32 = 8;

/// What of an instance may be out of date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// This program changed the instance, so a difference is not drift.
    pub(super) ours: bool,
    pub(super) limits: StaleLimits,
}

/// Which limits of an instance may be out of date. They are half of what there is to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StaleLimits {
    /// None.
    #[default]
    None,
    /// There was no event, but the audit reads some: the container's and the scope's in turn.
    Audited,
    All,
}

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
    /// Scopes that were not read yet, or are not an instance.
    pub(super) unknown: BTreeSet<PodUid>,
    /// Instances to be read, and what of them.
    pub(super) instances: BTreeMap<PodUid, Stale>,
    /// Instances of which only float's CPUs are to be read; true where this program changed them.
    pub(super) floats: BTreeMap<PodUid, bool>,
    /// Instances that the audit has not read yet.
    pub(super) audit: BTreeSet<PodUid>,
    /// The instance that the audit read last. It goes on with the next, so that a pod which asks again and again is not
    /// first each time.
    audited: Option<PodUid>,
    /// For how many turns the audit has waited.
    waited: u32,
    /// For how many turns in a row instances have waited for others.
    behind: u32,
    /// Instances to be planned for without being read.
    pub(super) plan: BTreeSet<PodUid>,
    /// Instances that have ended, which the view still shows and calls still wait for.
    pub(super) gone: BTreeSet<PodUid>,
    /// All instances are to be planned for.
    pub(super) everyone: bool,
    /// What all share is to be planned.
    pub(super) shared: bool,
    /// This program wrote to the slice or units outside: a difference there is not drift.
    pub(super) wrote_shared: bool,
}

impl Dirty {
    /// Whether anything is to be read or planned for, apart from instances that rest.
    pub(super) fn is_due(&self, rests: impl Fn(&PodUid) -> bool) -> bool {
        let node = self.kubelet || self.topology || self.slice || self.outside || self.leftover || self.scopes;
        node || self.everyone
            || self.shared
            || !self.unknown.is_empty()
            || !self.audit.is_empty()
            || !self.plan.is_empty()
            || !self.gone.is_empty()
            || !self.floats.is_empty()
            || self.instances.keys().any(|pod| !rests(pod))
    }

    /// Everything of the node, except for units outside.
    pub(super) fn node(&mut self) {
        self.kubelet = true;
        self.topology = true;
        self.slice = true;
        self.leftover = true;
        self.scopes = true;
        self.shared = true;
    }

    /// This program wrote to the slice, or to what all share.
    pub(super) fn wrote_slice(&mut self) {
        self.slice = true;
        self.wrote_shared = true;
    }

    /// Whether an instance is to be read or planned for.
    pub(super) fn has(&self, pod: &PodUid) -> bool {
        let known = self.instances.contains_key(pod) || self.floats.contains_key(pod) || self.plan.contains(pod);
        known || self.everyone || self.unknown.contains(pod)
    }

    /// Another program may have changed it.
    pub(super) fn changed(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default();
    }

    /// This program changed it.
    pub(super) fn wrote(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default().ours = true;
    }

    /// This program made its scope.
    pub(super) fn made(&mut self, pod: PodUid) {
        self.instances.insert(
            pod,
            Stale {
                ours: true,
                limits: StaleLimits::All,
            },
        );
    }

    /// A limit of it or of its container was written.
    pub(super) fn limited(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default().limits = StaleLimits::All;
    }

    /// It is to be read again. What differs is this program's doing, unless it was marked as [`Self::changed`] before.
    pub(super) fn again(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_insert(Stale {
            ours: true,
            limits: StaleLimits::None,
        });
    }

    fn next_of_audit(&mut self) -> Option<PodUid> {
        let last = self.audited.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut after = self.audit.range::<PodUid, _>((last, Bound::Unbounded));
        let next = after.next().or_else(|| self.audit.first()).cloned()?;
        self.audit.remove(&next);
        self.audited = Some(next.clone());
        Some(next)
    }

    /// The instances to be read in this turn: those that changed, then some of the audit. Any pod may ask for an audit as often
    /// as its socket lets it, so the audit waits while something changed, but not for ever.
    ///
    /// The instance of a pod whose processes, threads or calls change it all the time would be looked at in every turn of a VM that
    /// starts. So it waits while others have changed, for [`MAX_TURNS_BEHIND`] turns at most.
    pub(super) fn due(
        &mut self,
        rests: impl Fn(&PodUid) -> bool,
        recent: &RecentLooks,
        now: Instant,
    ) -> Vec<(PodUid, Stale)> {
        let changed = || self.instances.iter().filter(|(pod, _)| !rests(pod));
        let allowed = recent.allowed(changed().map(|(pod, _)| pod), now);
        let is_behind = |pod: &PodUid| recent.exceeds(allowed, pod, now);
        let waits = self.behind < MAX_TURNS_BEHIND;
        let chosen = changed()
            .filter(|(pod, _)| !(waits && is_behind(pod)))
            .take(MAX_INSTANCES_PER_TURN);
        let mut due: Vec<(PodUid, Stale)> = chosen.map(|(pod, stale)| (pod.clone(), *stale)).collect();
        let left_behind = waits && changed().any(|(pod, _)| is_behind(pod));
        self.behind = if left_behind { self.behind + 1 } else { 0 };
        for (pod, _) in &due {
            self.instances.remove(pod);
        }
        let has_work = !due.is_empty() || !self.floats.is_empty();
        if has_work && !self.audit.is_empty() && self.waited < MAX_AUDIT_WAIT_TURNS {
            self.waited += 1;
            return due;
        }
        self.waited = 0;
        while due.len() < MAX_INSTANCES_PER_TURN
            && let Some(pod) = self.next_of_audit()
        {
            due.push((
                pod,
                Stale {
                    ours: false,
                    limits: StaleLimits::Audited,
                },
            ));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(dirty: &mut Dirty) -> Vec<(PodUid, Stale)> {
        dirty.due(|_| false, &RecentLooks::default(), Instant::now())
    }

    #[test]
    fn whoever_asks_for_an_audit_again_and_again_is_not_first_each_time() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let mut dirty = Dirty::default();
        let rude = MAX_INSTANCES_PER_TURN as u32;
        dirty.audit.extend((0..=rude).map(pod));
        let first = due(&mut dirty);
        assert_eq!(first.len(), MAX_INSTANCES_PER_TURN);
        dirty.audit.extend((0..rude).map(pod));
        let second = due(&mut dirty);
        assert_eq!(second.first().map(|(pod, _)| pod.clone()), Some(pod(rude)));
    }

    #[test]
    fn the_audit_stands_back_where_something_changed_and_not_for_ever() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let mut dirty = Dirty::default();
        dirty.audit.insert(pod(1));
        let mut turns = 0;
        while !dirty.audit.is_empty() {
            dirty.changed(pod(0));
            assert_eq!(due(&mut dirty).first().map(|(pod, _)| pod.clone()), Some(pod(0)));
            turns += 1;
        }
        assert_eq!(turns, MAX_AUDIT_WAIT_TURNS + 1);
        dirty.audit.insert(pod(1));
        assert_eq!(due(&mut dirty).len(), 1);
    }

    #[test]
    fn a_pod_that_changes_all_the_time_waits_for_others_and_not_for_ever() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let (mut dirty, mut recent, now) = (Dirty::default(), RecentLooks::default(), Instant::now());
        (0..500).for_each(|_| recent.add(&pod(1), 0, now));
        let mut turns = Vec::new();
        for _ in 0..2 * (MAX_TURNS_BEHIND + 1) {
            dirty.changed(pod(1));
            dirty.changed(pod(2));
            turns.push(dirty.due(|_| false, &recent, now).len());
        }
        let waited = vec![1; MAX_TURNS_BEHIND as usize];
        assert_eq!(turns, [&waited[..], &[2], &waited, &[2]].concat());
        // Nobody else has changed: it has its turn at once.
        dirty.instances.clear();
        dirty.changed(pod(1));
        assert_eq!(dirty.due(|_| false, &recent, now).len(), 1);
    }
}
