//! Conditions of instances that count only after they have held for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// One condition: since when it holds for each instance, and for which instances it counts.
#[derive(Debug)]
pub(super) struct DelayedCondition {
    /// How long it must hold before it counts.
    delay: Duration,
    /// Since when it holds for instances for which it does not count yet.
    since: BTreeMap<PodUid, Instant>,
    pub(super) counts: BTreeSet<PodUid>,
}

impl DelayedCondition {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            since: BTreeMap::new(),
            counts: BTreeSet::new(),
        }
    }

    /// Note whether the condition holds now. Returns whether it counts.
    pub(super) fn update(&mut self, pod: &PodUid, holds: bool, now: Instant) -> bool {
        if !holds {
            self.since.remove(pod);
            self.counts.remove(pod);
            return false;
        }
        if self.delay.is_zero() {
            self.since.remove(pod);
            self.counts.insert(pod.clone());
        }
        if !self.counts.contains(pod) {
            self.since.entry(pod.clone()).or_insert(now);
        }
        self.counts.contains(pod)
    }

    /// When the condition counts for an instance for which it holds and does not count yet.
    pub(super) fn counts_at(&self, pod: &PodUid) -> Option<Instant> {
        self.since.get(pod).map(|since| *since + self.delay)
    }

    /// Follow a change of the setting.
    pub(super) fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// The instances for which the condition begins to count.
    pub(super) fn begins_to_count(&mut self, now: Instant) -> Vec<PodUid> {
        let delay = self.delay;
        let begins = self
            .since
            .iter()
            .filter(|(_, since)| now.duration_since(**since) >= delay);
        let begins: Vec<PodUid> = begins.map(|(pod, _)| pod.clone()).collect();
        for pod in &begins {
            self.since.remove(pod);
            self.counts.insert(pod.clone());
        }
        begins
    }

    /// When the condition counts for another instance.
    pub(super) fn next(&self) -> Option<Instant> {
        self.since.values().min().map(|since| *since + self.delay)
    }
}
