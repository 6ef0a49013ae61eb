//! Drift: another program changed a value that only steliad writes. Each change is logged and counted, and remembered until it is
//! repaired.

use stelia_decide::drift_findings::Finding;
use stelia_decide::entitlement::entry_of;
use stelia_decide::{Instance, Whom, drift_findings};

use super::pass::Numbers;
use super::state::EngineState;
use crate::journal::{self, about};

impl EngineState {
    /// Log and count changes by another program. `expected`: the instance before them; `None` for what all instances share.
    pub(super) fn log_drift(&mut self, expected: Option<Instance>, findings: Vec<Finding>) {
        if findings.is_empty() {
            return;
        }
        for finding in &findings {
            let pod = finding.whom.pod().map(|pod| self.named(pod));
            about!(
                warn,
                journal::DRIFT,
                pod,
                STELIA_DRIFT = finding.what,
                STELIA_FOUND = finding.found,
                STELIA_LEFT = finding.expected,
                "{}{}: expected {:?}, found {:?}",
                journal::of(pod),
                finding.what,
                finding.expected,
                finding.found
            );
        }
        self.view_writer.counters.drift_found += findings.len() as u64;
        let pod = expected.as_ref().map(|expected| expected.record.pod.clone());
        let whom = pod.map_or(Whom::Node, Whom::Instance);
        let drift = self.drift.entry(whom).or_insert_with(|| (expected, Vec::new()));
        drift.1.extend(findings);
        self.view_writer.show_drift();
    }

    /// Log which changes were repaired, when no step remains for the instance. What still differs could not be repaired.
    pub(super) fn log_repaired(&mut self, whom: &Whom) {
        let Some((expected, findings)) = self.drift.remove(whom) else {
            return;
        };
        let now = whom.pod().and_then(|pod| self.picture.snapshot.instances.get(pod));
        let still = match (&expected, now) {
            (Some(expected), Some(now)) => {
                let entry = entry_of(&self.picture.snapshot.kubelet, &now.record);
                drift_findings::of_instance(expected, now, entry)
            }
            _ => Vec::new(),
        };
        let repaired = findings.iter().filter(|finding| !still.contains(finding)).count();
        let left_over = findings.len() - repaired;
        if left_over == 0 {
            tracing::info!(
                MESSAGE_ID = journal::REPAIRED,
                STELIA_REPAIRED = repaired,
                "{repaired} changes by other programs were repaired"
            );
        } else {
            tracing::warn!(
                MESSAGE_ID = journal::NOT_REPAIRED,
                STELIA_LEFT_OVER = left_over,
                "{left_over} changes by other programs could not be repaired yet"
            );
        }
        self.view_writer.counters.drift_repaired += repaired as u64;
        let did = Numbers {
            repaired: repaired as u32,
            ..Numbers::default()
        };
        self.passes.count(whom, did);
        self.view_writer.show_drift();
    }
}
