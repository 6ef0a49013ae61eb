//! What counts only once it has lasted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// Since when something lasts that counts once it has lasted.
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

    /// Whether it is so now; answers whether it counts.
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

    /// Those for whom it begins to count.
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
