//! Incidents: what happens to pods and the view does not show, such as refused calls and intrusions on their CPUs. They are kept for the
//! publishing task, and only while it runs. Each pod has a list of its own, which other pods' incidents do not push out; repetitions are
//! counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use stelia_api::Error;
use stelia_kernel::clock::now_us;
use stelia_kubelet::{PodName, PodUid};
use tokio::sync::Notify;

use super::Handle;

/// Different incidents that are kept of a pod; the oldest is dropped for a new one.
const MAX_INCIDENTS_PER_POD: usize = 8;
/// Pods of which incidents are kept between two takings: more than kubelet runs.
const MAX_PODS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incident {
    pub(crate) name: PodName,
    /// The event's reason, one word in upper camel case.
    pub(crate) reason: &'static str,
    /// What the pod itself may read.
    pub(crate) message: String,
    /// When it last happened, microseconds since the epoch.
    pub(crate) time_us: u64,
    pub(crate) count: u32,
}

/// The incidents since the last taking.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    /// `None` while no task takes them.
    by_pod: Mutex<Option<BTreeMap<PodUid, Vec<Incident>>>>,
    noted: Notify,
}

impl Incidents {
    /// Begin to keep incidents, or forget them and keep none.
    pub(crate) fn keep(&self, keep: bool) {
        *self.lock() = keep.then(BTreeMap::new);
    }

    pub(crate) fn are_kept(&self) -> bool {
        self.lock().is_some()
    }

    pub(crate) fn note(&self, pod: &PodUid, incident: Incident) {
        let mut guard = self.lock();
        let Some(by_pod) = guard.as_mut() else { return };
        if by_pod.len() >= MAX_PODS && !by_pod.contains_key(pod) {
            return;
        }
        let own = by_pod.entry(pod.clone()).or_default();
        let same = |known: &&mut Incident| known.reason == incident.reason && known.message == incident.message;
        match own.iter_mut().find(same) {
            Some(known) => {
                known.time_us = incident.time_us;
                known.count = known.count.saturating_add(incident.count);
            }
            None => {
                if own.len() >= MAX_INCIDENTS_PER_POD {
                    own.remove(0);
                }
                own.push(incident);
            }
        }
        self.noted.notify_one();
    }

    /// Take the incidents since the last taking, by pod.
    pub(crate) fn take(&self) -> BTreeMap<PodUid, Vec<Incident>> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Wait until an incident was noted since the last wait.
    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<BTreeMap<PodUid, Vec<Incident>>>> {
        // A panic in another thread leaves no half-made incident: each call changes the map by whole ones.
        self.by_pod.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    pub(crate) fn incidents(&self) -> &Incidents {
        &self.incidents
    }

    /// Note that a call of this handle's pod was refused. `what`: as `registration refused`. A pod without a known name has no incidents.
    pub(crate) fn note_refusal(&self, what: &str, error: &Error, name: impl FnOnce() -> Option<PodName>) {
        let Some(pod) = self.asker.as_ref().filter(|_| self.incidents.are_kept()) else {
            return;
        };
        let visible = error.clone().visible_to(pod);
        self.note(
            pod,
            name(),
            "Refused",
            format!("{what}: {}: {visible}", visible.kind.name()),
        );
    }

    /// Note an incident of a pod. `message`: what the pod itself may read.
    pub(crate) fn note(&self, pod: &PodUid, name: Option<PodName>, reason: &'static str, message: String) {
        let Some(name) = name.filter(|_| self.incidents.are_kept()) else {
            return;
        };
        let incident = Incident {
            name,
            reason,
            message,
            time_us: now_us(),
            count: 1,
        };
        self.incidents.note(pod, incident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: usize) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn refused(message: &str, time_us: u64) -> Incident {
        Incident {
            name: PodName::new("team-a", "vm").unwrap(),
            reason: "Refused",
            message: message.to_owned(),
            time_us,
            count: 1,
        }
    }

    #[test]
    fn nothing_is_kept_while_no_task_takes_it() {
        let incidents = Incidents::default();
        incidents.note(&pod(1), refused("a", 1));
        incidents.keep(true);
        assert!(incidents.take().is_empty());
        incidents.note(&pod(1), refused("a", 1));
        incidents.keep(false);
        incidents.keep(true);
        assert!(incidents.take().is_empty());
    }

    #[test]
    fn repetitions_are_counted_and_a_pods_own_push_out_its_own_only() {
        let incidents = Incidents::default();
        incidents.keep(true);
        incidents.note(&pod(1), refused("quiet", 1));
        for time in 0..1000 {
            incidents.note(&pod(2), refused("same", time));
            incidents.note(&pod(2), refused(&time.to_string(), time));
        }
        let taken = incidents.take();
        assert_eq!(taken[&pod(1)], [refused("quiet", 1)]);
        assert_eq!(taken[&pod(2)].len(), MAX_INCIDENTS_PER_POD);
        assert!(incidents.take().is_empty());
        for time in 0..3 {
            incidents.note(&pod(2), refused("same", time));
        }
        let counted = Incident {
            count: 3,
            ..refused("same", 2)
        };
        assert_eq!(incidents.take()[&pod(2)], [counted]);
    }

    #[test]
    fn there_is_a_bound_on_pods_too() {
        let incidents = Incidents::default();
        incidents.keep(true);
        for number in 0..2 * MAX_PODS {
            incidents.note(&pod(number), refused("a", 1));
        }
        incidents.note(&pod(0), refused("b", 1));
        let taken = incidents.take();
        assert_eq!((taken.len(), taken[&pod(0)].len()), (MAX_PODS, 2));
    }
}
