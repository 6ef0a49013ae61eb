//! How long a bind, a pod that is gone and a node that shows nothing are waited for, and what follows then.

use std::time::Duration;

use super::{Moment, Reservations, Rules, Uid};

/// A node is silent if its object does not show a bound pod for this long: nothing more is placed there
/// until the object changes. The publisher writes at most every 2 s, and retries.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pod that ended before the object showed it is still counted: twice the delays of daemon and publisher together.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the UID of a removed pod is remembered, so that a late answer does not bring it back.
pub(super) const UID_RETENTION: Duration = Duration::from_secs(600);
/// A bind whose outcome is unknown for this long is decided by changing the pod's version: see [`Reservations::to_fence`](super::Reservations::to_fence).
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Notes if a pod that is bound should have its CPUs by now, and its node's object does not show it.
    fn check_late(&mut self, pod: Uid, now: Moment) {
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let unseen = record.bound.as_mut().filter(|bound| !bound.shown);
        let due = unseen.filter(|bound| now >= bound.since + SILENCE_TIMEOUT);
        let (Some(bound), Some(request)) = (due, &record.request) else {
            return;
        };
        match self.nodes.get(&bound.node).is_some_and(|known| known.usable) {
            true => {
                bound.is_late = !self.rules.is_shown_once_admitted(&bound.node, request);
                self.update_nodes_of(pod);
            }
            // How it gives CPUs is not known now.
            false => {
                self.timers.entry(now + SILENCE_TIMEOUT).or_default().insert(pod);
            }
        }
    }
}
