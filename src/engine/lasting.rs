//! Conditions of instances that count only after they have held for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// One condition: since when it holds for an instance, and for which instances it counts.
#[derive(Debug)]
pub(super) struct Lasting {
    long: Duration,
    since: BTreeMap<PodUid, Instant>,
    pub(super) counts: BTreeSet<PodUid>,
}

impl Lasting {
    pub(super) fn new(long: Duration) -> Self {
        Self {
            long,
            since: BTreeMap::new(),
            counts: BTreeSet::new(),
        }
    }

    /// Note whether the condition holds now (`so`). Returns whether it counts.
    pub(super) fn is(&mut self, pod: &PodUid, so: bool, now: Instant) -> bool {
        if !so {
            self.since.remove(pod);
            self.counts.remove(pod);
            return false;
        }
        if !self.counts.contains(pod) {
            self.since.entry(pod.clone()).or_insert(now);
        }
        self.counts.contains(pod)
    }

    /// The instances for which it begins to count.
    pub(super) fn ripe(&mut self, now: Instant) -> Vec<PodUid> {
        let long = self.long;
        let ripe = self
            .since
            .iter()
            .filter(|(_, since)| now.duration_since(**since) >= long);
        let ripe: Vec<PodUid> = ripe.map(|(pod, _)| pod.clone()).collect();
        for pod in &ripe {
            self.since.remove(pod);
            self.counts.insert(pod.clone());
        }
        ripe
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.since.values().min().map(|since| *since + self.long)
    }
}
