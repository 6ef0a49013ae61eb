//! Limits the time that scans of one pod's containers take. A scan reads every process and thread of a container, and the pod
//! decides how many there are and how often a VM is created in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// After a scan, the next one of the same pod waits this many times as long as the scan took, so that one pod's scans take at most a tenth
/// of a thread's time.
pub(super) const PAUSE_FACTOR: u32 = 9;
/// Limit of the scans at the same time, so that threads are left for other blocking work.
const MAX_CONCURRENT_SCANS: usize = 2;

/// The scans of each pod.
#[derive(Debug, Default)]
pub(super) struct Budgets(BTreeMap<PodUid, Budget>);

#[derive(Debug)]
enum Budget {
    Scanning { since: Instant },
    Paused { until: Instant },
}

impl Budgets {
    /// When the next scan of a container of this pod, due at `due`, may begin; `None` while other scans have to end first.
    pub(super) fn earliest(&self, pod: &PodUid, due: Instant) -> Option<Instant> {
        let scanning = self.0.values().filter(|one| matches!(one, Budget::Scanning { .. }));
        if scanning.count() >= MAX_CONCURRENT_SCANS {
            return None;
        }
        match self.0.get(pod) {
            Some(Budget::Scanning { .. }) => None,
            Some(Budget::Paused { until }) => Some(due.max(*until)),
            None => Some(due),
        }
    }

    /// A scan of a container of this pod begins.
    pub(super) fn begin(&mut self, pod: &PodUid, now: Instant) {
        // A pod whose pause is over needs no entry.
        self.0
            .retain(|_, one| !matches!(one, Budget::Paused { until } if *until <= now));
        self.0.insert(pod.clone(), Budget::Scanning { since: now });
    }

    /// The scan ended. Returns how long it took.
    pub(super) fn end(&mut self, pod: &PodUid, now: Instant) -> Duration {
        let Some(Budget::Scanning { since }) = self.0.get(pod) else {
            return Duration::ZERO;
        };
        let took = now.saturating_duration_since(*since);
        let until = now + took.saturating_mul(PAUSE_FACTOR);
        self.0.insert(pod.clone(), Budget::Paused { until });
        took
    }

    /// A scan ended, and it is not known which.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).unwrap()
    }

    #[test]
    fn a_pods_scans_take_a_tenth_of_the_time_however_often_one_is_due() {
        let (mut budgets, began) = (Budgets::default(), Instant::now());
        let (mut now, mut spent) = (began, Duration::ZERO);
        let look = Duration::from_millis(70);
        while now < began + Duration::from_secs(10) {
            now = budgets.earliest(&pod(1), now).unwrap();
            budgets.begin(&pod(1), now);
            assert_eq!(budgets.earliest(&pod(1), now), None, "one at a time");
            now += look;
            spent += look;
            budgets.end(&pod(1), now);
            // Another pod does not wait for it.
            assert_eq!(budgets.earliest(&pod(2), now), Some(now));
        }
        assert!(spent <= Duration::from_secs(1) + 2 * look, "{spent:?} in 10 s");
    }

    #[test]
    fn scans_of_many_pods_leave_threads_for_other_work() {
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        for number in 1..=2 {
            assert_eq!(budgets.earliest(&pod(number), now), Some(now));
            budgets.begin(&pod(number), now);
        }
        assert_eq!(budgets.earliest(&pod(3), now), None);
        budgets.end(&pod(1), now);
        assert_eq!(budgets.earliest(&pod(3), now), Some(now));
    }
}
