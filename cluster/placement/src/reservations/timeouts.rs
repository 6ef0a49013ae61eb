//! How long a bind, a pod that is gone and a node that shows nothing are waited for, and what follows then.

use std::time::Duration;

use super::records::{Bound, PodRecord};
use super::{Moment, OwnCpus, Reservations, Rules, Uid};

/// A node is silent if its object does not show a bound pod for this long: nothing more is placed there
/// until the object changes. The publisher writes at most every 2 s, and retries.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the VM of a pod that was promised CPUs by number may wait until its container runs: its image is pulled, or its volumes are attached.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(600);
/// Limit of the pods of a node that are granted [`START_TIMEOUT`]. An author can put off the start for ever, and each of these pods doubles the orders in which
/// pods may arrive.
const MAX_STARTING: usize = 4;
/// How long a pod that ended before the object showed it is still counted: twice the delays of daemon and publisher together.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the UID of a removed pod is remembered, so that a late answer does not bring it back.
pub(super) const UID_RETENTION: Duration = Duration::from_secs(600);

impl<R: Rules> Reservations<R> {
    /// Passes the time: pods that ended before the object showed them stop holding CPUs, and pods and nodes long gone are forgotten.
    pub fn advance(&mut self, now: Moment) {
        while let Some(entry) = self.deleted_objects.first_entry().filter(|entry| *entry.key() <= now) {
            for node in entry.remove() {
                let known = self.nodes.get_mut(&node);
                let known = known.filter(|known| !known.usable && now >= known.object_changed_at + UID_RETENTION);
                if let Some(known) = known {
                    known.object_version = 0;
                    self.update_node(&node);
                }
            }
        }
        while let Some(entry) = self.timers.first_entry().filter(|entry| *entry.key() <= now) {
            for pod in entry.remove() {
                self.expire(pod, now);
            }
        }
    }

    fn expire(&mut self, pod: Uid, now: Moment) {
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let Some(gone) = record.gone else {
            return self.check_late(pod, now);
        };
        let left = record.bound.take_if(|_| now >= gone + SETTLE_TIMEOUT);
        if now >= gone + UID_RETENTION
            && let Some(node) = self.pods.remove(&pod).and_then(|record| record.left)
            && let Some(pods) = self.departed.get_mut(&node)
        {
            pods.remove(&pod);
            if pods.is_empty() {
                self.departed.remove(&node);
            }
        }
        if let Some(bound) = left {
            self.remove_from_node(pod, &bound.node);
        }
    }

    /// Notes that a pod's containers run.
    pub(super) fn note_running(&mut self, pod: Uid, now: Moment) {
        let bound = self.pods.get_mut(&pod).and_then(|record| record.bound.as_mut());
        if let Some(bound) = bound.filter(|bound| bound.running_since.is_none()) {
            bound.running_since = Some(now);
            self.timers.entry(now + SILENCE_TIMEOUT).or_default().insert(pod);
        }
    }

    /// Notes if a pod that is bound should have its CPUs by now, and its node's object does not show it.
    fn check_late(&mut self, pod: Uid, now: Moment) {
        let Some(record) = self.pods.get(&pod) else { return };
        let (Some(bound), Some(request)) = (record.unseen(), &record.request) else {
            return;
        };
        let node = bound.node.clone();
        // How it gives CPUs is not known while it has no object.
        let due = if self.nodes.get(&node).is_some_and(|known| known.usable) {
            self.late_at(record, bound, now)
        } else {
            now + SILENCE_TIMEOUT
        };
        if due > now {
            self.timers.entry(due).or_default().insert(pod);
            return;
        }
        let is_late = self.rules.own_cpus(&node, request) != OwnCpus::AtAdmission;
        if let Some(bound) = self.pods.get_mut(&pod).and_then(|record| record.bound.as_mut()) {
            bound.is_late = is_late;
        }
        self.update_node(&node);
    }

    /// When a pod that is not shown is late.
    fn late_at(&self, record: &PodRecord<R::Request>, bound: &Bound, now: Moment) -> Moment {
        let is_starting = |record: &&PodRecord<R::Request>| {
            let bound = record.unseen().filter(|bound| bound.ours && !bound.is_late);
            let waits =
                bound.is_some_and(|bound| bound.running_since.is_none() && now >= bound.since + SILENCE_TIMEOUT);
            waits && record.cpus.is_some() && record.gone.is_none()
        };
        let pods = self.nodes.get(&bound.node).into_iter().flat_map(|known| &known.pods);
        let starting = pods.filter_map(|pod| self.pods.get(pod)).filter(is_starting).count();
        match bound.running_since {
            Some(at) => at.max(bound.since) + SILENCE_TIMEOUT,
            None if is_starting(&record) && starting <= MAX_STARTING => bound.since + START_TIMEOUT,
            None => bound.since + SILENCE_TIMEOUT,
        }
    }
}
