//! What somebody else changed: told at once, counted, and remembered until it is right again.

use stelia_kubelet::PodUid;

use super::task::Engine;
use crate::decide::drift::Finding;
use crate::decide::{Instance, drift};
use crate::journal;

impl Engine {
    /// Somebody changed what nobody but this program writes: told at once, and remembered until it is right again.
    pub(super) fn drifted(&mut self, left: Option<Instance>, findings: Vec<Finding>) {
        if findings.is_empty() {
            return;
        }
        for finding in &findings {
            tracing::warn!(
                MESSAGE_ID = journal::DRIFT,
                STELIA_POD_UID = finding.pod.as_ref().map(PodUid::as_str),
                STELIA_DRIFT = finding.what,
                STELIA_FOUND = finding.is,
                STELIA_LEFT = finding.was,
                "{} is {:?}, it was left as {:?}",
                finding.what,
                finding.is,
                finding.was
            );
        }
        self.counters.drift_found += findings.len() as u64;
        let who = left.as_ref().map(|left| left.record.pod.clone());
        let known = self.drift.entry(who).or_insert_with(|| (left, Vec::new()));
        known.1.extend(findings);
        self.publish_numbers(true);
    }

    /// Nothing is left to do: what was drifted is right again, or it is not.
    pub(super) fn repaired(&mut self, who: &Option<PodUid>) {
        let Some((left, findings)) = self.drift.remove(who) else {
            return;
        };
        let now = who.as_ref().and_then(|pod| self.picture.snapshot.instances.get(pod));
        let still = match (&left, now) {
            (Some(left), Some(now)) => drift::of_instance(left, now),
            _ => Vec::new(),
        };
        let repaired = findings.iter().filter(|finding| !still.contains(finding)).count();
        let left_over = findings.len() - repaired;
        if left_over == 0 {
            tracing::info!(
                MESSAGE_ID = journal::REPAIRED,
                STELIA_REPAIRED = repaired,
                "{repaired} changes by others put right"
            );
        } else {
            tracing::warn!(
                MESSAGE_ID = journal::NOT_REPAIRED,
                STELIA_LEFT_OVER = left_over,
                "{left_over} changes by others are not put right yet"
            );
        }
        self.counters.drift_repaired += repaired as u64;
        self.total.repaired = self.total.repaired.wrapping_add(repaired as u32);
        if let Some(pod) = who {
            let numbers = self.numbers.entry(pod.clone()).or_default();
            numbers.repaired = numbers.repaired.wrapping_add(repaired as u32);
        }
        self.publish_numbers(true);
    }
}
