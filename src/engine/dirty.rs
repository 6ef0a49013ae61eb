//! What may be out of date, as events, calls and this program's own steps say it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use stelia_kubelet::PodUid;

/// So many instances are read in one turn.
const PORTION: usize = 32;
/// So many turns the audit stands back in a row.
const STANDS_BACK: u32 = 8;

/// What of an instance may be out of date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// It was this program that changed it.
    pub(super) ours: bool,
    /// Its limits too, although they were as they should be.
    pub(super) limits: Limits,
}

/// Which limits of an instance may be out of date. They are half of what there is to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limits {
    /// None that anybody knows of.
    #[default]
    None,
    /// None that the kernel told of. The audit looks all the same: at the container's and at the scope's, by turns.
    Untold,
    /// Any of them.
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
    /// Scopes nobody knows.
    pub(super) unknown: BTreeSet<PodUid>,
    /// Instances, and what of them.
    pub(super) instances: BTreeMap<PodUid, Stale>,
    /// Instances of which nothing but float's CPUs; true where it was this program that changed them.
    pub(super) floats: BTreeMap<PodUid, bool>,
    /// Instances the audit has not come by yet.
    pub(super) audit: BTreeSet<PodUid>,
    /// The last one it came by: the next is the one after it, so that whoever asks again and again is not first each time.
    audited: Option<PodUid>,
    /// For how many turns the audit has stood back.
    stood_back: u32,
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

    /// Somebody may have changed it.
    pub(super) fn changed(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default();
    }

    /// This program changed it.
    pub(super) fn wrote(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default().ours = true;
    }

    /// This program made it.
    pub(super) fn made(&mut self, pod: PodUid) {
        self.instances.insert(
            pod,
            Stale {
                ours: true,
                limits: Limits::All,
            },
        );
    }

    /// Somebody wrote a limit of it, or of its container.
    pub(super) fn limited(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_default().limits = Limits::All;
    }

    /// It is to be looked at again: what differs is this program's doing, unless somebody else may have changed it as well.
    pub(super) fn again(&mut self, pod: PodUid) {
        self.instances.entry(pod).or_insert(Stale {
            ours: true,
            limits: Limits::None,
        });
    }

    fn next_of_audit(&mut self) -> Option<PodUid> {
        let last = self.audited.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut after = self.audit.range((last, Bound::Unbounded));
        let next = after.next().or_else(|| self.audit.first()).cloned()?;
        self.audit.remove(&next);
        self.audited = Some(next.clone());
        Some(next)
    }

    /// The instances to be read in this turn: those that changed; a few for the audit, which any pod may ask for as often as its
    /// socket lets it, where nothing changed, and now and then all the same.
    pub(super) fn due(&mut self, rests: impl Fn(&PodUid) -> bool) -> Vec<(PodUid, Stale)> {
        let changed = self.instances.iter().filter(|(pod, _)| !rests(pod)).take(PORTION);
        let mut due: Vec<(PodUid, Stale)> = changed.map(|(pod, stale)| (pod.clone(), *stale)).collect();
        for (pod, _) in &due {
            self.instances.remove(pod);
        }
        let has_work = !due.is_empty() || !self.floats.is_empty();
        if has_work && !self.audit.is_empty() && self.stood_back < STANDS_BACK {
            self.stood_back += 1;
            return due;
        }
        self.stood_back = 0;
        while due.len() < PORTION
            && let Some(pod) = self.next_of_audit()
        {
            due.push((
                pod,
                Stale {
                    ours: false,
                    limits: Limits::Untold,
                },
            ));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_an_audit_again_and_again_is_not_first_each_time() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let mut dirty = Dirty::default();
        let rude = PORTION as u32;
        dirty.audit.extend((0..=rude).map(pod));
        let first = dirty.due(|_| false);
        assert_eq!(first.len(), PORTION);
        dirty.audit.extend((0..rude).map(pod));
        let second = dirty.due(|_| false);
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
            assert_eq!(dirty.due(|_| false).first().map(|(pod, _)| pod.clone()), Some(pod(0)));
            turns += 1;
        }
        assert_eq!(turns, STANDS_BACK + 1);
        dirty.audit.insert(pod(1));
        assert_eq!(dirty.due(|_| false).len(), 1);
    }
}
